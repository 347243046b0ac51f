"""The sign of life that health checks look for."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from structlog.testing import capture_logs

from elps.runtime import alive


async def test_a_loop_that_works_gives_a_sign_and_gives_it_again(tmp_path: Path) -> None:
    file = tmp_path / "alive"
    task = asyncio.create_task(alive.keep_alive(file))
    async with asyncio.timeout(10):
        while not file.exists():  # noqa: ASYNC110
            await asyncio.sleep(0)
    task.cancel()
    at = file.stat().st_mtime
    env = {alive.FILE_SETTING: str(file)}
    assert alive.trouble(env, at + alive.ALIVE_S) == ""
    assert "no sign of life for" in alive.trouble(env, at + alive.STALE_S)
    assert alive.ALIVE_S * 3 <= alive.STALE_S


async def test_a_folder_that_is_not_there_ends_nothing(tmp_path: Path) -> None:
    with capture_logs() as logged:
        task = asyncio.create_task(alive.keep_alive(tmp_path / "none" / "alive"))
        async with asyncio.timeout(10):
            while not logged:  # noqa: ASYNC110
                await asyncio.sleep(0)
    assert not task.done()
    task.cancel()
    assert [line["event"] for line in logged] == ["sign_of_life_not_given"]


def test_without_a_sign_the_check_fails_and_says_why(tmp_path: Path) -> None:
    assert "not set" in alive.trouble({}, 0.0)
    env = {**os.environ, alive.FILE_SETTING: str(tmp_path / "alive")}
    check = [sys.executable, "-m", "elps.runtime.alive"]
    failed = subprocess.run(check, env=env, capture_output=True, text=True, timeout=60)
    assert (failed.returncode, "no sign of life yet" in failed.stderr) == (1, True)
    (tmp_path / "alive").touch()
    assert subprocess.run(check, env=env, timeout=60).returncode == 0
