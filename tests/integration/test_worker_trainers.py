"""The agent's shell with a real zygote and real forks, without a bus."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from pids import alive

from elps.contracts.codec import parse_job
from elps.contracts.epoch import Term
from elps.contracts.errors import InvalidDocument
from elps.contracts.ids import JobId, ShardId, WorkerId
from elps.contracts.messages import Address, StartTrainer, StopTrainer, TrainerStatus
from elps.runtime.service import SystemClock
from elps.worker.agent.trainers import Trainers
from elps.worker.settings import Settings

BOUND_S = 20.0


def start(script: str, n: int = 1, job: str = "job", term: int = 1, **args: object) -> StartTrainer:
    document = parse_job({"task": "mlp", "iterations": 1, "task_args": {"script": script, **args}})
    return StartTrainer(
        job=JobId(job),
        document=document,
        term=Term(term, 5),
        worker=WorkerId(f"{job}-w{n}"),
        leader=Address(shard=ShardId("shard-1"), host="127.0.0.1", port=1),
        secret="s",
    )


def stop(command: StartTrainer) -> StopTrainer:
    return StopTrainer(job=command.job, term=command.term, worker=command.worker)


async def eventually(condition: Callable[[], object]) -> None:
    """Wait for what tells nobody that it happens."""
    async with asyncio.timeout(BOUND_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


class Bench:
    """Trainers with their tasks, and waits on what the beat would show."""

    def __init__(
        self, log_dir: Path, *, trainer: str = "worker_scripted_trainer:run", **given: object
    ) -> None:
        values = {"agent_id": "agent-1", "worker_slots": 3, "log_dir": log_dir, "stop_grace_s": 0.3}
        self.changed = asyncio.Event()
        self.lines: dict[str, list[str]] = {}
        path = os.pathsep.join(
            filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")])
        )
        self.trainers = Trainers(
            Settings(**{**values, **given}),  # type: ignore[arg-type]
            SystemClock(),
            {**os.environ, "PYTHONPATH": path, "ELPS_AMQP_URL": "amqp://secret"},
            self.changed.set,
            trainer=trainer,
            preload=("numpy",),
        )
        self.tasks = [
            asyncio.ensure_future(self.trainers.keep_zygote()),
            asyncio.ensure_future(self.trainers.keep_time()),
        ]

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(BOUND_S):
            while not condition():
                for task in self.tasks:
                    if task.done():
                        task.result()
                self.changed.clear()
                await self.changed.wait()

    def status(self, command: StartTrainer) -> TrainerStatus | None:
        return next((s for s in self.trainers.statuses() if s.worker == command.worker), None)

    async def becomes(self, command: StartTrainer, state: str) -> TrainerStatus:
        await self.until(lambda: (s := self.status(command)) and s.state == state)
        status = self.status(command)
        assert status is not None
        return status

    async def gone(self, command: StartTrainer) -> None:
        await self.until(lambda: self.status(command) is None)

    def printed(self, command: StartTrainer) -> list[str]:
        for key, lines in self.trainers.take_printed():
            self.lines.setdefault(key.worker, []).extend(lines)
        return self.lines.get(command.worker, [])

    async def prints(self, command: StartTrainer, line: str) -> list[str]:
        await eventually(lambda: line in self.printed(command))
        return self.printed(command)

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.wait(self.tasks, timeout=BOUND_S)
        self.trainers.take_printed()


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    it = Bench(tmp_path)
    yield it
    await it.close()


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


async def test_leaving_before_the_zygote_is_ready_does_not_wait_for_its_imports(
    bench: Bench,
) -> None:
    command = start("wait")
    bench.trainers.start(command)
    async with asyncio.timeout(BOUND_S):
        await bench.trainers.leave()
    assert bench.trainers.leaving
    assert bench.status(command) is not None


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
