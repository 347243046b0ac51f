"""The whole agent on the memory bus, with a real zygote and real forks."""

from __future__ import annotations

import asyncio
import os
import sys
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from pids import alive
from structlog.testing import capture_logs

from elps.contracts import topology
from elps.contracts.codec import decode, encode, parse_job
from elps.contracts.epoch import Term
from elps.contracts.ids import AgentId, JobId, ShardId, WorkerId
from elps.contracts.messages import (
    Address,
    AgentBeat,
    JobEvent,
    StartTrainer,
    StopTrainer,
    TrainerStatus,
)
from elps.contracts.state import JobRecord, JobState
from elps.contracts.telemetry import LogLines
from elps.messaging.memory import MemoryBroker, MemoryBus
from elps.messaging.port import DEAD_QUEUE, Delivery, Queue
from elps.runtime.service import Context
from elps.storage.memory import MemoryStore
from elps.worker.app import WorkerAgent

HERE = Path(__file__).parent
BOUND_S = 20.0
AGENT = AgentId("agent-1")


def start(script: str, n: int = 1, term: int = 1, **args: object) -> StartTrainer:
    return StartTrainer(
        job=JobId("job"),
        document=parse_job(
            {"task": "mlp", "iterations": 1, "task_args": {"script": script, **args}}
        ),
        term=Term(term, 5),
        worker=WorkerId(f"job-w{n}"),
        leader=Address(shard=ShardId("shard-1"), host="127.0.0.1", port=1),
        secret="s",
    )


def stop(command: StartTrainer) -> StopTrainer:
    return StopTrainer(job=command.job, term=command.term, worker=command.worker)


def environment() -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
    return {"ELPS_AGENT_ID": AGENT, "PYTHONPATH": path, "ELPS_BEAT_S": "0.2"}


async def eventually(condition: Callable[[], object]) -> None:
    """Wait for what tells nobody that it happens."""
    async with asyncio.timeout(BOUND_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


class Stage:
    """An agent, and what a scheduler and a monitor would see of it."""

    def __init__(self, log_dir: Path) -> None:
        self.broker = MemoryBroker()
        self.bus, self.other = MemoryBus(self.broker), MemoryBus(self.broker)
        self.beats: list[AgentBeat] = []
        self.lines: list[str] = []
        self.dead: list[Delivery] = []
        self.news = asyncio.Event()
        self.stop = asyncio.Event()
        env = {**environment(), "ELPS_LOG_DIR": str(log_dir)}
        context = Context(bus=self.bus, store=MemoryStore(), env=env)
        self.agent = WorkerAgent(context, trainer="worker_scripted_trainer:run", preload=("numpy",))

    async def raise_curtain(self) -> None:
        members = Queue("test.members", ((topology.MEMBERS, topology.AGENT_BEAT),))
        logs = Queue("test.logs", ((topology.TELEMETRY, "log.#"),))
        dead = Queue(DEAD_QUEUE, ((DEAD_QUEUE, ""),), durable=True)
        await self.other.subscribe(members, self._on_beat)
        await self.other.subscribe(logs, self._on_lines)
        await self.other.subscribe(dead, self._on_dead)
        self.running = asyncio.ensure_future(self.agent.run(self.stop))
        await self.until(lambda: self.beats)

    async def _on_beat(self, delivery: Delivery) -> None:
        self.beats.append(decode(delivery.body, AgentBeat))
        self.news.set()

    async def _on_lines(self, delivery: Delivery) -> None:
        self.lines += decode(delivery.body, LogLines).lines
        self.news.set()

    async def _on_dead(self, delivery: Delivery) -> None:
        self.dead.append(delivery)
        self.news.set()

    async def send(self, command: StartTrainer | StopTrainer) -> None:
        await self.other.publish(topology.COMMANDS, AGENT, encode(command))

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(BOUND_S):
            while not condition():
                if self.running.done():
                    self.running.result()
                self.news.clear()
                await self.news.wait()

    def shown(self, command: StartTrainer) -> TrainerStatus | None:
        return next((t for t in self.beats[-1].trainers if t.worker == command.worker), None)

    async def becomes(self, command: StartTrainer, state: str) -> TrainerStatus:
        await self.until(lambda: (t := self.shown(command)) and t.state == state)
        status = self.shown(command)
        assert status is not None
        return status

    async def close(self) -> None:
        self.stop.set()
        async with asyncio.timeout(BOUND_S):
            await self.running
        await self.bus.close()
        await self.other.close()


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    it = Stage(tmp_path)
    await it.raise_curtain()
    yield it
    await it.close()


async def test_a_trainer_goes_through_the_beats_and_its_lines_through_telemetry(
    stage: Stage, tmp_path: Path
) -> None:
    command = start("exit", code=3)
    await stage.send(command)
    status = await stage.becomes(command, "exited")
    assert status.exit == "exit code 3\nto stderr"
    await stage.until(lambda: "[elps: exit code 3]" in stage.lines)
    assert "hello from job-w1" in stage.lines
    assert (tmp_path / "jobs" / "job" / "job-w1.log").exists()
    states = [t.state for beat in stage.beats for t in beat.trainers]
    assert states == sorted(states, key=["starting", "running", "exited"].index)
    await stage.send(stop(command))
    await stage.until(lambda: not stage.beats[-1].trainers)


async def test_the_lines_of_a_deleted_job_go_and_those_of_one_that_trains_stay(
    stage: Stage, tmp_path: Path
) -> None:
    logs = tmp_path / "jobs"
    command = start("exit", code=0)
    for name in (command.job, "deleted", "other"):
        (logs / name).mkdir(parents=True)
        (logs / name / "w1.log").write_text("a line\n")
    await stage.send(command)
    await stage.becomes(command, "exited")
    for job in (command.job, JobId("deleted")):
        event = JobEvent(job=job, what=topology.DELETED, at=1.0)
        await stage.other.publish(
            topology.EVENTS, topology.event_key(job, event.what), encode(event)
        )
    await eventually(lambda: sorted(path.name for path in logs.iterdir()) == [command.job, "other"])
    await stage.send(stop(command))
    await stage.until(lambda: not stage.beats[-1].trainers)


def deletion(job: JobId, terms: int) -> JobEvent:
    """Of a job whose newest term was this."""
    record = JobRecord(
        id=job,
        document=parse_job({"task": "mlp", "iterations": 1}),
        state=JobState.KILLED,
        reason="",
        seq=1,
        terms=terms,
        submitted_at=0.0,
        changed_at=1.0,
        ended_at=1.0,
        deleted_at=2.0,
    )
    return JobEvent(job=job, what=topology.DELETED, at=2.0, record=record)


@pytest.mark.parametrize(("terms", "kept"), [(3, False), (2, True)], ids=["of it", "of a former"])
async def test_a_job_that_is_deleted_while_its_trainer_ends_leaves_no_lines(
    stage: Stage, tmp_path: Path, terms: int, kept: bool
) -> None:
    command = start("finish_on_terminate", term=3)
    log = tmp_path / "jobs" / command.job / "job-w1.log"
    await stage.send(command)
    await stage.until(lambda: "ready" in stage.lines)
    event = deletion(command.job, terms)
    await stage.other.publish(
        topology.EVENTS, topology.event_key(event.job, event.what), encode(event)
    )
    await eventually(lambda: (command.job in stage.agent._deleted) != kept)
    assert log.exists()
    await stage.send(stop(command))
    await stage.until(lambda: "gave back" in stage.lines)
    await stage.until(lambda: not stage.beats[-1].trainers)
    await eventually(lambda: not stage.agent._deleted)
    assert log.exists() == kept
    assert log.parent.exists() == kept


async def test_no_path_outside_is_removed_whatever_an_event_names(
    stage: Stage, tmp_path: Path
) -> None:
    (tmp_path / "jobs" / "one").mkdir(parents=True)
    event = JobEvent(job=JobId(".."), what=topology.DELETED, at=1.0)
    await stage.other.publish(topology.EVENTS, "job.x.deleted", encode(event))
    await stage.until(lambda: stage.dead)
    assert (tmp_path / "jobs" / "one").is_dir()


async def test_beats_count_up_and_say_who_and_how_large(stage: Stage) -> None:
    command = start("wait")
    await stage.send(command)
    status = await stage.becomes(command, "running")
    await stage.until(lambda: stage.beats[-1].seq >= 3)
    beat = stage.beats[-1]
    assert [b.seq for b in stage.beats] == list(range(1, beat.seq + 1))
    assert (beat.agent, beat.slots, beat.pid, beat.leaving) == (AGENT, 1, os.getpid(), False)
    assert len({b.incarnation for b in stage.beats}) == 1
    assert beat.rss_bytes > 1e6
    assert status.rss_bytes > 1e6


async def test_doubled_and_late_commands_make_one_trainer_and_resurrect_none(stage: Stage) -> None:
    command = start("wait")
    for _ in range(3):
        await stage.send(command)
    pid = (await stage.becomes(command, "running")).pid
    await stage.send(command)
    await stage.send(stop(command))
    await stage.until(lambda: not stage.beats[-1].trainers)
    await stage.send(command)
    await stage.send(stop(start("wait", n=2)))
    await stage.send(start("wait", n=2))
    last = start("wait", n=3)
    await stage.send(last)
    assert (await stage.becomes(last, "running")).pid != pid
    assert [t.worker for t in stage.beats[-1].trainers] == ["job-w3"]
    assert not alive(pid)


async def test_a_newer_term_replaces_the_trainers_of_the_older(stage: Stage) -> None:
    old, new = start("ignore", n=1, term=1), start("wait", n=2, term=2)
    await stage.send(old)
    pid = (await stage.becomes(old, "running")).pid
    await stage.send(new)
    await stage.becomes(new, "running")
    assert stage.shown(old) is None
    assert not alive(pid)


async def test_one_start_too_many_is_refused_with_its_reason(stage: Stage) -> None:
    first, second = start("wait", n=1), start("wait", n=2)
    await stage.send(first)
    await stage.send(second)
    assert "all 1 slots of agent agent-1" in (await stage.becomes(second, "exited")).exit


@pytest.mark.parametrize("body", [b"not json", b'{"type":"host_job"}', b"[]"])
async def test_a_command_that_cannot_be_read_goes_to_the_dead_letters(
    stage: Stage, body: bytes
) -> None:
    await stage.other.publish(topology.COMMANDS, AGENT, body)
    await stage.until(lambda: stage.dead)
    command = start("wait")
    await stage.send(command)
    await stage.becomes(command, "running")


async def test_an_outage_of_the_broker_ends_nothing(stage: Stage) -> None:
    command = start("wait")
    await stage.send(command)
    pid = (await stage.becomes(command, "running")).pid
    with capture_logs() as logged:
        stage.broker.up.clear()
        await eventually(
            lambda: sum(entry["event"] == "repeated_work_failed" for entry in logged) >= 2
        )
    stage.broker.up.set()
    before = len(stage.beats)
    await stage.until(lambda: len(stage.beats) > before)
    status = stage.shown(command)
    assert status is not None
    assert (status.state, status.pid) == ("running", pid)


async def test_an_agent_that_leaves_says_so_and_how_its_trainers_ended(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    await stage.raise_curtain()
    command = start("finish_on_terminate")
    await stage.send(command)
    await stage.until(lambda: "ready" in stage.lines)
    zygote = stage.agent.zygote_pid
    assert zygote is not None
    stage.stop.set()
    async with asyncio.timeout(BOUND_S):
        await stage.running
    await stage.until(lambda: "[elps: exit code 0]" in stage.lines)
    assert any(b.leaving and b.trainers[0].state == "running" for b in stage.beats)
    assert stage.beats[-1].leaving
    assert stage.beats[-1].trainers[0].exit == "exit code 0"
    assert "gave back" in stage.lines
    assert not alive(zygote)
    await stage.bus.close()
    await stage.other.close()


def marked(mark: str) -> list[int]:
    """All processes with this word in the environment that they were started with."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environ = (entry / "environ").read_bytes()
            except OSError:
                continue
            if mark.encode() in environ and alive(int(entry.name)):
                found.append(int(entry.name))
    return found


async def test_an_agent_killed_leaves_no_process_behind() -> None:
    mark = f"ELPS_TEST_MARK={uuid.uuid4().hex}"
    name, _, value = mark.partition("=")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(HERE / "worker_scripted_agent.py"),
        *("wait", "ignore", "descendants"),
        env={**os.environ, **environment(), name: value},
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    async with asyncio.timeout(BOUND_S):
        while not (line := await process.stdout.readline()).startswith(b"pids "):
            assert line, "the agent ended"
    # Agent, zygote, three trainers, three descendants.
    await eventually(lambda: len(marked(mark)) == 8)
    assert set(map(int, line.split()[1:])) < set(marked(mark))
    process.kill()
    await process.wait()
    await eventually(lambda: not marked(mark))
