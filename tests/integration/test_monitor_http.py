"""The monitor's answers, over real HTTP and over the bus; what comes in, and what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest
from monitor_served import WAIT_S, Stack, record, running
from rows import iteration_row

from elps.client.control import Client, QueryRefused
from elps.contracts import topology
from elps.contracts.codec import encode
from elps.contracts.errors import RetryLater
from elps.contracts.ids import JobId, WorkerId
from elps.contracts.requests import Answer, Query
from elps.contracts.state import JobState
from elps.contracts.telemetry import LogLines
from elps.messaging.port import DEAD_QUEUE, REASON_HEADER, Delivery, Queue
from elps.storage.memory import MemoryStore


@pytest.fixture
async def stack() -> AsyncIterator[Stack]:
    async with running() as made:
        yield made


async def test_every_question_has_the_same_answer_over_http_and_over_the_bus(stack: Stack) -> None:
    await stack.change(record())
    await stack.beats("1")
    await stack.rows("j", *(iteration_row(i, workers=2) for i in range(6)))
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


async def test_an_explanation_is_asked_of_the_scheduler(stack: Stack) -> None:
    await stack.change(record())
    await stack.settled()
    await stack.explains("j", "it waits")
    assert await stack.get("/api/jobs/j/explain") == {"job": "j", "lines": ["it waits"]}
    query = Query(what="explain", job="j")
    assert (await Client(stack.bus).query(query))["lines"] == ["it waits"]
    await stack.change(record("k"))
    await stack.settled()
    assert (await stack.http.get("/api/jobs/k/explain")).status_code == 404


async def test_records_are_read_at_the_start_and_when_one_is_missed() -> None:
    store = MemoryStore()
    await store.hash_put(topology.JOB_INDEX, "old", encode(record("old", JobState.FINISHED)))
    await store.hash_put(topology.JOB_INDEX, "broken", b"\x80\x04pickle")
    async with running(store=store) as stack:
        await stack.until(lambda: _listed(stack, {"old"}))
        await store.hash_put(topology.JOB_INDEX, "missed", encode(record("missed", seq=2)))
        await stack.rows("missed", iteration_row(0, workers=2))

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
    client = Client(stack.bus)
    assert (await client.job("j")).state is JobState.RUNNING
    with pytest.raises(RetryLater, match="store"):
        await client.job("nobody")

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
    kinds = {"scheduler", "shards", "workers"}
    assert set(report["parts"]) == {"broker", "store", *kinds, "versions", "clocks"}
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
    await stack.rows("j", iteration_row(0, workers=2))
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
        await stack.rows("j", iteration_row(0, workers=2))
    await stack.settled()
    assert [line["text"] for line in (await stack.get("/api/jobs/j/logs"))["lines"]] == ["once"]
    assert len((await stack.get("/api/jobs/j/iterations"))["rows"]) == 1
