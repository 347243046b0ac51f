"""The monitor as a process and on a real broker and store."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from rows import iteration_row

from elps.client.control import Client
from elps.client.http import MonitorHttp
from elps.client.reading import events_of, job_of, jobs_of, lines_of, rows_of
from elps.contracts import topology
from elps.contracts.codec import encode
from elps.contracts.ids import JobId, WorkerId
from elps.contracts.job import JobDocument
from elps.contracts.messages import JobEvent
from elps.contracts.requests import Query
from elps.contracts.state import JobRecord, JobState
from elps.contracts.telemetry import IterationRows, LogLines
from elps.messaging.amqp import AmqpBus
from elps.messaging.port import DEAD_QUEUE, REASON_HEADER, Delivery, Queue
from elps.monitor.app import Monitor, create
from elps.runtime.service import Context
from elps.storage.redis import RedisStore

pytestmark = pytest.mark.integration

BOUND_S = 20.0


def record(state: JobState = JobState.RUNNING, changed_at: float = 10.0) -> JobRecord:
    return JobRecord(
        id=JobId("j"),
        document=JobDocument(task="softmax", iterations=10),
        state=state,
        reason="",
        seq=1,
        submitted_at=1.0,
        changed_at=changed_at,
    )


def change(found: JobRecord) -> tuple[str, str, bytes]:
    what = found.state.value
    event = JobEvent(job=found.id, what=what, at=found.changed_at, state=found.state, record=found)
    return topology.EVENTS, topology.event_key(found.id, what), encode(event)


def rows(*iterations: int) -> tuple[str, str, bytes]:
    several = [iteration_row(i, workers=0) for i in iterations]
    message = IterationRows(job=JobId("j"), rows=several)
    return topology.TELEMETRY, topology.telemetry_key(JobId("j")), encode(message)


@asynccontextmanager
async def monitoring(amqp_url: str, redis_url: str) -> AsyncIterator[Monitor]:
    store = await RedisStore.connect(redis_url, timeout_s=BOUND_S)
    bus = await AmqpBus.connect(amqp_url, name="monitor", timeout_s=BOUND_S)
    monitor = create(Context(bus=bus, store=store, env={"ELPS_MONITOR_PORT": "0"}))
    stop = asyncio.Event()
    task = asyncio.create_task(monitor.run(stop))
    try:
        async with asyncio.timeout(BOUND_S):
            await monitor.ready.wait()
        yield monitor
    finally:
        stop.set()
        async with asyncio.timeout(BOUND_S):
            await task
        await bus.close()
        await store.close()


@pytest.fixture
async def bus(fresh_amqp_url: str) -> AsyncIterator[AmqpBus]:
    made = await AmqpBus.connect(fresh_amqp_url, name="test", timeout_s=BOUND_S)
    yield made
    await made.close()


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(BOUND_S):
        while not await holds():  # noqa: ASYNC110 - asked from outside, over the broker
            await asyncio.sleep(0.02)


async def test_the_client_reads_every_answer_over_a_real_broker_and_over_http(
    fresh_amqp_url: str, fresh_redis_url: str, bus: AmqpBus
) -> None:
    async with monitoring(fresh_amqp_url, fresh_redis_url) as monitor:
        async with asyncio.timeout(BOUND_S):
            await monitor.taking.wait()
        client, http = Client(bus), MonitorHttp(monitor.url)
        lines = LogLines(job=JobId("j"), worker=WorkerId("j-w1"), at=1.0, lines=["printed"])
        await bus.publish(*change(record()))
        await bus.publish(*rows(0, 1, 2))
        await bus.publish(topology.TELEMETRY, topology.log_key(JobId("j")), encode(lines))

        async def there() -> bool:
            listed = jobs_of(await client.query(Query(what="jobs")))
            if not listed:
                return False
            found = [
                await client.query(Query(what=what, job="j")) for what in ("iterations", "logs")
            ]  # type: ignore[arg-type]
            return len(rows_of(found[0])) == 3 and len(lines_of(found[1])) == 1

        await until(there)

        def over_http() -> tuple[Any, ...]:
            return http.jobs(), http.job("j"), http.iterations("j"), http.logs("j")

        asked = (
            Query(what="jobs"),
            *(Query(what=w, job="j") for w in ("job", "iterations", "logs")),
        )  # type: ignore[arg-type]
        told = await asyncio.to_thread(over_http)
        assert told == tuple([await client.query(query) for query in asked])
        assert job_of(told[1]).state is JobState.RUNNING
        assert lines_of(told[3])[0].text == "printed"
        events = events_of(await asyncio.to_thread(http.recent_events, "j"))
        assert [(e.what, e.state) for e in events] == [("running", JobState.RUNNING)]


async def test_a_hostile_message_is_buried_by_the_real_broker_too(
    fresh_amqp_url: str, fresh_redis_url: str, bus: AmqpBus
) -> None:
    dead: asyncio.Queue[Delivery] = asyncio.Queue()

    async def bury(delivery: Delivery) -> None:
        dead.put_nowait(delivery)

    await bus.subscribe(Queue(DEAD_QUEUE, durable=True), bury)
    async with monitoring(fresh_amqp_url, fresh_redis_url) as monitor:
        async with asyncio.timeout(BOUND_S):
            await monitor.taking.wait()
        keys = [
            (topology.MEMBERS, "agent"),
            (topology.EVENTS, "job.x.y"),
            (topology.TELEMETRY, "job.x"),
            (topology.QUERY, "jobs"),
        ]
        for exchange, key in keys:
            await bus.publish(exchange, key, b"\x80\x04\x8c\x02os\x94.")
            async with asyncio.timeout(BOUND_S):
                delivery = await dead.get()
            assert delivery.body == b"\x80\x04\x8c\x02os\x94."
            assert "not JSON" in delivery.headers[REASON_HEADER]
        await bus.publish(*change(record()))
        assert jobs_of(await Client(bus).query(Query(what="jobs"))) is not None


async def test_a_second_monitor_stands_by_and_answers_when_the_first_has_gone(
    fresh_amqp_url: str, fresh_redis_url: str, bus: AmqpBus
) -> None:
    client, store = Client(bus), await RedisStore.connect(fresh_redis_url, timeout_s=BOUND_S)
    async with monitoring(fresh_amqp_url, fresh_redis_url) as first:
        async with asyncio.timeout(BOUND_S):
            await first.taking.wait()
        await bus.publish(*change(record()))
        await store.hash_put(topology.JOB_INDEX, "j", encode(record()))
        second_running = monitoring(fresh_amqp_url, fresh_redis_url)
        second = await second_running.__aenter__()

        async def both_know() -> bool:
            found = [await asyncio.to_thread(MonitorHttp(m.url).jobs) for m in (first, second)]
            return all(len(jobs_of(jobs)) == 1 for jobs in found)

        await until(both_know)
        assert not second.taking.is_set()
    try:
        async with asyncio.timeout(BOUND_S):
            await second.taking.wait()
        assert [j.id for j in jobs_of(await client.query(Query(what="jobs")))] == ["j"]
    finally:
        await second_running.__aexit__(None, None, None)
        await store.close()


async def test_a_history_and_events_lie_in_a_real_store_over_a_restart(
    fresh_amqp_url: str, fresh_redis_url: str, bus: AmqpBus
) -> None:
    store = await RedisStore.connect(fresh_redis_url, timeout_s=BOUND_S)
    await store.hash_put(topology.JOB_INDEX, "j", encode(record()))
    client = Client(bus, timeout_s=BOUND_S)
    async with monitoring(fresh_amqp_url, fresh_redis_url) as monitor:
        async with asyncio.timeout(BOUND_S):
            await monitor.taking.wait()
        await bus.publish(*change(record()))
        for first in range(0, 2000, 100):
            await bus.publish(*rows(*range(first, first + 100)))

        async def taken() -> bool:
            page = await client.iterations("j", since=1990)
            all_rows = bool(page.rows) and page.rows[-1].iteration == 1999
            return all_rows and bool((await client.events("j")).events)

        await until(taken)
        before = (await client.iterations("j", limit=10_000)).rows
    assert [row.iteration for row in before][:1] == [0]
    async with monitoring(fresh_amqp_url, fresh_redis_url) as monitor:
        async with asyncio.timeout(BOUND_S):
            await monitor.taking.wait()
        assert (await client.iterations("j", limit=10_000)).rows == before
        events = await client.events("j")
        assert [event.what for event in events.events] == ["running"]
    await store.close()


async def test_a_cut_connection_is_made_again_and_what_was_missed_is_read_from_the_store(
    fresh_amqp_url: str,
    fresh_redis_url: str,
    bus: AmqpBus,
    proxy_to: Callable[[str], Awaitable[Any]],
) -> None:
    proxy = await proxy_to(fresh_amqp_url)
    store = await RedisStore.connect(fresh_redis_url, timeout_s=BOUND_S)
    async with monitoring(proxy.url, fresh_redis_url) as monitor:
        async with asyncio.timeout(BOUND_S):
            await monitor.taking.wait()
        await bus.publish(*change(record()))
        client = Client(bus)

        async def state(wanted: JobState) -> bool:
            http = MonitorHttp(monitor.url)
            return [j.state for j in jobs_of(await asyncio.to_thread(http.jobs))] == [wanted]

        await until(lambda: state(JobState.RUNNING))
        await store.hash_put(
            topology.JOB_INDEX, "j", encode(record(JobState.PAUSED, changed_at=11.0))
        )
        proxy.cut()
        await until(lambda: state(JobState.PAUSED))
        await bus.publish(*change(record(JobState.FINISHED, changed_at=12.0)))
        await until(lambda: state(JobState.FINISHED))
        assert jobs_of(await client.query(Query(what="jobs")))
    await store.close()


async def test_the_process_serves_and_leaves_in_order_on_sigterm(
    fresh_amqp_url: str, fresh_redis_url: str
) -> None:
    env = os.environ | {
        "ELPS_AMQP_URL": fresh_amqp_url,
        "ELPS_REDIS_URL": fresh_redis_url,
        "ELPS_MONITOR_PORT": "0",
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "elps.monitor", env=env, stderr=asyncio.subprocess.PIPE
    )
    try:
        assert process.stderr is not None
        url = ""
        async with asyncio.timeout(BOUND_S):
            async for line in process.stderr:
                if b"monitor_listening" in line:
                    url = line.decode().split('"url":"')[1].split('"')[0]
                    break
        assert jobs_of(await asyncio.to_thread(MonitorHttp(url).jobs)) == []
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(BOUND_S):
            rest = await process.stderr.read()
            assert await process.wait() == 0, rest
        assert b"Traceback" not in rest
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
