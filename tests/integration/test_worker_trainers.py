"""The agent's shell with a real zygote and real forks, without a bus."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import time
from pathlib import Path

import pytest
from agent_bench import BOUND_S, Bench, bench, start, stop
from pids import alive

from elps.contracts.errors import InvalidDocument

__all__ = ["bench"]


async def test_a_trainer_starts_prints_and_exits_with_its_code(
    bench: Bench, tmp_path: Path
) -> None:
    command = start("exit", code=3)
    bench.trainers.start(command)
    first = bench.status(command)
    assert first is not None
    assert first.state == "starting"
    status = await bench.becomes(command, "exited")
    assert status.exit == "exit code 3\nto stderr"
    assert sorted(bench.printed(command)) == [
        "[elps: exit code 3]",
        "hello from job-w1",
        "to stderr",
    ]
    log = (tmp_path / "jobs" / "job" / "job-w1.log").read_text().splitlines()
    assert log == bench.printed(command)


async def test_an_exception_is_reported_with_the_end_of_its_traceback(bench: Bench) -> None:
    command = start("raise")
    bench.trainers.start(command)
    lines = (await bench.becomes(command, "exited")).exit.splitlines()
    assert lines[0] == "exit code 1"
    assert lines[-1] == "ValueError: the loss is a banana"
    assert len(lines) == 21
    assert any("in _raise" in line for line in lines)


async def test_system_exit_with_a_reason_is_an_exit_with_that_reason(bench: Bench) -> None:
    command = start("sys_exit")
    bench.trainers.start(command)
    assert (await bench.becomes(command, "exited")).exit == "exit code 1\na reason"


async def test_death_by_signal_names_the_signal_and_shows_where(bench: Bench) -> None:
    command = start("segfault")
    bench.trainers.start(command)
    text = (await bench.becomes(command, "exited")).exit
    assert text.startswith("signal 11 (SIGSEGV)\n")
    assert "in _segfault" in text


async def test_kill_from_outside_is_seen(bench: Bench) -> None:
    command = start("wait")
    bench.trainers.start(command)
    os.kill((await bench.becomes(command, "running")).pid, signal.SIGKILL)
    assert (await bench.becomes(command, "exited")).exit == "signal 9 (SIGKILL)"


async def test_a_stopped_trainer_is_ended_and_forgotten(bench: Bench) -> None:
    command = start("wait")
    bench.trainers.start(command)
    pid = (await bench.becomes(command, "running")).pid
    bench.trainers.stop(stop(command))
    await bench.gone(command)
    assert not alive(pid)


async def test_a_trainer_that_ignores_sigterm_is_killed_after_the_grace(bench: Bench) -> None:
    command = start("ignore")
    bench.trainers.start(command)
    await bench.prints(command, "ready")
    status = bench.status(command)
    assert status is not None
    began = time.monotonic()
    bench.trainers.stop(stop(command))
    await bench.gone(command)
    assert 0.3 <= time.monotonic() - began < 5.0
    assert not alive(status.pid)


async def test_a_trainer_frozen_by_sigstop_is_ended_too(bench: Bench) -> None:
    command = start("wait")
    bench.trainers.start(command)
    pid = (await bench.becomes(command, "running")).pid
    os.kill(pid, signal.SIGSTOP)
    bench.trainers.stop(stop(command))
    await bench.gone(command)
    assert not alive(pid)


async def test_leaving_lets_trainers_finish_and_keeps_their_exits(bench: Bench) -> None:
    command = start("finish_on_terminate")
    bench.trainers.start(command)
    await bench.prints(command, "ready")
    async with asyncio.timeout(BOUND_S):
        await bench.trainers.leave()
    status = bench.status(command)
    assert status is not None
    assert status.exit == "exit code 0"
    assert not status.done, "it is its agent that leaves"
    assert "gave back" in bench.printed(command)


@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_nothing_that_a_trainer_started_outlives_it(bench: Bench, how: str) -> None:
    command = start("descendants")
    bench.trainers.start(command)
    lines = await bench.prints(command, "ready")
    pids = [int(line.split()[1]) for line in lines if line.startswith("child ")]
    assert len(pids) == 3
    assert all(alive(pid) for pid in pids)
    status = bench.status(command)
    assert status is not None
    if how == "kill":
        os.kill(status.pid, signal.SIGKILL)
        await bench.becomes(command, "exited")
    bench.trainers.stop(stop(command))
    await bench.gone(command)
    assert not any(alive(pid) for pid in pids)


async def test_a_trainer_gets_a_clean_process(bench: Bench) -> None:
    first, second = start("tell", n=1, pad="x" * 1_000_000), start("tell", n=2)
    bench.trainers.start(first)
    bench.trainers.start(second)
    for command in (first, second):
        assert (await bench.becomes(command, "exited")).exit == "exit code 0"
    lines = bench.printed(first)
    assert lines[0] == "fds [0, 1, 2, 3]"  # 3: the listing itself
    assert {
        "threads 1",
        "session True",
        "amqp False",
        "blas 1",
        "term True",
        "mask set()",
        "path False False",
        "args 1000000",
    } <= set(lines)
    randoms = [next(w for w in ls if w.startswith("random")) for ls in bench.lines.values()]
    assert len(set(" ".join(randoms).split())) == 5, "two trainers drew the same"


async def test_a_trainer_that_prints_without_end_hurts_nobody(bench: Bench, tmp_path: Path) -> None:
    command = start("flood", chunks=100)
    bench.trainers.start(command)
    worst = 0.0  # s of processor in one turn of the event loop, whatever else the machine does
    async with asyncio.timeout(BOUND_S):
        while (status := bench.status(command)) and status.state != "exited":
            before = time.thread_time()
            await asyncio.sleep(0.005)
            worst = max(worst, time.thread_time() - before)
            bench.printed(command)
    assert status is not None
    assert status.exit == "exit code 4\nlast word"
    assert worst < 0.1, "the event loop was held up"
    lines = bench.printed(command)
    assert sum(map(len, lines)) < 10_000_000
    assert any("bytes left out" in line for line in lines)
    files = list((tmp_path / "jobs" / "job").iterdir())
    assert sum(f.stat().st_size for f in files) < 10_000_000


async def test_a_full_log_file_is_kept_once_and_begun_anew(tmp_path: Path) -> None:
    bench = Bench(tmp_path, log_max_bytes=4096)
    command = start("flood", chunks=1)
    bench.trainers.start(command)
    await bench.becomes(command, "exited")
    bench.printed(command)
    names = sorted(f.name for f in (tmp_path / "jobs" / "job").iterdir())
    assert names == ["job-w1.log", "job-w1.log.1"]
    assert all(f.stat().st_size <= 4200 for f in (tmp_path / "jobs" / "job").iterdir())
    await bench.close()


@pytest.mark.parametrize("job", ["../x", "a/b", "", "x" * 300])
async def test_ids_that_are_no_file_names_are_refused(bench: Bench, job: str) -> None:
    with pytest.raises(InvalidDocument):
        bench.trainers.start(start("exit", job=job, code=0))
    assert bench.trainers.statuses() == []


async def test_fifty_starts_and_stops_leave_nothing_behind(bench: Bench) -> None:
    warm = start("exit", n=0, code=0)
    bench.trainers.start(warm)
    await bench.becomes(warm, "exited")
    bench.trainers.stop(stop(warm))
    bench.printed(warm)
    zygote = bench.trainers.zygote_pid
    gc.collect()

    def held() -> tuple[int, int, list[str]]:
        theirs = len(list(Path(f"/proc/{zygote}/fd").iterdir()))
        children = Path(f"/proc/{zygote}/task/{zygote}/children").read_text().split()
        return len(list(Path("/proc/self/fd").iterdir())), theirs, children

    before = held()
    pids = []
    for n in range(1, 51):
        command = start("wait" if n % 2 else "exit", n=n, code=0)
        bench.trainers.start(command)
        status = await bench.becomes(command, "running" if n % 2 else "exited")
        pids.append(status.pid)
        bench.trainers.stop(stop(command))
        await bench.gone(command)
        bench.printed(command)
    gc.collect()
    assert held() == before
    assert before[2] == []
    assert not any(alive(pid) for pid in pids)


def test_it_works_on_uvloop_as_well(tmp_path: Path) -> None:
    uvloop = pytest.importorskip("uvloop")

    async def scenario() -> None:
        bench = Bench(tmp_path)
        command, other = start("raise", n=1), start("ignore", n=2)
        bench.trainers.start(command)
        bench.trainers.start(other)
        assert "banana" in (await bench.becomes(command, "exited")).exit
        await bench.becomes(other, "running")
        bench.trainers.stop(stop(other))
        await bench.gone(other)
        await bench.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario())
