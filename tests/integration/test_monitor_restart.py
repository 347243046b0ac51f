"""What a monitor that is started anew still knows: histories and events, from the store."""

from __future__ import annotations

import asyncio
import copy
import re
from typing import Any

import pytest
from monitor_served import SECRET, Stack, record, running
from rows import iteration_row

from elps.client.control import Client
from elps.contracts import topology
from elps.contracts.codec import encode
from elps.contracts.errors import RetryLater
from elps.contracts.ids import JobId
from elps.contracts.messages import JobEvent
from elps.contracts.requests import Query
from elps.contracts.state import JobRecord, JobState
from elps.contracts.telemetry import IterationRows
from elps.messaging.memory import MemoryBroker
from elps.monitor import app
from elps.monitor import desk as desk_module
from elps.monitor.core import jobs as jobs_module
from elps.monitor.core.keeping import Piece, pack
from elps.monitor.core.state import State
from elps.monitor.histories import Histories
from elps.storage.memory import MemoryStore


async def known(stack: Stack, *records: JobRecord) -> None:
    """Jobs as the scheduler makes them known: in the store, and by events."""
    for found in records:
        await stack.store.hash_put(topology.JOB_INDEX, found.id, encode(found))
        await stack.change(found)
    await stack.settled()


async def train(stack: Stack, job: str, first: int, count: int) -> None:
    for at in range(first, first + count, 50):
        many = range(at, min(at + 50, first + count))
        await stack.rows(job, *(iteration_row(i, workers=2, loss=1 / (i + 1)) for i in many))
    event = JobEvent(
        job=JobId(job),
        what="evaluated",
        at=5.0,
        iteration=first + count,
        metrics={"accuracy": 0.9},
        term=1,
    )
    await stack.publish(topology.EVENTS, topology.event_key(JobId(job), "evaluated"), event)
    await stack.settled()


async def history(stack: Stack, job: str) -> list[Any]:
    """Every row and evaluation, read page by page."""
    since, rows, evaluations = 0, list[Any](), list[Any]()
    while True:
        page = await stack.get(f"/api/jobs/{job}/iterations", since=since, limit=500)
        rows += page["rows"]
        evaluations += page["evaluations"]
        since = page["next"]
        if not page["more"]:
            return [rows, evaluations]


async def keep(stack: Stack) -> None:
    await stack.monitor.desk.histories.keep(in_charge=True)


async def fields(store: MemoryStore, job: str) -> dict[str, bytes]:
    return await store.hash_all(topology.history_key(JobId(job)))


async def test_histories_and_curves_are_there_after_a_restart_and_go_on() -> None:
    store = MemoryStore()
    async with running(store=store) as stack:
        await known(stack, record("j"), record("ended", JobState.FINISHED, ended_at=11.0, seq=2))
        await train(stack, "j", 0, 2000)
        await train(stack, "ended", 0, 60)
        before = {job: await history(stack, job) for job in ("j", "ended")}
        curve = (await stack.get("/api/jobs/j"))["loss_curve"]
        assert len(before["j"][0]) < 2000, "it is thinned"
        assert [row["iteration"] for row in before["j"][0]][:1] == [0], "and not cut"
        assert SECRET.encode() not in b"".join((await fields(store, "j")).values())
    async with running(store=store) as stack:
        assert await history(stack, "j") == before["j"]
        assert await history(stack, "ended") == before["ended"]
        assert (await stack.get("/api/jobs/j"))["loss_curve"] == curve

        async def listed() -> bool:
            found = (await stack.get("/api/jobs"))["jobs"]
            return [len(job["loss_curve"]) for job in found] == [40, 40]

        await stack.until(listed)
        await train(stack, "j", 2000, 100)
        rows, _ = await history(stack, "j")
        assert [row["iteration"] for row in rows][-101:] == list(range(1999, 2100))


async def test_a_monitor_that_was_killed_loses_what_came_since_the_last_save_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(app, "KEEP_S", 3600.0)  # it saves when it is told to
    store, broker = MemoryStore(), MemoryBroker()
    async with running(store=store, broker=broker) as stack:
        await known(stack, record("j"))
        await train(stack, "j", 0, 100)
        await keep(stack)
        saved = await fields(store, "j")
        await train(stack, "j", 100, 100)
        assert await fields(store, "j") == saved
    again = MemoryStore()  # as it was when the monitor was killed
    await again.hash_put(topology.JOB_INDEX, "j", encode(record("j")))
    for name, body in saved.items():
        await again.hash_put(topology.history_key(JobId("j")), name, body)
    async with running(store=again) as stack:
        await train(stack, "j", 200, 1)
        rows, _ = await history(stack, "j")
        assert [row["iteration"] for row in rows] == [*range(100), 200]


async def test_what_the_memory_lets_go_goes_from_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_module, "KEEP_ENDED", 2)
    store = MemoryStore()
    async with running(store=store) as stack:
        for n in range(4):
            await known(stack, record(f"j{n}", seq=n))
            await train(stack, f"j{n}", 0, 10)
        await keep(stack)
        assert all([await fields(store, f"j{n}") for n in range(4)])
        for n in range(4):
            at = 20.0 + n
            await known(
                stack, record(f"j{n}", JobState.FINISHED, seq=n, changed_at=at, ended_at=at)
            )
        await keep(stack)
        there = [bool(await fields(store, f"j{n}")) for n in range(4)]
        assert there == [False, False, True, True]
    await store.hash_put(topology.history_key(JobId("stray")), "r0.0", pack(Piece(seq=1, level=0)))
    async with running(store=store) as stack:

        async def swept() -> bool:
            return not await fields(store, "stray")

        await stack.until(swept)
        assert await fields(store, "j3")


async def test_an_id_that_is_used_again_does_not_get_the_history_of_the_first() -> None:
    store = MemoryStore()
    async with running(store=store) as stack:
        await known(stack, record("j", JobState.KILLED, ended_at=11.0))
        await train(stack, "j", 0, 50)
    second = record("j", seq=2, changed_at=30.0)
    await store.hash_put(topology.JOB_INDEX, "j", encode(second))
    async with running(store=store) as stack:
        assert await history(stack, "j") == [[], []]
        await train(stack, "j", 0, 5)
    async with running(store=store) as stack:
        rows, _ = await history(stack, "j")
        assert [row["iteration"] for row in rows] == list(range(5))


async def test_one_that_stands_by_writes_nothing_and_takes_over_what_is_there() -> None:
    store, found = MemoryStore(), record("j")

    def monitor(*iterations: int) -> tuple[State, Histories]:
        state = State(lost_s=5.0, run="r")
        state.take_records([found], 0.0)
        rows = IterationRows(job=found.id, rows=[iteration_row(i) for i in iterations])
        state.take_telemetry(rows, 0.0)
        return state, Histories(state, store)

    _, first = monitor(*range(100))
    await first.keep(in_charge=True)
    written = await fields(store, "j")
    state, second = monitor(*range(90, 120))  # it was started later
    await second.keep(in_charge=False)
    assert await fields(store, "j") == written
    state.take_telemetry(IterationRows(job=found.id, rows=[iteration_row(120)]), 0.0)
    await second.keep(in_charge=True)
    state, third = monitor()
    await third.keep(in_charge=False)
    job = state.jobs.get("j")
    assert job is not None
    assert [row.iteration for row in job.history.rows] == list(range(121))
    state.check_invariants()


async def test_while_the_store_is_away_what_there_is_is_told_and_written_later() -> None:
    store = MemoryStore()
    async with running(store=store) as stack:
        await known(stack, record("j"))
        await train(stack, "j", 0, 10)
        await keep(stack)
        store.stop()
        await train(stack, "j", 10, 10)
        assert len((await history(stack, "j"))[0]) == 20
        store.start()
    async with running(store=store) as stack:
        assert len((await history(stack, "j"))[0]) == 20


class Slow(MemoryStore):
    """Answers late while it is away, as one does that is called again and again."""

    def __init__(self) -> None:
        super().__init__()
        self.there = asyncio.Event()
        self.there.set()

    async def hash_put(self, key: str, field: str, value: bytes) -> None:
        await self.there.wait()
        await super().hash_put(key, field, value)

    async def hash_all(self, key: str) -> dict[str, bytes]:
        await self.there.wait()
        return await super().hash_all(key)


async def test_jobs_are_told_of_at_once_while_a_save_waits_for_the_store() -> None:
    store = Slow()
    async with running(store=store) as stack:
        await known(stack, record("j"), record("new", JobState.QUEUED, seq=2))
        await train(stack, "j", 0, 10)
        await keep(stack)
        await train(stack, "j", 10, 10)
        store.there.clear()
        saving = asyncio.create_task(keep(stack))
        await asyncio.sleep(0)
        async with asyncio.timeout(desk_module.HISTORY_S):
            assert len((await history(stack, "j"))[0]) == 20
            assert await history(stack, "new") == [[], []]
        assert not saving.done()
        store.there.set()
        await saving


async def test_what_is_kept_and_cannot_be_read_is_counted_and_replaced() -> None:
    store = MemoryStore()
    await store.hash_put(topology.JOB_INDEX, "j", encode(record("j")))
    await store.hash_put(topology.history_key(JobId("j")), "r0.0", b"\x80\x04pickle")
    await store.put(topology.EVENTS_KEPT, b"\x80\x04pickle")
    async with running(store=store) as stack:
        assert await history(stack, "j") == [[], []]
        assert (await stack.get("/api/events/recent"))["events"] == []
        metrics = (await stack.http.get("/metrics")).text
        refused = re.search(r'elps_monitor_refused_total\{source="history"\} (\S+)', metrics)
        assert refused is not None
        assert float(refused[1]) >= 2, "whoever takes over reads it again"
        await train(stack, "j", 0, 5)
    async with running(store=store) as stack:
        assert len((await history(stack, "j"))[0]) == 5


async def test_events_are_read_over_a_restart_over_http_and_over_the_bus() -> None:
    store = MemoryStore()
    async with running(store=store) as stack:
        await known(stack, record("j", JobState.QUEUED), record("j", changed_at=11.0))
        await known(stack, record("k", seq=2))
        first = await stack.get("/api/events/recent", limit=1)
        assert [event["what"] for event in first["events"]] == ["queued"]
        assert (first["more"], first["missed"]) == (True, False)
        rest = await stack.get("/api/events/recent", after=first["next"])
        assert [event["what"] for event in rest["events"]] == ["running", "running"]
        assert (rest["more"], rest["missed"]) == (False, False)
        assert rest["next"] == rest["events"][-1]["id"]
    async with running(store=store) as stack:
        asked = {"job": "j", "after": first["next"]}
        again = await stack.get("/api/events/recent", **asked)
        assert again["events"] == rest["events"][:1]
        assert again["missed"], "something may have happened while there was no monitor"
        query = Query(what="events", **asked)
        assert await Client(stack.bus).query(query) == again
        headers = {"Last-Event-ID": first["events"][0]["id"]}
        async with stack.http.stream("GET", "/api/events?job=j", headers=headers) as response:
            told = [line async for line in _until(response.aiter_lines(), "event: running")]
        assert "event: missed" in told


async def _until(lines: Any, last: str) -> Any:
    async with asyncio.timeout(10.0):
        async for line in lines:
            yield line
            if line == last:
                return


async def test_a_history_that_is_still_being_read_is_not_told_in_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = MemoryStore()
    async with running(store=store) as stack:
        await known(stack, record("j"))
        await train(stack, "j", 0, 10)
    async with running(store=store) as stack:
        assert len((await history(stack, "j"))[0]) == 10
        desk = stack.monitor.desk
        job = desk.state.jobs.get("j")
        assert job is not None
        async with desk.histories._lock:
            job.restored = False
            monkeypatch.setattr(desk_module, "HISTORY_S", 0.05)
            response = await stack.http.get("/api/jobs/j/iterations")
            assert response.status_code == 503
            assert "still being read" in response.json()["reason"]
            monkeypatch.undo()
        assert len((await history(stack, "j"))[0]) == 10


async def snapshot(store: MemoryStore) -> dict[str, Any]:
    """All histories and events that are there."""
    heads = [topology.history_key(JobId("")), topology.EVENTS_KEPT]
    keys = [key for head in heads for key in [k async for k in store.scan(head)]]
    return {key: await store.hash_all(key) or await store.get(key) for key in sorted(keys)}


@pytest.mark.parametrize("back", ["empty", "a moment ago"])
async def test_what_a_store_loses_that_comes_back_is_written_again(back: str) -> None:
    """While the monitor lives nobody misses anything, and the next one finds all of it."""
    store, found = MemoryStore(), record("j", JobState.FINISHED, ended_at=11.0)
    state = State(lost_s=5.0, run="r")
    histories = Histories(state, store)
    state.take_records([found], 0.0)
    state.take_event(JobEvent(job=found.id, what="finished", at=1.0), 0.0)
    state.take_telemetry(
        IterationRows(job=found.id, rows=[iteration_row(i) for i in range(60)]), 0.0
    )
    await histories.keep(in_charge=True)
    earlier = copy.deepcopy((store._values, store._hashes))
    state.take_telemetry(
        IterationRows(job=found.id, rows=[iteration_row(i) for i in range(60, 100)]), 0.0
    )
    await histories.keep(in_charge=True)
    whole = await snapshot(store)
    store._values, store._hashes = ({}, {}) if back == "empty" else earlier
    assert await snapshot(store) != whole
    await histories.keep(in_charge=True)
    assert await snapshot(store) == whole
    await histories.keep(in_charge=True)
    job = state.jobs.get("j")
    assert job is not None
    assert [row.iteration for row in job.history.rows] == list(range(100))
    state.check_invariants()


async def test_a_save_that_was_cut_off_before_its_seal_is_done_again() -> None:
    store, found = MemoryStore(), record("j")
    state = State(lost_s=5.0, run="r")
    histories = Histories(state, store)
    state.take_records([found], 0.0)
    await histories.keep(in_charge=True)
    state.take_telemetry(IterationRows(job=found.id, rows=[iteration_row(0)]), 0.0)
    earlier = copy.deepcopy((store._values, store._hashes))
    put, store.put = store.put, _no_put  # type: ignore[method-assign]
    with pytest.raises(RetryLater):
        await histories.keep(in_charge=True)
    assert await fields(store, "j")
    store._values, store._hashes = earlier  # killed just then
    store.put = put  # type: ignore[method-assign]
    await histories.keep(in_charge=True)
    assert await fields(store, "j")


async def _no_put(key: str, value: bytes | memoryview) -> None:
    raise RetryLater(f"{key}: {len(value)} bytes are not taken")


async def test_histories_of_jobs_whose_records_another_version_has_written_stay() -> None:
    store = MemoryStore()
    async with running(store=store) as stack:
        await known(stack, record("j"))
        await train(stack, "j", 0, 10)
        await keep(stack)
        await store.hash_put(topology.JOB_INDEX, "j", b'{"of": "another version"}')
        for _ in range(2):
            await stack.monitor.desk.read_index()
        await keep(stack)
    async with running(store=store) as stack:
        await keep(stack)
        assert await fields(store, "j")


async def test_without_the_broker_another_may_be_in_charge_and_what_was_heard_is_kept_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(app, "KEEP_S", 3600.0)
    told: list[bool] = []

    async def keep(*, in_charge: bool) -> None:
        told.append(in_charge)

    async with running() as stack:
        await stack.until(lambda: _knows_the_jobs(stack))
        monkeypatch.setattr(stack.monitor.desk.histories, "keep", keep)
        await stack.monitor._keep()
        stack.broker.stop()
        for _ in range(2):
            await stack.monitor._keep()
        stack.broker.start()
        await stack.monitor._keep()
    assert told[:4] == [True, True, False, True]


async def _knows_the_jobs(stack: Stack) -> bool:
    return stack.monitor._index_read
