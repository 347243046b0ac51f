"""The order in which the scheduler tells things: nothing before the records that it rests on are stored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container
from types import SimpleNamespace
from typing import Any, cast

import pytest

from elps.contracts.errors import RetryLater
from elps.contracts.ids import JobId, ShardId
from elps.contracts.job import JobDocument
from elps.contracts.messages import JobEvent
from elps.contracts.requests import Reply
from elps.contracts.state import JobRecord, JobState
from elps.scheduler import outbox as outbox_module
from elps.scheduler.core.events import (
    Answer,
    Command,
    Event,
    Marks,
    Moment,
    Probe,
    PublishEvent,
    Request,
    WriteRecord,
)
from elps.scheduler.outbox import Outbox


class Charge:
    """In charge when the test says so."""

    def __init__(self) -> None:
        self.may, self.asked = asyncio.Event(), asyncio.Event()

    def acts(self) -> bool:
        return self.may.is_set()

    async def acting(self) -> None:
        self.asked.set()
        await self.may.wait()


class Archive:
    """Keeps what is stored, in order."""

    chosen = ""

    def __init__(self) -> None:
        self.stored: list[str] = []
        self.lost = False  #: the store has forgotten something
        self.on_write: Callable[[], None] = lambda: None

    @property
    def lacks(self) -> bool:
        return self.lost

    def forgotten(self) -> bool:
        lost, self.lost = self.lost, False
        return lost

    async def keep_policy(self, policy: str) -> None:
        self.stored.append(f"policy {policy}")

    async def keep_marks(self, marks: Marks) -> None:
        self.stored.append(f"marks {marks.terms}")

    async def write(self, records: dict[JobId, JobRecord]) -> None:
        await asyncio.sleep(0)
        self.on_write()
        self.stored += records


def record(job: str) -> JobRecord:
    return JobRecord(
        id=JobId(job),
        document=JobDocument(task="linear", iterations=1),
        state=JobState.QUEUED,
        reason="",
        seq=1,
        submitted_at=0.0,
        changed_at=0.0,
    )


def outbox_over(
    core: Any, archive: Archive, charge: Charge, heard: list[Event], bus: object = None
) -> Outbox:
    return Outbox(
        core,
        cast(Any, archive),
        cast(Any, bus or SimpleNamespace(connected=False)),
        cast(Any, charge),
        lambda: Moment(0.0, 0.0),
        heard.append,
    )


@pytest.mark.parametrize("host", ["x" * 100, "a\0b", "☃" * 200, "a..b"])
async def test_an_address_that_is_none_says_nothing_of_its_shard_and_ends_nothing(
    host: str,
) -> None:
    heard: list[Event] = []
    outbox = outbox_over(None, Archive(), Charge(), heard)
    running = asyncio.create_task(outbox.run())
    await asyncio.sleep(0)
    outbox.take([Probe(ShardId("s1"), "1", host, 1)])
    (probe,) = (task for task in asyncio.all_tasks() if task.get_name() == "probe s1")
    await asyncio.wait((probe,), timeout=10)
    assert probe.done()
    assert probe.exception() is None
    assert not running.done(), running
    assert heard == []
    running.cancel()
    await asyncio.wait((running,))


async def test_what_comes_while_the_charge_is_waited_for_is_stored_before_it_is_answered() -> None:
    charge, archive = Charge(), Archive()
    outbox = outbox_over(None, archive, charge, [])
    running = asyncio.create_task(outbox.run())
    outbox.take([WriteRecord(record("first"))])
    async with asyncio.timeout(10):
        await charge.asked.wait()  # it is stored, and the charge is not there
    answer = outbox.answer_to(Request("r"))
    outbox.take([WriteRecord(record("second")), Answer(Request("r"), Reply(ok=True))])
    charge.may.set()
    async with asyncio.timeout(10):
        await answer
    assert archive.stored == ["first", "second"]
    running.cancel()
    await asyncio.wait((running,))


async def test_nobody_waits_for_the_records_of_those_who_come_after_him() -> None:
    """Each write has the next message come, so there is always something that is not stored."""
    charge, archive = Charge(), Archive()
    charge.may.set()
    outbox = outbox_over(None, archive, charge, [])
    answers: list[asyncio.Future[Reply]] = []
    given: list[int] = []  #: how many had their answers, with each write

    def come() -> None:
        n = len(answers)
        given.append(sum(answer.done() for answer in answers))
        if n < 10:
            request = Request(f"r{n}")
            answers.append(outbox.answer_to(request))
            outbox.take([WriteRecord(record(f"job-{n}")), Answer(request, Reply(ok=True))])

    archive.on_write = come
    outbox.take([WriteRecord(record("first"))])
    await outbox.store()
    assert given == [0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9], (
        "each right after its own record, none before"
    )


async def test_orders_do_not_wait_until_no_more_records_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each write has the next job come; nothing is said of one whose record is not stored."""
    monkeypatch.setattr(outbox_module, "SENDS_S", 0.0)
    charge, archive = Charge(), Archive()
    charge.may.set()
    jobs = ["first", *(f"job-{n}" for n in range(10))]
    taken: list[tuple[list[str], list[str]]] = []  #: what was stored, and what was held back
    all_come = asyncio.Event()

    def messages(_: Moment, held: Container[JobId]) -> list[Any]:
        taken.append((list(archive.stored), [job for job in jobs if JobId(job) in held]))
        return []

    def come() -> None:
        if following := jobs[len(archive.stored) + 1 :]:
            outbox.take([WriteRecord(record(following[0]))])
        else:
            all_come.set()

    archive.on_write = come
    core, bus = SimpleNamespace(messages=messages), SimpleNamespace(connected=True)
    outbox = outbox_over(core, archive, charge, [], bus)
    running = asyncio.create_task(outbox.run())
    outbox.take([WriteRecord(record("first"))])
    async with asyncio.timeout(10):
        await all_come.wait()
    running.cancel()
    await asyncio.wait((running,))
    assert taken[:10] == [(jobs[: n + 1], [jobs[n + 1]]) for n in range(10)]


async def test_nothing_is_answered_while_the_store_is_found_to_have_forgotten_something() -> None:
    charge, archive = Charge(), Archive()
    charge.may.set()
    known = {JobId(job): record(job) for job in ("old", "new")}
    core = SimpleNamespace(book=SimpleNamespace(records=known, marks=Marks()))
    outbox = outbox_over(core, archive, charge, [])
    answer = outbox.answer_to(Request("r"))
    done: list[bool] = []

    def lose() -> None:
        done.append(answer.done())
        archive.lost = len(done) == 1

    archive.on_write = lose
    outbox.take([WriteRecord(known[JobId("new")]), Answer(Request("r"), Reply(ok=True))])
    await outbox.store()
    assert done == [False, False]
    assert archive.stored == ["new", "old", "new"]
    assert answer.done()


async def test_a_store_that_has_forgotten_something_is_given_all_records_again() -> None:
    archive, known = Archive(), {JobId(job): record(job) for job in ("ended", "queued")}
    core = SimpleNamespace(book=SimpleNamespace(records=known, marks=Marks(terms=7)))
    outbox = outbox_over(core, archive, Charge(), [])
    await outbox.store()
    assert archive.stored == []
    archive.lost, archive.chosen = True, "eps"
    await outbox.store()
    assert archive.stored == ["policy eps", "marks 7", "ended", "queued"]


async def test_events_that_wait_for_the_store_are_bounded_and_none_is_told_before_its_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While the first record is stored more events come than are held."""
    monkeypatch.setattr(outbox_module, "EVENTS_HELD", 3)
    charge, archive = Charge(), Archive()
    charge.may.set()
    outbox = outbox_over(None, archive, charge, [])
    stored: list[list[str]] = []  #: what was told to be published by each write
    jobs = [f"job-{n}" for n in range(6)]

    def come() -> None:
        stored.append([event.job for event in outbox._stored])
        if len(stored) == 1:
            outbox.take([c for job in jobs[1:] for c in told(job)])

    archive.on_write = come
    outbox.take(told(jobs[0]))
    await outbox.store()
    assert stored == [[], []], "the first one's event had to give way, the others were not stored"
    assert [event.job for event in outbox._stored] == jobs[3:]


def told(job: str) -> list[Command]:
    return [WriteRecord(record(job)), PublishEvent(JobEvent(job=JobId(job), what="a", at=1.0))]


class Late:
    """Takes each message, and says so only the second time."""

    connected = False

    def __init__(self) -> None:
        self.taken: list[tuple[str, str]] = []
        self.all_said = asyncio.Event()

    async def publish(
        self, exchange: str, key: str, body: bytes, *, message_id: str, timeout_s: float
    ) -> None:
        assert exchange
        assert body
        assert timeout_s
        self.taken.append((key, message_id))
        if len(self.taken) % 2:
            raise RetryLater("not confirmed")
        if len(self.taken) == 4:
            self.all_said.set()


async def test_an_event_that_was_not_confirmed_is_the_same_message_when_it_is_said_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outbox_module, "RETRY_S", 0.0)
    bus, charge = Late(), Charge()
    charge.may.set()
    outbox = outbox_over(None, Archive(), charge, [], bus)
    running = asyncio.create_task(outbox.run())
    outbox.take([PublishEvent(JobEvent(job=JobId("j"), what=w, at=1.0)) for w in ("a", "b")])
    async with asyncio.timeout(10):
        await bus.all_said.wait()
    first, again, second, once_more = bus.taken
    assert (first, second) == (again, once_more)
    assert first[1] != second[1]
    running.cancel()
    await asyncio.wait((running,))
