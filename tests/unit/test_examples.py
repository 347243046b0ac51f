"""What the examples leave behind when something goes wrong in them."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("fails", ["submit show", "show", "explain", "kill"])
def test_the_policy_is_as_before_however_the_newcomers_end(
    fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    example = importlib.import_module("newcomers")
    in_force = "fair"

    def elps(*arguments: str, show: bool = True) -> str:
        nonlocal in_force
        if arguments[0] in fails.split():
            raise SystemExit("refused")
        if arguments[:2] == ("policy", "--json"):
            return json.dumps({"lines": [in_force]})
        if arguments[0] == "policy":
            in_force = arguments[1]
        return ""

    def job(name: str) -> dict[str, Any]:
        elps("show", name, "--json", show=False)
        return {"state": "running", "fed_at": 1.0, "ready": ["w1", "w2"]}

    monkeypatch.setattr(example, "elps", elps)
    monkeypatch.setattr(example, "job", job)
    monkeypatch.setattr(example, "slots", lambda: 2)
    monkeypatch.setattr(example, "show", lambda name: 0.1)
    with pytest.raises(SystemExit):
        example.main()
    assert in_force == "fair"
