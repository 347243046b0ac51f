"""Carries out what the core commands, in the only safe order: records are stored before anything else happens.

While the store is away records, events and answers gather here (records and answers one per job and message,
events up to a bound), and nothing is sent: members go on with what they were told last. The same while this scheduler
does not know that it is still in charge.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence

import msgspec
import structlog

from elps.contracts import topology
from elps.contracts.codec import encode
from elps.contracts.errors import RetryLater
from elps.contracts.ids import JobId
from elps.contracts.messages import JobEvent
from elps.contracts.requests import Reply
from elps.contracts.state import JobRecord
from elps.contracts.texts import LOGGED_CHARACTERS, shortened
from elps.messaging.port import Bus
from elps.scheduler.archive import Archive
from elps.scheduler.charge import InCharge
from elps.scheduler.core.core import Core
from elps.scheduler.core.events import (
    Answer,
    AskTerm,
    Command,
    Event,
    ForgetJobs,
    JobsForgotten,
    KeepPolicy,
    KeysRemoved,
    Marks,
    Moment,
    Note,
    Probe,
    PublishEvent,
    RemoveKeys,
    Request,
    Send,
    ShardRefused,
    WriteRecord,
)

log = structlog.get_logger(__name__)

EVENTS_HELD = 10_000
"""Events that wait for the broker; the records in the store tell the same."""
PUBLISH_S = 5.0
SEND_S = 1.0
"""Orders are repeated anyway: they do not wait long."""
SENDS_S = 0.1
"""While more and more records come, orders of jobs whose own are stored are sent so often."""
RETRY_S = 1.0
PROBE_S = 1.0
"""A refusal comes within a round trip."""


class Outbox:
    """Between the core and the world. `run` does the work; everything else only hands over."""

    def __init__(
        self,
        core: Core,
        archive: Archive,
        bus: Bus,
        in_charge: InCharge,
        now: Callable[[], Moment],
        feed: Callable[[Event], None],
    ):
        self._core, self._archive, self._bus, self._now, self._feed = core, archive, bus, now, feed
        self._in_charge = in_charge
        self._records: dict[JobId, JobRecord] = {}  #: not yet stored; the newest of each job
        self._policy = ""  #: a chosen policy that is not stored yet
        self._marks = False  #: whether those of forgotten jobs have to be stored again
        self._answers: dict[Request, Reply] = {}  #: to be given once the records are stored
        self._stored: deque[JobEvent] = deque(
            maxlen=EVENTS_HELD
        )  #: whose records are stored: to be published
        self._events: deque[JobEvent] = deque()  #: whose records may not be stored yet
        self._first = 0  #: number of the first of them, of all that there were
        self._dropping = False  #: whether that was said since some were published last
        self._removals: dict[JobId, bool] = {}  #: whether all keys of a job go
        self._forgets: deque[ForgetJobs] = deque()
        self._waiting: dict[Request, asyncio.Future[Reply]] = {}  #: who waits for which answer
        self._wake, self._wake_events, self._wake_removals = (
            asyncio.Event(),
            asyncio.Event(),
            asyncio.Event(),
        )
        self._tasks: asyncio.TaskGroup | None = None
        self._closing = False
        self.set_back = asyncio.Event()
        """Set when the store is found to have forgotten something: also what was removed may be there again."""

    def take(self, commands: Sequence[Command]) -> None:
        """Accept what one event has brought."""
        for command in commands:
            match command:
                case WriteRecord(record=record):
                    self._records[record.id] = record
                case KeepPolicy(name=name):
                    self._policy = name
                case PublishEvent(event=event):
                    why = shortened(event.reason, LOGGED_CHARACTERS)
                    log.info("job_changed", job=event.job, state=event.what, reason=why)
                    self._hold(event)
                case Answer(request=request, reply=reply):
                    self._answers[request] = reply
                case AskTerm():
                    self._ask(command)
                case Probe():
                    self._probe(command)
                case RemoveKeys():
                    self._removals[command.job] = command.all
                case ForgetJobs():
                    self._forgets.append(command)
                case Note(what=what, fields=fields, warning=warning):
                    (log.warning if warning else log.info)(what, **dict(fields))
        self._wake.set()

    async def say_plan(self, job: JobId) -> None:
        """Tell a leader its job's new plan of batches, past whatever waits for the store."""
        if self._bus.connected:
            await self._say(self._core.plans(job, self._now()))

    def answer_to(self, request: Request) -> asyncio.Future[Reply]:
        """The answer to a message, once it may be given; shared by repeats of the message."""
        if self._closing:
            raise RetryLater("the scheduler is stopping")
        future = self._waiting.get(request)
        if future is None:
            future = self._waiting[request] = asyncio.get_running_loop().create_future()
            future.add_done_callback(lambda _: self._waiting.pop(request, None))
        return future

    async def run(self) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            tasks.create_task(self._flush_loop(), name="outbox")
            tasks.create_task(self._publish_loop(), name="events")
            tasks.create_task(self._removal_loop(), name="removals")

    async def store(self) -> None:
        """Store what is not stored yet, and all of it again where the store has forgotten some."""
        while self._unstored():
            await self._store_batch()

    async def _store_batch(self) -> bool:
        """Store what is there now, and tell what rests on it; False if that must wait."""
        batch, answers, events = dict(self._records), dict(self._answers), self._next
        if policy := self._policy:
            await self._archive.keep_policy(policy)
            self._policy = "" if self._policy == policy else self._policy
        if self._marks:
            self._marks = False
            await self._archive.keep_marks(self._core.book.marks)
        await self._archive.write(batch)
        for job, record in batch.items():
            if self._records.get(job) is record:
                del self._records[job]
        if not self._in_charge.acts() or self._archive.lacks:
            return False
        # while more and more comes, nobody waits for the records of those who came after him
        self._give(answers)
        self._publish(events)
        return True

    def _unstored(self) -> bool:
        if self._archive.forgotten():
            known = self._core.book.records
            log.warning("store_has_forgotten", what="its newest writes or all", written=len(known))
            self.set_back.set()
            self._records = {**known, **self._records}
            self._marks = self._core.book.marks != Marks()
            self._policy = self._policy or self._archive.chosen
        return bool(self._policy or self._records or self._marks)

    def abandon(self) -> None:
        """Let everyone who waits for an answer, now or later, know that none will come from here."""
        self._closing = True
        for future in list(self._waiting.values()):
            if not future.done():
                future.set_exception(RetryLater("the scheduler is stopping"))

    def _ask(self, ask: AskTerm) -> None:
        async def grant() -> None:
            self._feed(await self._archive.grant(ask))

        assert self._tasks is not None
        self._tasks.create_task(grant(), name=f"term {ask.job}")

    def _probe(self, probe: Probe) -> None:
        async def look() -> None:
            try:
                async with asyncio.timeout(PROBE_S):
                    _, writer = await asyncio.open_connection(probe.host, probe.port)
            except ConnectionRefusedError:
                self._feed(ShardRefused(probe.shard, probe.incarnation))
            except (OSError, ValueError) as error:
                # out of reach, slow, or an address that is none: that says nothing of the process
                log.debug("probe_failed", shard=probe.shard, error=str(error))
            else:
                writer.close()

        assert self._tasks is not None
        self._tasks.create_task(look(), name=f"probe {probe.shard}")

    async def _flush_loop(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            sent_at = self._now().mono
            while self._unstored():
                if await self._store_batch() and self._now().mono - sent_at >= SENDS_S:
                    await self._send()
                    sent_at = self._now().mono
            while not self._in_charge.acts():
                await self._in_charge.acting()
                await self.store()  # what has come meanwhile
            # nothing is awaited from here until all that depends on the records is picked up
            self._give(dict(self._answers))
            self._publish(self._next)
            if self._removals or self._forgets:
                self._wake_removals.set()
            await self._send()

    def _give(self, answers: Mapping[Request, Reply]) -> None:
        """Give answers whose records are stored; one that was changed meanwhile waits for the newer record."""
        for request, reply in answers.items():
            if self._answers.get(request) is not reply:
                continue
            del self._answers[request]
            if (future := self._waiting.get(request)) is not None and not future.done():
                future.set_result(reply)

    @property
    def _next(self) -> int:
        """The number that the next event gets."""
        return self._first + len(self._events)

    def _hold(self, event: JobEvent) -> None:
        """Keep an event until its record is stored; of too many the oldest go."""
        self._events.append(event)
        if len(self._events) > EVENTS_HELD:
            if not self._dropping:
                log.error("events_dropped", held=EVENTS_HELD)
            self._dropping = True
            self._events.popleft()
            self._first += 1

    def _publish(self, before: int) -> None:
        """Have the events below a number published: their records are stored."""
        count = max(0, before - self._first)
        if len(self._stored) + count > EVENTS_HELD:
            log.error("events_dropped", held=EVENTS_HELD)
        for _ in range(count):
            self._stored.append(self._events.popleft())
        self._first, self._dropping = self._first + count, False
        self._wake_events.set()

    async def _send(self) -> None:
        """Say what members are to be told, of jobs whose records are stored; what is lost is said again a little later.

        A place that one job has left and another has got is in the records of both, which were stored together.
        """
        if not self._bus.connected:
            return
        await self._say(self._core.messages(self._now(), held=self._records))

    async def _say(self, messages: Sequence[Send]) -> None:
        for send in messages:
            if not self._in_charge.acts():
                return
            order = msgspec.structs.replace(send.message, by=self._in_charge.charge)
            kind = type(order).__name__
            log.debug("order", member=send.member, kind=kind, job=send.message.job)
            try:
                await self._bus.publish(
                    topology.COMMANDS,
                    send.member,
                    encode(order),
                    confirm=False,
                    timeout_s=SEND_S,
                )
            except RetryLater as error:
                log.warning("order_not_sent", member=send.member, kind=kind, error=str(error))
                return

    async def _publish_loop(self) -> None:
        # One that was given up may have arrived: said again it is the same message.
        said, message_id = None, ""
        while True:
            await self._wake_events.wait()
            self._wake_events.clear()
            while self._stored:
                event = self._stored[0]
                if event is not said:
                    said, message_id = event, uuid.uuid4().hex
                key = topology.event_key(event.job, event.what)
                try:
                    await self._bus.publish(
                        topology.EVENTS,
                        key,
                        encode(event),
                        message_id=message_id,
                        timeout_s=PUBLISH_S,
                    )
                except RetryLater as error:
                    log.warning(
                        "waiting_for",
                        whom="broker",
                        to="publish event",
                        held=len(self._stored),
                        error=str(error),
                    )
                    await asyncio.sleep(RETRY_S)
                else:
                    if self._stored and self._stored[0] is event:
                        self._stored.popleft()

    async def _removal_loop(self) -> None:
        while True:
            await self._wake_removals.wait()
            self._wake_removals.clear()
            while self._removals or self._forgets:
                removals, self._removals = self._removals, {}
                if whole := tuple(job for job, all_keys in removals.items() if all_keys):
                    await self._archive.remove_keys(whole)
                    self._feed(KeysRemoved(whole))
                for job in (job for job, all_keys in removals.items() if not all_keys):
                    await self._archive.remove_strays(job)
                if self._forgets:
                    forget = self._forgets.popleft()
                    await self._archive.forget(forget.jobs, forget.marks)
                    self._feed(JobsForgotten(forget.jobs))
