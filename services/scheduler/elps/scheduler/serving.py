"""One scheduler while it is in charge: what comes in goes to the core, what the core commands goes to the outbox."""

from __future__ import annotations

import asyncio
import os
import socket
import uuid
from collections.abc import Mapping
from importlib.metadata import version
from typing import TypeAlias

import structlog

from elps.contracts import topology
from elps.contracts.beats import read_beat
from elps.contracts.codec import decode, encode
from elps.contracts.epoch import Charge
from elps.contracts.errors import InvalidDocument, RetryLater
from elps.contracts.ids import JobId
from elps.contracts.messages import AgentBeat, SchedulerBeat, ShardBeat
from elps.contracts.requests import JobCommand, PolicyCommand, Reply, ScaleCommand, SuspendCommand
from elps.contracts.state import JobRecord
from elps.contracts.telemetry import IterationTimings
from elps.messaging.port import Delivery, Queue, Subscription
from elps.runtime.schedule import every
from elps.runtime.service import Context
from elps.scheduler.archive import Archive
from elps.scheduler.charge import InCharge
from elps.scheduler.core import groups
from elps.scheduler.core.core import Core
from elps.scheduler.core.events import (
    AgentBeaten,
    EchoHeard,
    Event,
    JobSubmitted,
    Moment,
    Request,
    ShardBeaten,
    Ticked,
    UserAsked,
)
from elps.scheduler.core.policies import POLICIES
from elps.scheduler.core.policy import Policy
from elps.scheduler.core.users import read_submission
from elps.scheduler.outbox import Outbox
from elps.scheduler.settings import Settings

log = structlog.get_logger(__name__)

ANSWER_S = 60.0
"""How long a user's message waits for the store before it is tried again."""
FLUSH_S = 5.0
"""How long the end waits for the store."""
TIMINGS_HELD = 1_000
"""Beyond it the oldest are dropped: the newest say what the next batches need."""
PLACES_S = 0.02
"""Jobs that are handed in within it are placed together."""
TICKS_PER_BEAT = 4
"""Deadlines are looked at so often."""
USER_KEYS = (
    topology.SUBMIT,
    topology.KILL,
    topology.PAUSE,
    topology.RESUME,
    topology.SCALE,
    topology.SUSPEND,
    topology.EXPLAIN,
    topology.POLICY,
    topology.DELETE,
)
MEMBER_KEYS = (topology.AGENT_BEAT, topology.SHARD_BEAT, topology.SCHEDULER_BEAT)

CommandBody: TypeAlias = JobCommand | ScaleCommand | SuspendCommand | PolicyCommand


class Serving:
    """From the reading of the records until the end, or until another scheduler is in charge."""

    def __init__(
        self,
        context: Context,
        settings: Settings,
        in_charge: InCharge,
        kept: Mapping[JobId, JobRecord],
    ) -> None:
        """`kept` are records that the store should have, and has again where it lacks them or knows older ones."""
        self._kept = kept
        self._bus, self._clock, self._settings = context.bus, context.clock, settings
        self._in_charge = in_charge
        self._archive = Archive(context.store, in_charge, settings.policy)
        self._incarnation = uuid.uuid4().hex
        self._seq = 0
        self._rival = ""  #: incarnation of another scheduler in charge that was heard last
        self.core: Core
        self._outbox: Outbox | None = None  #: once the records are loaded
        self._subscriptions: list[Subscription] = []
        self._placing: asyncio.TimerHandle | None = None  #: until then new jobs are waited for
        self._closing = False

    @property
    def records(self) -> Mapping[JobId, JobRecord]:
        """All jobs as they are known here."""
        return self._kept if self._outbox is None else self.core.book.records

    async def close(self) -> None:
        """Take in nothing more; what waits for an answer goes back to its queue."""
        self._closing = True
        if self._outbox is not None:
            self._outbox.abandon()
        await asyncio.gather(*(subscription.cancel() for subscription in self._subscriptions))

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set; `Superseded` if another scheduler is in charge before."""
        found = await self._archive.load(self._kept)
        self.core = Core(
            found.records,
            self._now(),
            bounds=self._settings.bounds(),
            policy=await self._policy(),
            groups=groups.read(self._settings.groups),
            reserved=found.unreadable,
            marks=found.marks,
        )
        outbox = Outbox(self.core, self._archive, self._bus, self._in_charge, self._now, self.feed)
        self._outbox = outbox
        log.info("jobs_loaded", unreadable=len(found.unreadable), **self.core.counts())
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(outbox.run(), name="outbox")
                tasks.create_task(self._look_for_leftovers(outbox.set_back), name="leftovers")
                await self._listen()
                log.info("scheduler_serves", policy=self.core.policy.name)
                beat_s = self._settings.beat_s
                tasks.create_task(every(beat_s, self._beat, stop), name="beat")
                tasks.create_task(every(beat_s / TICKS_PER_BEAT, self._tick, stop), name="tick")
        finally:
            try:
                async with asyncio.timeout(FLUSH_S):
                    await outbox.store()
            except TimeoutError:
                log.error(
                    "records_not_stored", reason=f"the store did not answer within {FLUSH_S:g} s"
                )

    async def _policy(self) -> Policy:
        """As a user has chosen it, unless the setting has changed since."""
        chosen = await self._archive.policy()
        return POLICIES.get(chosen, self._settings.chosen_policy())

    async def _listen(self) -> None:
        """Members first: jobs are placed by what is heard of them."""
        members = Queue(
            f"elps.scheduler.members.{self._incarnation}",
            tuple((topology.MEMBERS, key) for key in MEMBER_KEYS),
        )
        jobs = Queue(
            topology.SCHEDULER_JOBS_QUEUE,
            tuple((topology.JOBS, key) for key in USER_KEYS),
            durable=True,
            priority=self._in_charge.charge.number,  # before one that was followed and does not know it yet
        )
        timings = Queue(
            f"elps.scheduler.timings.{self._incarnation}",
            ((topology.TELEMETRY, topology.TIMINGS_KEYS),),
            max_length=TIMINGS_HELD,
        )
        for queue, handler in (
            (members, self._on_member),
            (jobs, self._on_job),
            (timings, self._on_timings),
        ):
            while True:
                try:
                    self._subscriptions.append(await self._bus.subscribe(queue, handler))
                    break
                except RetryLater as error:
                    log.warning(
                        "waiting_for",
                        whom="broker",
                        to=f"subscribe to {queue.name}",
                        error=str(error),
                    )
                    await asyncio.sleep(self._settings.beat_s)

    def feed(self, event: Event) -> None:
        """Have the core handle an event, now; new jobs are placed a little later, those that come together at once."""
        assert self._outbox is not None
        if not isinstance(event, JobSubmitted):
            self._placing = None
            self._outbox.take(self.core.handle(event, self._now()))
            return
        self._outbox.take(self.core.take_in(event, self._now()))
        if self._placing is None:
            self._placing = asyncio.get_running_loop().call_later(PLACES_S, self._place)

    def _place(self) -> None:
        if self._placing is not None and not self._closing:
            self.feed(Ticked())

    def _now(self) -> Moment:
        return Moment(self._clock.monotonic(), self._clock.time())

    async def _on_member(self, delivery: Delivery) -> None:
        message = read_beat(delivery.body)
        match message:
            case ShardBeat():
                self._in_charge.obeyed(message.obeys)
                self.feed(ShardBeaten(message))
            case AgentBeat():
                self._in_charge.obeyed(message.obeys)
                self.feed(AgentBeaten(message))
            case SchedulerBeat(incarnation=incarnation) if incarnation == self._incarnation:
                self.feed(EchoHeard())
            case SchedulerBeat(charge=None):
                pass  # a standby
            case SchedulerBeat(incarnation=incarnation) if incarnation != self._rival:
                self._rival = incarnation
                log.warning(
                    "other_scheduler_heard",
                    host=message.host,
                    pid=message.pid,
                    incarnation=incarnation,
                )

    async def _on_timings(self, delivery: Delivery) -> None:
        assert self._outbox is not None
        timings = decode(delivery.body, IterationTimings)
        if self.core.timed(timings):
            await self._outbox.say_plan(timings.job)

    async def _on_job(self, delivery: Delivery) -> None:
        request = Request(delivery.message_id or uuid.uuid4().hex)
        try:
            event = self._read(delivery, request)
        except InvalidDocument as error:
            count = len(error.problems)
            reason = f"refused: {count} problem{'s' if count != 1 else ''} in {error.what}"
            reply = Reply(ok=False, reason=reason, problems=list(error.problems))
            await self._bus.respond(delivery, encode(reply))
            raise
        assert self._outbox is not None
        answer = self._outbox.answer_to(request)
        self.feed(event)
        try:
            async with asyncio.timeout(ANSWER_S + self._settings.suspend_s):
                reply = await asyncio.shield(answer)
        except TimeoutError:
            raise RetryLater(f"{delivery.routing_key}: the store does not answer") from None
        log.info(
            "user_answered",
            what=delivery.routing_key,
            job=reply.job,
            ok=reply.ok,
            reason=reply.reason,
            message_id=request,
        )
        await self._bus.respond(delivery, encode(reply))

    @staticmethod
    def _read(delivery: Delivery, request: Request) -> Event:
        what = delivery.routing_key
        if what == topology.SUBMIT:
            return JobSubmitted(request, read_submission(delivery.body, delivery.message_id))
        kind: type[CommandBody] = JobCommand
        if what == topology.SCALE:
            kind = ScaleCommand
        elif what == topology.SUSPEND:
            kind = SuspendCommand
        elif what == topology.POLICY:
            kind = PolicyCommand
        return UserAsked(request, what, decode(delivery.body, kind))

    async def _tick(self) -> None:
        self.feed(Ticked())

    async def _beat(self) -> None:
        self._seq += 1
        charge, at = self._in_charge.charge, self._clock.time()
        message = beat(self._incarnation, self._seq, charge, self.core.counts(), at=at)
        await self._bus.publish(
            topology.MEMBERS, topology.SCHEDULER_BEAT, encode(message), confirm=False
        )

    async def _look_for_leftovers(self, again: asyncio.Event) -> None:
        """Keys of jobs that were killed, or deleted, while the scheduler could not remove them.

        A store that has forgotten something may have forgotten that they were removed.
        """
        while True:
            self.core.keys_found(await self._archive.jobs_with_keys())
            await again.wait()
            again.clear()


def beat(
    incarnation: str,
    seq: int,
    charge: Charge | None,
    jobs: dict[str, int],
    *,
    at: float,
    leaving: bool = False,
) -> SchedulerBeat:
    """What a scheduler tells of itself; `at` is Unix time."""
    return SchedulerBeat(
        incarnation=incarnation,
        seq=seq,
        host=socket.gethostname(),
        pid=os.getpid(),
        jobs=jobs,
        version=version("elps"),
        charge=charge,
        leaving=leaving,
        at=at,
    )
