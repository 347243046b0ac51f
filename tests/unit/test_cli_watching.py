"""What `elps watch` says when it is left."""

from __future__ import annotations

from typing import Any, NoReturn

import pytest

from elps.cli import watching


def test_ctrl_c_says_that_the_job_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    nowhere: Any = None
    monkeypatch.setattr(watching, "run_async", interrupted)
    with pytest.raises(KeyboardInterrupt):
        watching.watch_job(nowhere, "j", as_json=False)
    assert "the job goes on: elps watch j shows it again" in capsys.readouterr().err
