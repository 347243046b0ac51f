"""What the monitor serves besides answers: events, metrics, the page; who may ask, and without a broker."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import AsyncIterator
from typing import Any

import httpx
import orjson
import pytest
from monitor_served import SECRET, TERM, WAIT_S, Stack, record, running
from rows import iteration_row

from elps.client.control import Client
from elps.contracts import topology
from elps.contracts.codec import encode
from elps.contracts.errors import SetupError
from elps.contracts.ids import AgentId, ShardId, WorkerId
from elps.contracts.requests import Query
from elps.contracts.state import Allocation, JobState, Progress
from elps.messaging.memory import MemoryBroker, MemoryBus
from elps.monitor import streaming
from elps.monitor.app import create
from elps.runtime.service import Context
from elps.storage.memory import MemoryStore


@pytest.fixture
async def stack() -> AsyncIterator[Stack]:
    async with running() as made:
        yield made


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


async def test_a_reader_cut_off_before_its_first_event_goes_on_from_where_it_began(
    stack: Stack,
) -> None:
    for n in range(2):
        async with asyncio.timeout(WAIT_S), stack.http.stream("GET", "/api/events") as response:
            lines = response.aiter_lines()
            told = [await anext(lines), await anext(lines)]
        seen = dict(line.split(": ") for line in told)["id"]
        await stack.change(record(changed_at=10.0 + n, reason=str(n)))
        await stack.settled()
        (event,) = await _take(stack, 1, last=seen)
        assert event["event"] == "running"
        assert orjson.loads(event["data"])["at"] == 10.0 + n


async def test_a_reader_of_a_quiet_job_hears_that_it_is_connected_however_busy_others_are(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "KEEP_ALIVE_S", 0.2)

    async def others() -> None:
        for n in itertools.count():
            await stack.change(record("other", changed_at=10.0 + n))
            await asyncio.sleep(0.02)

    busy = asyncio.create_task(others())
    try:
        async with (
            asyncio.timeout(WAIT_S),
            stack.http.stream("GET", "/api/events?job=j") as response,
        ):
            lines = response.aiter_lines()
            while await anext(lines) != ": keep alive":
                pass
            # One that goes out just as something happens names no place.
            while not (line := await anext(lines)).startswith("id: "):
                pass
    finally:
        busy.cancel()
    seen = line.removeprefix("id: ")
    assert stack.monitor.desk.state.feed.place(seen)[1] is False


async def test_many_events_come_in_portions_and_each_once(stack: Stack) -> None:
    count = 2 * streaming.PAGE + 5
    for n in range(count):
        await stack.change(record(changed_at=10.0 + n))
    await stack.settled()
    begun = f"{stack.monitor.desk.state.feed.run}-start"
    found = await _take(stack, count, last=begun)
    assert [orjson.loads(event["data"])["at"] for event in found] == [
        10.0 + n for n in range(count)
    ]


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


JOBS = 500
SERIES_OF_A_JOB = 15
"""Nine figures, five phases and a metric, however many workers it has."""


def _series(text: str) -> list[str]:
    return [line for line in text.splitlines() if line and not line.startswith("#")]


async def test_the_series_of_a_job_end_with_the_job(stack: Stack) -> None:
    bare = len(_series((await stack.http.get("/metrics")).text))
    for i in range(JOBS):
        job = f"job-{i}"
        progress = Progress(iteration=1, iterations=10, loss=0.5, metrics={"accuracy": 0.5})
        await stack.change(record(job, seq=i, progress=progress))
        await stack.rows(job, iteration_row(0, workers=20))
    await stack.settled()
    text = (await stack.http.get("/metrics")).text
    assert 'elps_job_phase_seconds{job="job-7",phase="compute"} 0.1' in text
    assert 'elps_job_workers{job="job-7"} 20.0' in text
    assert "iteration=" not in text
    assert "worker=" not in text
    assert SECRET not in text
    of_jobs = [line for line in _series(text) if 'job="' in line]
    assert len(of_jobs) <= JOBS * SERIES_OF_A_JOB
    for i in range(JOBS):
        await stack.change(
            record(f"job-{i}", JobState.FINISHED, seq=i, changed_at=20.0, ended_at=20.0)
        )
    await stack.settled()
    text = (await stack.http.get("/metrics")).text
    assert 'job="' not in text
    assert f'elps_jobs{{state="finished"}} {JOBS}.0' in text
    assert len(_series(text)) == bare


async def test_jobs_beyond_a_number_have_no_series_of_their_own(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elps.monitor.metrics.MAX_JOBS", 10)
    for i in range(30):
        await stack.change(record(f"job-{i}", seq=i))
        await stack.rows(f"job-{i}", iteration_row(0, workers=20))
        if i == 9:
            await stack.settled()
            full = len(_series((await stack.http.get("/metrics")).text))
    await stack.settled()
    text = (await stack.http.get("/metrics")).text
    assert len(_series(text)) == full
    assert "elps_jobs_unlisted 20.0" in text
    assert (
        len({line.split('job="')[1].split('"')[0] for line in _series(text) if 'job="' in line})
        == 10
    )


async def test_the_page_needs_nothing_from_elsewhere(stack: Stack) -> None:
    response = await stack.http.get("/")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in response.headers["content-security-policy"]
    for foreign in ("https://", "//cdn", "@import", "src="):
        assert foreign not in response.text
    assert "innerHTML" not in response.text
    assert "j.shares" in response.text


async def test_the_description_has_the_types_of_all_answers(stack: Stack) -> None:
    described = await stack.get("/openapi.json")
    for path, view in {
        "/api/jobs": "Jobs",
        "/api/jobs/{job}": "JobDetail",
        "/api/jobs/{job}/iterations": "Iterations",
        "/api/jobs/{job}/logs": "Output",
        "/api/workers": "Workers",
        "/api/shards": "Shards",
        "/healthz": "Health",
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
    await stack.rows("j", iteration_row(0, workers=2), iteration_row(1, workers=2))
    await stack.explains("j", "it waits")
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


async def test_without_a_token_no_page_of_another_site_reads_anything(stack: Stack) -> None:
    """Its name may be made to lead to this machine after it was loaded; the browser then lets it ask."""
    for path in ("/api/jobs", "/api/events", "/metrics"):
        for name in ("evil.example", "evil.example:8750", "127.0.0.1.evil.example", "[x"):
            response = await stack.http.get(path, headers={"Host": name})
            assert response.status_code == 403, name
            assert "127.0.0.1" in response.json()["reason"]
    for name in ("localhost", "localhost:1", "127.0.0.1:80", "[::1]:8750", "192.168.0.7"):
        assert (await stack.http.get("/api/jobs", headers={"Host": name})).status_code == 200
    async with running({"ELPS_TOKEN": "open sesame"}) as guarded:
        headers = {"Host": "elps.example", "Authorization": "Bearer open sesame"}
        assert (await guarded.http.get("/api/jobs", headers=headers)).status_code == 200


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
