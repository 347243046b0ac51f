"""Where questions are answered: over HTTP and over the broker alike. Reads the records that the state misses."""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import msgspec
import structlog

from elps.contracts import topology
from elps.contracts.answers import Explanation
from elps.contracts.codec import MAX_MESSAGE_BYTES, decode, encode
from elps.contracts.errors import InvalidDocument, RetryLater
from elps.contracts.ids import JobId
from elps.contracts.requests import Answer, JobCommand, Query, Reply
from elps.contracts.state import JobRecord
from elps.contracts.telemetry import IterationTimings
from elps.messaging.port import Bus, Delivery
from elps.monitor import queries
from elps.monitor.core import intake
from elps.monitor.core.forwarding import timings_of
from elps.monitor.core.state import State
from elps.monitor.health import Surroundings
from elps.monitor.histories import Histories
from elps.runtime.service import Clock
from elps.storage.port import Store

log = structlog.get_logger(__name__)
M = TypeVar("M")

NOT_ASKED = "not asked yet"
REPEATS = 4096
"""Message ids remembered: a repeat comes soon after its first, when a connection was lost."""
ENVELOPE_BYTES = 1024
PASS_ON_S = 0.5
"""Rows wait no longer for a broker that does not take the timings in them."""
HISTORY_S = 5.0
"""What was kept of a history is waited for so long."""
RECORDS_AT_ONCE = 100
"""Records of the index that are read before others have their turn."""
FRESH_S = 0.5
"""A job that is known is told without waiting for the store any longer."""


class Desk:
    """Takes what comes over the bus into the state, and answers from it."""

    def __init__(self, state: State, bus: Bus, store: Store, clock: Clock, version: str) -> None:
        self.state, self.bus, self.store, self.clock, self.version = (
            state,
            bus,
            store,
            clock,
            version,
        )
        self.histories = Histories(state, store)
        self.started_s = clock.monotonic()
        self.store_problem: str | None = NOT_ASKED
        self.refused: dict[str, int] = {
            "members": 0,
            "events": 0,
            "telemetry": 0,
            "query": 0,
            "store": 0,
        }
        """Messages and records that could not be read, by where they came from."""
        self.taken: dict[str, int] = {"members": 0, "events": 0, "telemetry": 0, "query": 0}
        self.changed = (
            asyncio.Event()
        )  #: set and replaced at each event, for those who wait for the next
        self.missed = asyncio.Event()  #: set when a record is to be read
        self._seen: OrderedDict[tuple[str, str], None] = (
            OrderedDict()
        )  #: keys and ids of the newest messages taken

    # --- from the bus; `InvalidDocument` makes the bus bury the message ---

    async def on_members(self, delivery: Delivery) -> None:
        """A heartbeat."""
        beat = self._read("members", intake.read_beat, delivery)
        self.state.take_beat(beat, self.clock.monotonic(), self.clock.time())
        self._note_missing()

    async def on_event(self, delivery: Delivery) -> None:
        """An event of a job."""
        event = self._read("events", intake.read_event, delivery)
        if self._repeated(delivery):
            return
        self.state.take_event(event, self.clock.monotonic())
        self._remember(delivery)
        self.changed.set()
        self.changed = asyncio.Event()
        self._note_missing()

    async def on_telemetry(self, delivery: Delivery) -> None:
        """Iteration rows or log lines. Rows tell repeats by themselves, lines do not."""
        message = self._read("telemetry", intake.read_telemetry, delivery)
        if self._repeated(delivery):
            return
        if (timings := timings_of(message)) is not None:
            await self._pass_on(timings)
        self.state.take_telemetry(message, self.clock.monotonic())
        self._remember(delivery)
        self._note_missing()

    async def on_query(self, delivery: Delivery) -> None:
        """A question; one that cannot be read is answered with the reason and buried."""
        try:
            query = self._read("query", intake.read_query, delivery)
        except InvalidDocument as error:
            await self._respond(delivery, Answer(ok=False, reason=str(error)))
            raise
        try:
            body = await self.answer(query)
        except (queries.UnknownJob, RetryLater) as error:
            later = isinstance(error, RetryLater)
            await self._respond(delivery, Answer(ok=False, reason=str(error), later=later))
            return
        if len(body) + ENVELOPE_BYTES > MAX_MESSAGE_BYTES:
            reason = f"the answer has {len(body)} bytes, more than a message may have: ask with a lower limit"
            await self._respond(delivery, Answer(ok=False, reason=reason))
            return
        await self._respond(delivery, Answer(ok=True, result=msgspec.Raw(body)))

    # --- answers ---

    async def answer(self, query: Query) -> bytes:
        """The JSON that answers a checked query.

        Raises `UnknownJob`, and `RetryLater` when the store must be asked and is away, or takes long.
        """
        return encode(await self.ask(query))

    async def ask(self, query: Query) -> Any:
        """The answer, of the type in `elps.contracts.answers`; see `answer`."""
        if query.job is not None and query.what != "events":
            known = self.state.jobs.get(query.job)
            fresh = query.what == "job" and self.store_problem is None
            # not every change of a record is an event: a worker that is gone must not be shown on
            if known is None or known.record is None or fresh:
                await self._read_for(JobId(query.job), required=known is None)
        if query.what in ("job", "iterations"):
            await self._read_history(JobId(query.job or ""))
        elif query.what == "events":
            await self.read_events()
        if query.what == "explain":
            return await self._explain(query)
        return queries.ask(self.state, query, self.clock.monotonic(), self.around)

    async def _explain(self, query: Query) -> Explanation:
        """What only the scheduler knows."""
        assert query.job is not None
        body = encode(JobCommand(job=query.job))
        reply = decode(await self.bus.request(topology.JOBS, topology.EXPLAIN, body), Reply)
        if not reply.ok:
            raise queries.UnknownJob(query.job)
        return Explanation(job=query.job, lines=reply.lines)

    @property
    def around(self) -> Surroundings:
        """Broker and store as they are."""
        return Surroundings(
            broker=self.bus.connected,
            blocked=self.bus.blocked,
            store_problem=self.store_problem,
            version=self.version,
            started_s=self.started_s,
        )

    # --- from the store ---

    async def read_index(self) -> None:
        """Read all records. Raises `RetryLater`."""
        asked_s = self.clock.monotonic()
        index = await self.store.hash_all(topology.JOB_INDEX)
        found: dict[str, JobRecord | None] = {}
        for key, body in index.items():
            found[key] = self._record(key, body)
            if len(found) % RECORDS_AT_ONCE == 0:
                await asyncio.sleep(0)  # thousands take a good part of a second
        unread = {key for key, record in found.items() if record is None}
        self.histories.spared = unread
        self.state.take_records(filter(None, found.values()), asked_s, unread)

    async def read_missing(self) -> None:
        """Read the records that the state misses. Raises `RetryLater`, and they stay missing."""
        self.missed.clear()
        jobs = self.state.jobs.take_missing()
        try:
            for job in jobs:
                await self.read_record(job)
        except RetryLater:
            self.state.jobs.still_missing(jobs)
            self.missed.set()
            raise

    async def read_record(self, job: JobId) -> None:
        """Read one record into the state. Raises `RetryLater`."""
        asked_s = self.clock.monotonic()
        body = await self.store.hash_get(topology.JOB_INDEX, job)
        record = self._record(job, body) if body is not None else None
        self.state.take_record(job, record, asked_s)

    async def check_store(self) -> None:
        """Ask the store how it is."""
        try:
            problems = [*await self.store.check(), await self.store.refuses()]
            self.store_problem = "; ".join(filter(None, problems)) or None
        except RetryLater as error:
            self.store_problem = str(error)

    async def check_broker(self) -> None:
        """Publish something, since a broker that takes nothing tells only those who do."""
        with contextlib.suppress(RetryLater):
            await self.bus.publish(
                topology.TELEMETRY, topology.PROBE_KEY, b"{}", confirm=False, timeout_s=PASS_ON_S
            )

    # --- within ---

    async def _read_for(self, job: JobId, *, required: bool) -> None:
        try:
            if required:
                await self.read_record(job)
            else:
                async with asyncio.timeout(FRESH_S):
                    await self.read_record(job)
        except (RetryLater, TimeoutError):
            if required:
                raise

    async def _read_history(self, job: JobId) -> None:
        await self._read_kept(self.histories.restore(job), f"the history of job {job}")

    async def read_events(self) -> None:
        """Have the events of earlier runs. Raises `RetryLater` when that takes long."""
        await self._read_kept(self.histories.restore_events(), "what happened before this start")

    async def _read_kept(self, reading: Coroutine[Any, Any, None], what: str) -> None:
        """While the store is away what there is must do; else nobody is told a part for the whole."""
        away = self.store_problem not in (None, NOT_ASKED)
        try:
            async with asyncio.timeout(FRESH_S if away else HISTORY_S):
                await reading
        except RetryLater:
            return
        except TimeoutError:
            if not away:
                raise RetryLater(f"{what} is still being read from the store: ask again") from None

    def _record(self, key: str, body: bytes) -> JobRecord | None:
        try:
            record = intake.read_record(body)
            if record.id != key:
                raise InvalidDocument(
                    "record", [f"it is of job {record.id!r}, its field is {key!r}"]
                )
        except InvalidDocument as error:
            self.refused["store"] += 1
            log.warning("record_refused", job=key[:64], reason=str(error))
            return None
        return record

    def _read(self, source: str, read: Callable[[bytes], M], delivery: Delivery) -> M:
        try:
            message = read(delivery.body)
        except InvalidDocument:
            self.refused[source] += 1
            raise
        self.taken[source] += 1
        return message

    def _repeated(self, delivery: Delivery) -> bool:
        """Whether a message came before; the same id under another key is another message."""
        return (delivery.routing_key, delivery.message_id) in self._seen

    def _remember(self, delivery: Delivery) -> None:
        if delivery.message_id:
            self._seen[delivery.routing_key, delivery.message_id] = None
            while len(self._seen) > REPEATS:
                self._seen.popitem(last=False)

    def _note_missing(self) -> None:
        if self.state.jobs.any_missing:
            self.missed.set()

    async def _pass_on(self, timings: IterationTimings) -> None:
        """To the scheduler, at once; what is lost is made up for by the next."""
        key = topology.timings_key(timings.job)
        with contextlib.suppress(RetryLater):
            await self.bus.publish(
                topology.TELEMETRY, key, encode(timings), confirm=False, timeout_s=PASS_ON_S
            )

    async def _respond(self, delivery: Delivery, answer: Answer) -> None:
        try:
            await self.bus.respond(delivery, msgspec.json.encode(answer))
        except RetryLater as error:  # the asker has its own time-out; asking again costs it little
            log.warning("answer_lost", error=str(error))
