"""The whole monitor on the in-memory bus and store, asked over real HTTP and over the bus."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import msgspec
import orjson
import pytest

from elps.client.control import Client, QueryRefused
from elps.contracts import topology
from elps.contracts.codec import encode
from elps.contracts.epoch import Term
from elps.contracts.errors import SetupError
from elps.contracts.ids import AgentId, JobId, ShardId, WorkerId
from elps.contracts.job import JobDocument
from elps.contracts.messages import (
    AgentBeat,
    Answer,
    HostedJob,
    IterationRow,
    IterationRows,
    JobEvent,
    LogLines,
    Query,
    SchedulerBeat,
    ShardBeat,
    WorkerTiming,
)
from elps.contracts.state import Allocation, JobRecord, JobState, Progress
from elps.messaging.memory import MemoryBroker, MemoryBus
from elps.messaging.port import DEAD_QUEUE, REASON_HEADER, Delivery, Queue
from elps.monitor.app import Monitor, create
from elps.runtime.service import Context
from elps.storage.memory import MemoryStore

TERM = Term(1, 5)
SECRET = "very-secret-9f31"
WAIT_S = 10.0


@dataclass
class Stack:
    """A running monitor with what surrounds it."""

    broker: MemoryBroker
    bus: MemoryBus
    store: MemoryStore
    monitor: Monitor
    http: httpx.AsyncClient
    seq: int = field(default=0)

    async def publish(
        self, exchange: str, key: str, message: object, message_id: str | None = None
    ) -> None:
        body = message if isinstance(message, bytes) else encode(message)
        await self.bus.publish(exchange, key, body, message_id=message_id)

    async def change(self, record: JobRecord) -> None:
        what = record.state.value
        event = JobEvent(
            job=record.id, what=what, at=record.changed_at, state=record.state, record=record
        )
        await self.publish(topology.EVENTS, topology.event_key(record.id, what), event)

    async def rows(self, job: str, *rows: IterationRow) -> None:
        message = IterationRows(job=JobId(job), rows=list(rows))
        await self.publish(topology.TELEMETRY, topology.telemetry_key(JobId(job)), message)

    async def beats(self, version: str) -> None:
        self.seq += 1
        known: dict[str, Any] = {
            "incarnation": "i",
            "seq": self.seq,
            "host": "h",
            "pid": 1,
            "version": version,
        }
        progress = Progress(iteration=3, iterations=10, loss=0.5)
        hosted = HostedJob(
            job=JobId("j"), term=TERM, leads=True, phase="running", progress=progress
        )
        shard = ShardBeat(
            shard=ShardId("s1"), data_host="127.0.0.1", data_port=1, slots=4, jobs=[hosted], **known
        )
        agent = AgentBeat(agent=AgentId("a1"), slots=1, trainers=[], **known)
        await self.publish(topology.MEMBERS, topology.SHARD_BEAT, shard)
        await self.publish(topology.MEMBERS, topology.AGENT_BEAT, agent)
        await self.publish(
            topology.MEMBERS, topology.SCHEDULER_BEAT, SchedulerBeat(jobs={}, **known)
        )

    async def get(self, path: str, **parameters: Any) -> Any:
        response = await self.http.get(path, params=parameters or None)
        assert response.status_code == 200, response.text
        return response.json()

    async def until(self, holds: Callable[[], Awaitable[bool]]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not await holds():  # noqa: ASYNC110 - asked from outside, over HTTP
                await asyncio.sleep(0.01)

    async def settled(self) -> None:
        """Wait until everything published so far was taken or refused."""

        async def idle() -> bool:
            queues = [s._queue for s in self.monitor_bus.subscriptions]
            return not any(q.ready or any(c.held for c in q.consumers) for q in queues)

        await self.until(idle)

    @property
    def monitor_bus(self) -> MemoryBus:
        bus = self.monitor.desk.bus
        assert isinstance(bus, MemoryBus)
        return bus


@asynccontextmanager
async def running(
    env: dict[str, str] | None = None,
    store: MemoryStore | None = None,
    broker: MemoryBroker | None = None,
) -> AsyncIterator[Stack]:
    broker, store = broker or MemoryBroker(), store or MemoryStore()
    bus = MemoryBus(broker, "monitor")
    monitor = create(Context(bus=bus, store=store, env={"ELPS_MONITOR_PORT": "0"} | (env or {})))
    stop = asyncio.Event()
    task = asyncio.create_task(monitor.run(stop))
    async with asyncio.timeout(WAIT_S):
        await monitor.ready.wait()
        await monitor.taking.wait()
    try:
        async with httpx.AsyncClient(base_url=monitor.url, trust_env=False) as http:
            yield Stack(broker, MemoryBus(broker, "test"), store, monitor, http)
    finally:
        stop.set()
        async with asyncio.timeout(WAIT_S):
            await task


@pytest.fixture
async def stack() -> AsyncIterator[Stack]:
    async with running() as made:
        yield made


def record(job: str = "j", state: JobState = JobState.RUNNING, **fields: Any) -> JobRecord:
    allocation = Allocation(
        term=TERM, shards=[ShardId("s1")], workers={WorkerId(f"{job}-w1"): AgentId("a1")}
    )
    known: dict[str, Any] = {
        "document": JobDocument(task="softmax", iterations=10),
        "reason": "all are ready",
        "seq": 1,
        "submitted_at": 1.0,
        "changed_at": 10.0,
        "terms": 1,
        "secret": SECRET,
        "allocation": allocation,
    } | fields
    return JobRecord(id=JobId(job), state=state, **known)


def row(iteration: int, workers: int = 2) -> IterationRow:
    timings = [
        WorkerTiming(
            worker=WorkerId(f"j-w{i + 1}"),
            samples=16,
            compute_s=0.1,
            pull_s=0.02,
            wait_s=0.03,
            push_s=0.04,
            lease_s=0.05,
        )
        for i in range(workers)
    ]
    return IterationRow(
        iteration=iteration,
        passes=0.5,
        samples=32,
        skipped=0,
        loss=0.5,
        duration_s=0.5,
        at=1.0,
        term=1,
        plan=1,
        lr=0.1,
        workers=timings,
    )


async def test_every_question_has_the_same_answer_over_http_and_over_the_bus(stack: Stack) -> None:
    await stack.change(record())
    await stack.beats("1")
    await stack.rows("j", *(row(i) for i in range(6)))
    lines = LogLines(job=JobId("j"), worker=WorkerId("j-w1"), at=1.0, lines=["one", "two"])
    await stack.publish(topology.TELEMETRY, topology.log_key(JobId("j")), lines)
    await stack.settled()
    client = Client(stack.bus)
    asked = {
        "/api/jobs": Query(what="jobs"),
        "/api/jobs/j": Query(what="job", job="j"),
        "/api/jobs/j/iterations?since=2&limit=3": Query(
            what="iterations", job="j", since=2, limit=3
        ),
        "/api/jobs/j/logs?since=1": Query(what="logs", job="j", since=1),
    }
    for path, query in asked.items():
        assert await client.query(query) == await stack.get(path), path
    for path, what in (("/api/workers", "workers"), ("/api/shards", "shards")):
        over_http, over_bus = await stack.get(path), await client.query(Query(what=what))  # type: ignore[arg-type]
        for member in over_http[what] + over_bus[what]:
            del member["heard_s"]
        assert over_http == over_bus
    assert (await stack.get("/api/jobs/j"))["iteration"] == 3
    assert [
        r["iteration"] for r in (await stack.get("/api/jobs/j/iterations", since=2))["rows"]
    ] == [2, 3, 4, 5]
    assert [line["text"] for line in (await stack.get("/api/jobs/j/logs"))["lines"]] == [
        "one",
        "two",
    ]
    health = await client.query(Query(what="health"))
    assert health == (await stack.http.get("/healthz")).json()


async def test_records_are_read_at_the_start_and_when_one_is_missed() -> None:
    store = MemoryStore()
    await store.hash_put(topology.JOB_INDEX, "old", encode(record("old", JobState.FINISHED)))
    await store.hash_put(topology.JOB_INDEX, "broken", b"\x80\x04pickle")
    async with running(store=store) as stack:
        await stack.until(lambda: _listed(stack, {"old"}))
        await store.hash_put(topology.JOB_INDEX, "missed", encode(record("missed", seq=2)))
        await stack.rows("missed", row(0))

        async def read() -> bool:
            return bool((await stack.get("/api/jobs"))["jobs"][-1]["task"] == "softmax")

        await stack.until(lambda: _listed(stack, {"old", "missed"}))
        await stack.until(read)
        assert len((await stack.get("/api/jobs/missed/iterations"))["rows"]) == 1
        await store.hash_put(
            topology.JOB_INDEX, "asked", encode(record("asked", JobState.KILLED, seq=3))
        )
        assert (await stack.get("/api/jobs/asked"))["state"] == "killed"
        assert stack.monitor.desk.refused["store"] >= 1


async def _listed(stack: Stack, wanted: set[str]) -> bool:
    return {j["id"] for j in (await stack.get("/api/jobs"))["jobs"]} == wanted


async def test_unknown_jobs_and_bad_parameters_are_answered_with_a_reason(stack: Stack) -> None:
    await stack.change(record())
    await stack.settled()
    for path in ("/api/jobs/nobody", "/api/jobs/nobody/iterations", "/api/jobs/nobody/logs"):
        response = await stack.http.get(path)
        assert (response.status_code, response.json()) == (
            404,
            {"reason": "there is no job 'nobody'"},
        )
    for path in (
        "/api/jobs/j/iterations?since=-1",
        "/api/jobs/j/iterations?limit=0",
        "/api/jobs/j/iterations?limit=1000000",
        "/api/jobs/j/logs?since=many",
        "/api/jobs?limit=-5",
        "/api/jobs/a.%23",
        "/api/jobs/" + "x" * 300,
    ):
        response = await stack.http.get(path)
        assert response.status_code == 422, path
        assert response.json()["reason"]
    assert (await stack.http.get("/api/nothing")).json() == {"reason": "Not Found"}
    with pytest.raises(QueryRefused, match="there is no job 'nobody'"):
        await Client(stack.bus).query(Query(what="job", job="nobody"))


async def test_while_the_store_is_away_known_jobs_are_answered_and_unknown_ones_say_so(
    stack: Stack,
) -> None:
    await stack.change(record())
    await stack.settled()
    stack.store.stop()
    assert (await stack.get("/api/jobs/j"))["state"] == "running"
    response = await stack.http.get("/api/jobs/nobody")
    assert response.status_code == 503
    assert "store" in response.json()["reason"]

    async def shown() -> bool:
        parts = (await stack.http.get("/healthz")).json()["parts"]
        return bool(parts["store"]["status"] == "degraded")

    await stack.until(shown)


async def test_health_is_200_only_when_all_is_there(stack: Stack) -> None:
    response = await stack.http.get("/healthz")
    assert response.status_code == 503
    assert response.json()["status"] == "degraded"

    async def healthy() -> bool:
        await stack.beats(stack.monitor.desk.version)
        return (await stack.http.get("/healthz")).status_code == 200

    await stack.until(healthy)
    report = await stack.get("/healthz")
    assert set(report["parts"]) == {"broker", "store", "scheduler", "shards", "workers", "versions"}
    stack.broker.stop()
    response = await stack.http.get("/healthz")
    assert (response.status_code, response.json()["parts"]["broker"]["status"]) == (503, "degraded")
    stack.broker.start()


HOSTILE = [
    b"",
    b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00\x8c\x02os\x94.",
    b"{}",
    b"[" * 3000,
    b'{"type":"event","job":"../x","what":"running","at":1}',
    b'{"type":"iterations","job":"j","rows":[{"iteration":-1}]}',
    b'{"type":"shard","shard":"a.#"}',
    b'{"what":"job","job":"a/b"}',
    b'{"what":"everything"}',
    b"\xff" * 1000,
]


@pytest.mark.parametrize(
    ("exchange", "key"),
    [
        (topology.MEMBERS, "shard"),
        (topology.EVENTS, "job.j.running"),
        (topology.TELEMETRY, "job.j"),
        (topology.TELEMETRY, "log.j"),
        (topology.QUERY, "job"),
    ],
)
async def test_hostile_messages_are_buried_with_their_reason_and_harm_nothing(
    stack: Stack, exchange: str, key: str
) -> None:
    await stack.change(record())
    await stack.settled()
    before = await stack.get("/api/jobs")
    dead: list[Delivery] = []
    arrived = asyncio.Event()

    async def bury(delivery: Delivery) -> None:
        dead.append(delivery)
        if len(dead) == len(HOSTILE):
            arrived.set()

    await stack.bus.subscribe(Queue(DEAD_QUEUE, durable=True), bury)
    for body in HOSTILE:
        await stack.publish(exchange, key, body)
    async with asyncio.timeout(WAIT_S):
        await arrived.wait()
    assert sorted(d.body for d in dead) == sorted(HOSTILE)
    assert all(d.headers[REASON_HEADER] for d in dead)
    assert sum(stack.monitor.desk.refused.values()) == len(HOSTILE)
    assert await stack.get("/api/jobs") == before
    await stack.rows("j", row(0))
    await stack.settled()
    assert len((await stack.get("/api/jobs/j/iterations"))["rows"]) == 1, (
        "the next message is handled"
    )


async def test_a_question_that_cannot_be_read_is_answered_too(stack: Stack) -> None:
    body = await stack.bus.request(
        topology.QUERY, "job", b'{"what":"iterations","job":"j","limit":0}'
    )
    answer = msgspec.json.decode(body, type=Answer)
    assert not answer.ok
    assert "limit: expected 1 to" in answer.reason


async def test_a_message_delivered_twice_counts_once(stack: Stack) -> None:
    await stack.change(record())
    lines = LogLines(job=JobId("j"), worker=WorkerId("j-w1"), at=1.0, lines=["once"])
    for _ in range(3):
        await stack.publish(topology.TELEMETRY, topology.log_key(JobId("j")), lines, "same-id")
        await stack.settled()
        await stack.rows("j", row(0))
    await stack.settled()
    assert [line["text"] for line in (await stack.get("/api/jobs/j/logs"))["lines"]] == ["once"]
    assert len((await stack.get("/api/jobs/j/iterations"))["rows"]) == 1


# --- events ---


async def _events(response: httpx.Response) -> AsyncIterator[dict[str, str]]:
    """Server-sent events, parsed as a browser does."""
    fields: dict[str, str] = {}
    async for line in response.aiter_lines():
        if not line:
            if "data" in fields:
                yield fields
            fields = {}
        elif not line.startswith(":"):
            name, _, value = line.partition(": ")
            fields[name] = value


async def _take(
    stack: Stack, count: int, last: str | None = None, then: Any = None, job: str = ""
) -> list[Any]:
    headers = {"Last-Event-ID": last} if last is not None else {}
    found: list[Any] = []
    url = "/api/events" + (f"?job={job}" if job else "")
    async with asyncio.timeout(WAIT_S), stack.http.stream("GET", url, headers=headers) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        if then is not None:
            await then()
        async for event in _events(response):
            found.append(event)
            if len(found) == count:
                break
    return found


async def test_events_flow_as_they_come_and_resume_after_the_last_one_seen(stack: Stack) -> None:
    async def publish() -> None:
        await stack.change(record("other", JobState.QUEUED, seq=2))
        await stack.change(record(state=JobState.STARTING))
        await stack.change(record(changed_at=11.0))

    both = await _take(stack, 2, then=publish, job="j")
    assert [e["event"] for e in both] == ["starting", "running"]
    assert SECRET not in str(both)
    assert "record" not in orjson.loads(both[0]["data"])
    (again,) = await _take(stack, 1, last=both[0]["id"], job="j")
    assert again == both[1]
    everything = await _take(stack, 4, last="anotherrun-7")
    assert [e["event"] for e in everything] == ["missed", "queued", "starting", "running"]


async def test_event_streams_end_when_the_monitor_stops() -> None:
    async with running() as stack:
        ended = asyncio.create_task(_read_all(stack))
        await stack.until(lambda: _open_streams(stack))
        await stack.change(record())
    async with asyncio.timeout(WAIT_S):
        assert "event: running" in await ended


async def _read_all(stack: Stack) -> str:
    async with httpx.AsyncClient(base_url=stack.monitor.url, trust_env=False) as http:
        return (await http.get("/api/events", timeout=WAIT_S)).text


async def _open_streams(stack: Stack) -> bool:
    return stack.monitor.readers.open_now == 1


# --- metrics, page, description ---


def _series(text: str) -> list[str]:
    return [line for line in text.splitlines() if line and not line.startswith("#")]


async def test_the_series_of_a_job_end_with_the_job(stack: Stack) -> None:
    bare = len(_series((await stack.http.get("/metrics")).text))
    for i in range(50):
        job = f"job-{i}"
        await stack.change(record(job, seq=i))
        await stack.rows(job, row(0, workers=20))
    await stack.settled()
    text = (await stack.http.get("/metrics")).text
    assert 'elps_job_phase_seconds{job="job-7",phase="compute"} 0.1' in text
    assert 'elps_job_workers{job="job-7"} 20.0' in text
    assert "iteration=" not in text
    assert "worker=" not in text
    assert SECRET not in text
    for i in range(50):
        await stack.change(
            record(f"job-{i}", JobState.FINISHED, seq=i, changed_at=20.0, ended_at=20.0)
        )
    await stack.settled()
    text = (await stack.http.get("/metrics")).text
    assert 'job="' not in text
    assert 'elps_jobs{state="finished"} 50.0' in text
    assert len(_series(text)) == bare


async def test_the_page_needs_nothing_from_elsewhere(stack: Stack) -> None:
    response = await stack.http.get("/")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in response.headers["content-security-policy"]
    for foreign in ("https://", "//cdn", "@import", "src="):
        assert foreign not in response.text
    assert "innerHTML" not in response.text


async def test_the_description_has_the_types_of_all_answers(stack: Stack) -> None:
    described = await stack.get("/openapi.json")
    for path, view in {
        "/api/jobs": "JobsView",
        "/api/jobs/{job}": "JobDetail",
        "/api/jobs/{job}/iterations": "IterationsView",
        "/api/jobs/{job}/logs": "LogsView",
        "/api/workers": "WorkersView",
        "/api/shards": "ShardsView",
        "/healthz": "HealthView",
    }.items():
        schema = described["paths"][path]["get"]["responses"]["200"]["content"]["application/json"][
            "schema"
        ]
        assert schema == {"$ref": f"#/components/schemas/{view}"}
    properties = described["components"]["schemas"]["JobDetail"]["properties"]
    assert {"samples_per_s", "time_left_s", "document"} <= set(properties)


async def test_every_answer_has_the_shape_that_the_description_promises(stack: Stack) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    await stack.change(record())
    await stack.beats("1")
    await stack.rows("j", row(0), row(1))
    await stack.settled()
    described = await stack.get("/openapi.json")
    for path, item in described["paths"].items():
        content = item["get"]["responses"]["200"].get("content", {})
        if "application/json" not in content or not content["application/json"]["schema"]:
            continue
        schema = content["application/json"]["schema"] | {"components": described["components"]}
        answer = (await stack.http.get(path.replace("{job}", "j"))).json()
        jsonschema.validate(answer, schema)


# --- who may ask, and where it listens ---


async def test_with_a_token_nothing_but_bare_health_is_told_without_it() -> None:
    async with running({"ELPS_TOKEN": "open sesame"}) as stack:
        for path in ("/api/jobs", "/api/jobs/j", "/api/workers", "/api/events", "/metrics"):
            assert (await stack.http.get(path)).status_code == 401
            wrong = await stack.http.get(path, headers={"Authorization": "Bearer open"})
            assert wrong.status_code == 401
            assert "token" in wrong.json()["reason"]
        assert (await stack.http.get("/healthz")).json()["parts"] == {}
        right = {"Authorization": "Bearer open sesame"}
        assert (await stack.http.get("/api/jobs", headers=right)).status_code == 200
        assert (await stack.http.get("/healthz", headers=right)).json()["parts"]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.5", "some.name"])
async def test_to_listen_beyond_this_machine_wants_a_token(host: str) -> None:
    context = Context(bus=MemoryBus(MemoryBroker()), store=MemoryStore(), env={"ELPS_HOST": host})
    with pytest.raises(SetupError, match="ELPS_TOKEN"):
        create(context)


async def test_a_taken_port_is_an_error_that_says_what_to_do() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        context = Context(
            bus=MemoryBus(MemoryBroker()), store=MemoryStore(), env={"ELPS_MONITOR_PORT": str(port)}
        )
        with pytest.raises(SetupError, match=f"port {port} .* is taken .* ELPS_MONITOR_PORT"):
            await create(context).run(asyncio.Event())


async def test_it_serves_without_a_broker_and_takes_part_when_there_is_one() -> None:
    broker = MemoryBroker()
    broker.stop()
    bus = MemoryBus(broker)
    monitor = create(Context(bus=bus, store=MemoryStore(), env={"ELPS_MONITOR_PORT": "0"}))
    stop = asyncio.Event()
    task = asyncio.create_task(monitor.run(stop))
    try:
        async with asyncio.timeout(WAIT_S):
            await monitor.ready.wait()
            async with httpx.AsyncClient(base_url=monitor.url, trust_env=False) as http:
                assert (await http.get("/healthz")).json()["parts"]["broker"][
                    "status"
                ] == "degraded"
            broker.start()
            await monitor.taking.wait()
    finally:
        stop.set()
        async with asyncio.timeout(WAIT_S):
            await task


async def test_after_an_outage_the_state_comes_from_the_store_although_events_were_lost(
    stack: Stack,
) -> None:
    await stack.change(record())
    await stack.settled()
    stack.broker.stop()
    ended = record(state=JobState.FINISHED, changed_at=20.0, ended_at=20.0)
    await stack.store.hash_put(topology.JOB_INDEX, "j", encode(ended))
    stack.broker.start()

    async def caught_up() -> bool:
        return bool((await stack.get("/api/jobs/j"))["state"] == "finished")

    await stack.until(caught_up)


async def test_a_worker_that_the_record_no_longer_has_is_not_shown_on(stack: Stack) -> None:
    await stack.change(record())
    await stack.beats("1")
    await stack.settled()
    alone = Allocation(term=TERM, shards=[ShardId("s1")], workers={WorkerId("j-w2"): AgentId("a1")})
    await stack.store.hash_put(topology.JOB_INDEX, "j", encode(record(allocation=alone)))
    await stack.monitor.desk.check_store()
    assert (await stack.get("/api/jobs/j"))["workers"] == ["j-w2"]
    assert (await Client(stack.bus).query(Query(what="job", job="j")))["workers"] == ["j-w2"]
