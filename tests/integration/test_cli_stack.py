"""Client and commands over a real broker and the real monitor; only the scheduler is played."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from elps.cli.main import main
from elps.cli.stack import FoundStack
from elps.client.control import Client, QueryRefused
from elps.client.http import MonitorHttp
from elps.client.reading import events_of, job_of, jobs_of, lines_of
from elps.contracts import topology
from elps.contracts.codec import encode, parse_job
from elps.contracts.errors import RetryLater
from elps.contracts.ids import JobId, WorkerId
from elps.contracts.messages import JobEvent
from elps.contracts.requests import Query, Reply
from elps.contracts.state import JobRecord, JobState
from elps.contracts.telemetry import IterationRow, IterationRows, LogLines
from elps.messaging.amqp import AmqpBus
from elps.messaging.port import Bus, Delivery, Queue
from elps.monitor.app import create
from elps.runtime.service import Context
from elps.storage.memory import MemoryStore

pytestmark = pytest.mark.integration
JOB = JobId("job-1")


def record(state: JobState, at: float, reason: str = "") -> JobRecord:
    return JobRecord(
        id=JOB,
        document=parse_job({"task": "mlp", "passes": 2}),
        state=state,
        reason=reason,
        seq=1,
        submitted_at=1.0,
        changed_at=at,
    )


def row(t: int) -> IterationRow:
    return IterationRow(
        iteration=t,
        passes=0.1,
        samples=32,
        skipped=0,
        loss=0.5,
        duration_s=0.1,
        at=5.0,
        term=1,
        plan=1,
        lr=0.1,
        workers=[],
    )


@dataclass
class Stack:
    """What runs, and a bus to make things happen with."""

    amqp_url: str
    monitor_url: str
    bus: Bus

    async def change(self, state: JobState, at: float, reason: str = "") -> None:
        event = JobEvent(
            job=JOB,
            what=state.value,
            at=at,
            state=state,
            reason=reason,
            record=record(state, at, reason),
        )
        await self.bus.publish(topology.EVENTS, topology.event_key(JOB, state.value), encode(event))

    async def train(self, *numbers: int) -> None:
        rows = IterationRows(job=JOB, rows=[row(t) for t in numbers])
        await self.bus.publish(topology.TELEMETRY, topology.telemetry_key(JOB), encode(rows))

    async def print(self, text: str) -> None:
        lines = LogLines(job=JOB, worker=WorkerId("job-1-w1"), at=6.0, lines=[text])
        await self.bus.publish(topology.TELEMETRY, topology.log_key(JOB), encode(lines))

    async def command(self, *arguments: str) -> int:
        env = {
            "ELPS_AMQP_URL": self.amqp_url,
            "ELPS_REDIS_URL": "redis://127.0.0.1:1",
            "ELPS_MONITOR_URL": self.monitor_url,
        }
        reach = FoundStack(cwd=Path("/"), env=env)
        return await asyncio.to_thread(main, list(arguments), reach=reach)


@pytest.fixture
async def stack(fresh_amqp_url: str) -> AsyncIterator[Stack]:
    bus = await AmqpBus.connect(fresh_amqp_url, name="test")
    monitor_bus = await AmqpBus.connect(fresh_amqp_url, name="monitor")
    store = MemoryStore()
    await store.hash_put(topology.JOB_INDEX, JOB, encode(record(JobState.QUEUED, 1.0, "waits")))

    async def take(delivery: Delivery) -> None:
        reply = Reply(ok=True, job=JOB, state=JobState.QUEUED, reason=delivery.routing_key)
        await bus.respond(delivery, encode(reply))

    queue = Queue(topology.SCHEDULER_JOBS_QUEUE, ((topology.JOBS, "#"),), durable=True)
    await bus.subscribe(queue, take)
    monitor = create(Context(monitor_bus, store, {"ELPS_MONITOR_PORT": "0"}))
    stop = asyncio.Event()
    running = asyncio.create_task(monitor.run(stop))
    try:
        async with asyncio.timeout(15):
            await monitor.ready.wait()
            client = Client(bus)
            while True:  # until the monitor's queue is there
                try:
                    await client.query(Query(what="job", job=JOB))
                    break
                except RetryLater:
                    continue
        yield Stack(fresh_amqp_url, monitor.url, bus)
    finally:
        stop.set()
        await running
        await monitor_bus.close()
        await bus.close()


async def test_the_monitor_tells_the_same_over_the_broker_and_over_http(stack: Stack) -> None:
    client, http = Client(stack.bus), MonitorHttp(stack.monitor_url)
    told = await client.query(Query(what="job", job=JOB))
    assert told == await asyncio.to_thread(http.job, JOB)
    assert job_of(told).state is JobState.QUEUED
    assert [j.id for j in jobs_of(await asyncio.to_thread(http.jobs))] == [JOB]
    with pytest.raises(QueryRefused, match="there is no job 'other'"):
        await client.query(Query(what="job", job="other"))
    with pytest.raises(QueryRefused, match="there is no job 'other'"):
        await asyncio.to_thread(http.job, "other")


async def test_following_gets_events_rows_and_lines_of_its_job_alone(stack: Stack) -> None:
    async with Client(stack.bus).follow(JOB, logs=True) as stream:
        await stack.bus.publish(
            topology.EVENTS,
            "job.job-10.running",
            encode(JobEvent(job=JobId("job-10"), what="running", at=1.0)),
        )
        await stack.change(JobState.RUNNING, 2.0)
        await stack.train(0, 1)
        await stack.print("hello")
        async with asyncio.timeout(10):
            items = [await anext(stream) for _ in range(4)]
    assert [type(item) for item in items] == [JobEvent, IterationRow, IterationRow, LogLines]
    assert await stream.next(0) is None


async def test_recent_events_and_lines_come_from_the_monitor(stack: Stack) -> None:
    await stack.change(JobState.RUNNING, 2.0, "all there")
    await stack.print("hello")
    http = MonitorHttp(stack.monitor_url)
    async with asyncio.timeout(10):
        while not (events := events_of(await asyncio.to_thread(http.recent_events, JOB))):
            continue
        while not (lines := lines_of(await asyncio.to_thread(http.logs, JOB))):
            continue
    assert [(e.what, e.reason) for e in events] == [("running", "all there")]
    assert [line.text for line in lines] == ["hello"]


async def test_commands_find_the_stack_by_its_variables(
    stack: Stack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "job.yaml").write_text("task: mlp\npasses: 2\n")
    assert await stack.command("submit", str(tmp_path / "job.yaml")) == 0
    assert await stack.command("pause", JOB) == 0
    assert await stack.command("jobs") == 0
    assert await stack.command("show", JOB) == 0
    told = capsys.readouterr().out
    assert "job-1  queued  submit\n" in told
    assert "job-1  queued  pause\n" in told
    assert "waits" in told
    assert await stack.command("show", "other") == 1
    assert capsys.readouterr().err == "error: there is no job 'other'\n"


async def test_watch_goes_to_the_end_over_the_broker(
    stack: Stack, capsys: pytest.CaptureFixture[str]
) -> None:
    watching = asyncio.create_task(stack.command("watch", JOB))
    n = 0
    while not watching.done():  # the watcher may come after any of these, but not after all
        await stack.train(n)
        n += 1
        if n == 20:
            await stack.change(JobState.FINISHED, 9.0, "all done")
        await asyncio.wait([watching], timeout=0.1)
    assert watching.result() == 0
    assert "finished: all done" in capsys.readouterr().out


async def test_an_address_without_a_stack_ends_with_3_in_bounded_time(
    capsys: pytest.CaptureFixture[str],
) -> None:
    nowhere = Stack("amqp://guest:secret@127.0.0.1:1/", "http://127.0.0.1:1", bus=None)  # type: ignore[arg-type]
    async with asyncio.timeout(20):
        assert await nowhere.command("kill", JOB) == 3
        assert await nowhere.command("jobs") == 3
    told = capsys.readouterr().err
    assert "secret" not in told
    assert "Traceback" not in told
    assert told.count("make status") >= 1
