"""The agent's zygote: it is killed, frozen, cannot be started or cannot import; trainers do not wait for ever."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from agent_bench import BOUND_S, Bench, bench, eventually, start, stop
from pids import alive

__all__ = ["bench"]


async def test_leaving_before_the_zygote_is_ready_does_not_wait_for_its_imports(
    bench: Bench,
) -> None:
    command = start("wait")
    bench.trainers.start(command)
    async with asyncio.timeout(BOUND_S):
        await bench.trainers.leave()
    assert bench.trainers.leaving
    assert bench.status(command) is not None


async def test_a_killed_zygote_takes_its_trainers_along_and_is_replaced(bench: Bench) -> None:
    command, helper = start("wait", n=1), start("descendants", n=2)
    bench.trainers.start(command)
    bench.trainers.start(helper)
    lines = await bench.prints(helper, "ready")
    pid = (await bench.becomes(command, "running")).pid
    zygote = bench.trainers.zygote_pid
    assert zygote is not None
    os.kill(zygote, signal.SIGKILL)
    text = (await bench.becomes(command, "exited")).exit
    assert text == "the parent process of the trainers ended: signal 9 (SIGKILL)"
    await eventually(lambda: not alive(pid))
    in_group = int(next(line for line in lines if line.startswith("child ")).split()[1])
    await eventually(lambda: not alive(in_group))
    bench.trainers.stop(stop(command))
    again = start("exit", n=3, code=0)
    bench.trainers.start(again)
    status = await bench.becomes(again, "exited")
    assert status.exit.startswith("exit code 0")
    assert status.done
    for line in lines:  # those in sessions of their own belong to init now
        if line.startswith("child ") and alive(child := int(line.split()[1])):
            os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("lacks", ["processes", "descriptors"])
async def test_a_zygote_that_cannot_be_started_for_a_while_is_tried_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, lacks: str
) -> None:
    command, refused = start("wait"), list[int]()
    bench.trainers.start(command)
    await bench.becomes(command, "running")
    zygote, popen, pidfd_open = bench.trainers.zygote_pid, subprocess.Popen, os.pidfd_open
    assert zygote is not None

    def no_process(*args: Any, **named: Any) -> Any:
        refused.append(0)
        if len(refused) < 3:
            raise BlockingIOError(errno.EAGAIN, "no process is free")
        return popen(*args, **named)

    def no_descriptor(pid: int, flags: int = 0) -> int:
        refused.append(pid)
        if len(refused) < 3:
            raise OSError(errno.EMFILE, "no descriptor is free")
        return pidfd_open(pid, flags)

    if lacks == "processes":
        monkeypatch.setattr(subprocess, "Popen", no_process)
    else:
        monkeypatch.setattr(os, "pidfd_open", no_descriptor)
    os.kill(zygote, signal.SIGKILL)
    await bench.becomes(command, "exited")
    again = start("wait", n=2)
    bench.trainers.start(again)
    await bench.becomes(again, "running")
    assert len(refused) == 3
    assert not any(alive(pid) for pid in refused[:2] if pid)


async def test_a_frozen_zygote_is_replaced_when_a_trainer_cannot_be_ended(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elps.worker.core.roster.STUCK_S", 0.3)
    command = start("wait")
    bench.trainers.start(command)
    pid = (await bench.becomes(command, "running")).pid
    zygote = bench.trainers.zygote_pid
    assert zygote is not None
    os.kill(zygote, signal.SIGSTOP)
    bench.trainers.stop(stop(command))
    await bench.gone(command)
    assert not alive(zygote)
    await eventually(lambda: not alive(pid))  # an orphan's end is for its new parent to take in


async def test_a_zygote_that_cannot_import_says_so_in_the_exit_of_who_waited(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, trainer="no_such_module:run")
    command = start("exit", code=0)
    bench.trainers.start(command)
    text = (await bench.becomes(command, "exited")).exit
    assert "importing no_such_module: ModuleNotFoundError" in text
    await bench.close()


async def test_a_preloaded_module_that_starts_a_thread_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "threading_module.py").write_text(
        "import threading, time\n"
        "threading.Thread(target=time.sleep, args=(60,), name='busy', daemon=True).start()\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    bench = Bench(tmp_path, trainer="threading_module:run")
    command = start("exit", code=0)
    bench.trainers.start(command)
    text = (await bench.becomes(command, "exited")).exit
    assert "importing threading_module left 2 threads (busy)" in text
    await bench.close()


async def test_hung_imports_end_within_their_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hanging_module.py").write_text("import time; time.sleep(600)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    bench = Bench(tmp_path, trainer="hanging_module:run", preload_s=0.5)
    command = start("exit", code=0)
    bench.trainers.start(command)
    text = (await bench.becomes(command, "exited")).exit
    assert text.endswith("signal 9 (SIGKILL): its imports took more than 0.5 s")
    await bench.close()
