"""The books: records, what is known besides them, and the changes made to both during one event.

A record is what survives the scheduler. `Live` and `Reign` hold what is seen in heartbeats or counted
meanwhile; after a restart they are filled anew by the members' next heartbeats.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from elps.contracts.errors import IllegalEvent
from elps.contracts.ids import AgentId, JobId, ShardId, WorkerId
from elps.contracts.messages import HostedJob, JobEvent, Reply
from elps.contracts.state import Allocation, JobRecord, JobState, Progress
from elps.contracts.texts import REASON_CHARACTERS, shortened
from elps.scheduler.core import life
from elps.scheduler.core.batching import Batching
from elps.scheduler.core.events import (
    Bounds,
    Command,
    MemberId,
    Moment,
    Note,
    PublishEvent,
    Request,
    WriteRecord,
)
from elps.scheduler.core.gain import Speeds
from elps.scheduler.core.life import LifeEvent
from elps.scheduler.core.policy import Start
from elps.scheduler.core.pool import Claims, Holding, Pool

REMEMBERED_REQUESTS = 4096
"""Answers kept for messages that come again."""
REMEMBERED_EXITS = 16
"""Ends of trainers told to the leader, per term."""


@dataclass(frozen=True)
class Retiring:
    """A worker that is on its way out."""

    agent: AgentId
    why: str


@dataclass
class Reign:
    """What is known of a job under its present term."""

    placed_at: float  #: monotonic, s; forgiven like all deadlines after deafness
    begun_at: float | None = (
        None  #: since when iterations were computed: no shard is asked to join after that
    )
    hosted: dict[ShardId, None] = field(
        default_factory=dict
    )  #: shards whose heartbeat has shown the term
    lead: HostedJob | None = None  #: as in the leader's newest heartbeat
    started: dict[WorkerId, float] = field(
        default_factory=dict
    )  #: workers not yet ready: since when, monotonic
    shown: dict[WorkerId, None] = field(
        default_factory=dict
    )  #: workers that their agent's heartbeat has shown
    exits: dict[WorkerId, str] = field(default_factory=dict)  #: how workers ended, the newest last
    spared: set[WorkerId] = field(
        default_factory=set
    )  #: those of them that the network or their machine has let down
    retiring: dict[WorkerId, Retiring] = field(
        default_factory=dict
    )  #: not needed any more, but may finish what they compute: in no allocation, their agents still have them
    absent: dict[ShardId, float] = field(
        default_factory=dict
    )  #: shards of the job that do not show it: since when that is noticed, monotonic
    cut_off: dict[ShardId, float] = field(
        default_factory=dict
    )  #: shards that the leader cannot reach: since when it says so, monotonic
    unfit: dict[ShardId, float] = field(
        default_factory=dict
    )  #: shards that did not take it in time: until when it is not asked of them, monotonic
    astray_at: float | None = (
        None  #: since when the leader counts on a shard that the job does not have, monotonic
    )
    sent_away: bool = (
        False  #: a trainer had nothing more to do, and its leader has not been heard since
    )
    stranded_at: float | None = (
        None  #: since when it is to pause and nobody brings it to the boundary, monotonic
    )


@dataclass(frozen=True)
class Reservation:
    """A place that a queued job will take as soon as its term is there."""

    attempt: int
    start: Start


@dataclass(frozen=True)
class Succession:
    """Another shard is to lead a job as soon as its term is there."""

    attempt: int
    why: str


@dataclass
class Live:
    """What is known of a job that has not ended."""

    reign: Reign | None = None  #: present exactly while the record has an allocation
    reservation: Reservation | None = None  #: only while queued; set by `Book.reserve`
    succession: Succession | None = None  #: only while the record has an allocation
    requeue: str = ""  #: why the job shall be checkpointed and queued again; empty: it shall not
    failures: int = 0  #: trainers in a row that ended before they were ready
    cut_off_at: float | None = None  #: when one was counted last that was cut off, monotonic s
    late: int = 0  #: rounds in a row in which something was not ready in time
    avoid: dict[AgentId, None] = field(
        default_factory=dict
    )  #: agents on which its trainers do not start
    highest: int = 0  #: highest term number seen anywhere
    written_at: float = 0.0  #: monotonic, s; when the record was last handed out to be stored
    batching: Batching | None = None  #: of balanced jobs, since their leader was first heard
    speeds: Speeds = field(default_factory=Speeds)  #: measured, by number of workers
    resized_at: float = -math.inf  #: monotonic, s; when the policy last changed its size
    unwritten: bool = False  #: the record has changed since, in its progress or its reason


@dataclass
class Suspension:
    """A suspension whose answer is owed."""

    request: Request
    deadline: float
    jobs: list[JobId]


class Book:
    """All that the core knows. Changes go through its methods, which note what is to be written and published."""

    def __init__(
        self, records: Iterable[JobRecord], reserved: Iterable[JobId], now: Moment, bounds: Bounds
    ) -> None:
        self.bounds = bounds
        self.pool = Pool()
        self.records: dict[JobId, JobRecord] = {}  #: every job, ended ones too
        self.live: dict[JobId, Live] = {}  #: the jobs that have not ended, by order of arrival
        self.reserved = dict.fromkeys(
            reserved
        )  #: ids that are taken by records which this version cannot read
        self.out: list[Command] = []  #: what the event being handled has brought so far
        self.answers: OrderedDict[Request, Reply] = (
            OrderedDict()
        )  #: of the newest messages of users
        self.suspended = ""  #: why nothing is started any more; empty: things are
        self.suspensions: list[Suspension] = []
        self.suspended_until = now.mono  #: then the stack is still up, and goes on
        self.cleanup: dict[
            JobId, None
        ] = {}  #: ended jobs: what of their keys is not to stay goes once no shard can write any
        self.started_at = now.mono  #: forgiven like all deadlines after deafness
        self.asked_at = -math.inf  #: when the policy was last asked although no job wanted anything
        self.resizes = False  #: the policy changes the size of jobs that run
        self.echo_at: float | None = None  #: when the own heartbeat last came back
        self.attempts = 0
        self.probed: dict[ShardId, float] = {}  #: shards: when they were last, monotonic
        self._claims: Claims | None = None  #: as `claims` gives them; None: to be made anew
        for record in sorted(records, key=lambda r: (r.seq, r.id)):
            self.records[record.id] = record
            if record.state.ended:
                continue
            live = self.live[record.id] = Live(highest=record.terms)
            if record.allocation is not None:
                live.reign = self._reign_found(record.allocation, now.mono)
        self.next_seq = max((record.seq for record in self.records.values()), default=0) + 1

    @staticmethod
    def _reign_found(allocation: Allocation, now: float) -> Reign:
        """What a restarted scheduler assumes of a job that held something: that it goes on, and all of it is there.

        If it had not begun yet it is placed anew when its shards do not show it; asking one of them to join now
        might bring in an empty one in the place of one that died meanwhile.
        """
        return Reign(
            placed_at=now,
            begun_at=now,
            started=dict.fromkeys(allocation.workers, now),
            shown=dict.fromkeys(allocation.workers),
        )

    # --- looking up ---------------------------------------------------------------------------------------------------

    def holding(self) -> list[tuple[JobRecord, Allocation, Live, Reign]]:
        """Jobs with an allocation, by order of arrival."""
        found = []
        for job, live in self.live.items():
            record = self.records[job]
            if record.allocation is not None and live.reign is not None:
                found.append((record, record.allocation, live, live.reign))
        return found

    def claims(self) -> Claims:
        """What allocations and reservations give to each member. What was returned once never changes."""
        if self._claims is None:
            self._claims = self.counted_claims()
        return self._claims

    def counted_claims(self) -> Claims:
        """The same, made from the records now."""
        claims: dict[MemberId, dict[Holding, None]] = {}
        for job, live in self.live.items():
            allocation = self.records[job].allocation
            if allocation is not None:
                for shard in allocation.shards:
                    claims.setdefault(shard, {})[Holding(job)] = None
                for worker, agent in allocation.workers.items():
                    claims.setdefault(agent, {})[Holding(job, worker)] = None
            if live.reservation is not None:
                for shard in live.reservation.start.shards:
                    claims.setdefault(shard, {})[Holding(job)] = None
                for n, agent in enumerate(live.reservation.start.agents):
                    claims.setdefault(agent, {})[Holding(job, WorkerId(f"+{n}"))] = None
        return claims

    def goal(self, job: JobId) -> str:
        """``pause`` or ``run``: what the leader is to do."""
        return "pause" if self.records[job].pausing or self.live[job].requeue else "run"

    # --- changing -----------------------------------------------------------------------------------------------------

    def add(self, record: JobRecord, now: Moment) -> None:
        """Enter a new job."""
        self.next_seq = record.seq + 1
        self.live[record.id] = Live()
        self.update(record, now)
        self._publish(record, record.state.value, record.reason, record.changed_at, record.state)

    def update(self, record: JobRecord, now: Moment) -> None:
        """Replace a record whose state is as before, and have it stored."""
        self.records[record.id] = record
        self._claims = None
        if live := self.live.get(record.id):
            live.written_at, live.unwritten = now.mono, False
        self.out.append(WriteRecord(record))

    def change(
        self,
        job: JobId,
        event: LifeEvent,
        reason: str,
        now: Moment,
        allocation: Allocation | None = None,
    ) -> JobRecord:
        """Change the state of a job, give back what it no longer holds, and tell everyone why."""
        old = self.records[job]
        record = life.change(old, event, shortened(reason, REASON_CHARACTERS), now.unix, allocation)
        if allocation is not None:
            record = msgspec.structs.replace(record, terms=allocation.term.number)
        live = self.live[job]
        if old.allocation is not None and record.allocation is None:
            self._take_back(old.allocation, job)
            live.reign = live.succession = None
            live.requeue = ""
        if record.state is not JobState.QUEUED:
            self.reserve(job, None)
        self.update(record, now)
        if record.state.ended:
            del self.live[job]
            self.cleanup[job] = None
        self._publish(record, record.state.value, record.reason, record.changed_at, record.state)
        return record

    def fail(self, job: JobId, reason: str, now: Moment) -> None:
        """Give a job up."""
        self.change(job, LifeEvent.FAILED, reason, now)

    def displace(self, job: JobId, reason: str, now: Moment) -> None:
        """Take away what a job holds; it waits in its old place, or is paused if that was asked for."""
        pausing = self.records[job].pausing
        self.change(job, LifeEvent.PAUSED if pausing else LifeEvent.DISPLACED, reason, now)

    def reserve(self, job: JobId, place: Reservation | None) -> None:
        """Keep a place for a queued job, or give it up."""
        self.live[job].reservation = place
        self._claims = None

    def explain(self, job: JobId, reason: str, now: Moment) -> None:
        """Give another reason for the state that a job is in; the record tells it, it is no event."""
        record = self.records[job]
        if record.reason != shortened(reason, REASON_CHARACTERS):
            self.update(
                msgspec.structs.replace(record, reason=shortened(reason, REASON_CHARACTERS)), now
            )

    def observe(
        self, job: JobId, now: Moment, progress: Progress | None = None, reason: str | None = None
    ) -> None:
        """Note how far a job is and what its leader says of it. Both change all the time.

        So they are stored every few seconds, and with each change of state.
        """
        record, live = self.records[job], self.live[job]
        progress = record.progress if progress is None else progress
        reason = record.reason if reason is None else shortened(reason, REASON_CHARACTERS)
        if (record.progress, record.reason) != (progress, reason):
            self.records[job] = msgspec.structs.replace(record, progress=progress, reason=reason)
            live.unwritten = True
        if live.unwritten and now.mono - live.written_at >= self.bounds.progress_s:
            self.update(self.records[job], now)

    def dismiss(
        self, job: JobId, worker: WorkerId, reason: str, now: Moment, *, spared: bool = False
    ) -> None:
        """Take one worker away from a job that goes on; its leader is told why, and lends its work to others."""
        reign, agent = self._take_worker(job, worker, now)
        self.tell_exit(reign, worker, reason, spared=spared)
        self.note("worker_dismissed", True, job=job, worker=worker, agent=agent, reason=reason)

    def retire(self, job: JobId, worker: WorkerId, reason: str, now: Moment) -> None:
        """Take one worker away that may finish what it computes: until it is gone its leader still knows it."""
        reign, agent = self._take_worker(job, worker, now)
        reign.retiring[worker] = Retiring(agent, reason)
        self.note("worker_retired", job=job, worker=worker, agent=agent, reason=reason)

    def retired(self, job: JobId, worker: WorkerId, now: Moment) -> None:
        """A worker that was on its way out is gone: the leader is to hear that nobody is to be expected any more."""
        reign, allocation = self.live[job].reign, self.records[job].allocation
        if reign is None or allocation is None:
            raise IllegalEvent(f"job {job} holds nothing")
        del reign.retiring[worker]
        self.reallocate(job, now, plan=allocation.plan + 1)

    @staticmethod
    def tell_exit(reign: Reign, worker: WorkerId, how: str, *, spared: bool = False) -> None:
        """Have the leader told that a worker has ended; `spared`: for nothing that it computed."""
        reign.exits[worker] = how
        if spared:
            reign.spared.add(worker)
        for old in list(reign.exits)[:-REMEMBERED_EXITS]:
            del reign.exits[old]
            reign.spared.discard(old)

    def _take_worker(self, job: JobId, worker: WorkerId, now: Moment) -> tuple[Reign, AgentId]:
        record, reign = self.records[job], self.live[job].reign
        if record.allocation is None or reign is None or worker not in record.allocation.workers:
            raise IllegalEvent(f"job {job} has no worker {worker}")
        agent = record.allocation.workers[worker]
        workers = {w: a for w, a in record.allocation.workers.items() if w != worker}
        self.pool.take_back(agent, Holding(job, worker), record.allocation.term)
        reign.started.pop(worker, None)
        reign.shown.pop(worker, None)
        self.reallocate(job, now, workers=workers)
        return reign, agent

    def release(self, job: JobId, shard: ShardId, now: Moment) -> None:
        """Take one shard away from a job that goes on; it is told to drop the job, and its slot is free after that."""
        record, reign = self.records[job], self.live[job].reign
        if record.allocation is None or reign is None or shard not in record.allocation.shards[1:]:
            raise IllegalEvent(f"job {job} has no shard {shard} beside its leader")
        self.pool.take_back(shard, Holding(job), record.allocation.term)
        reign.hosted.pop(shard, None)
        reign.absent.pop(shard, None)
        incarnations = record.allocation.incarnations
        self.reallocate(
            job,
            now,
            shards=[s for s in record.allocation.shards if s != shard],
            incarnations={s: i for s, i in incarnations.items() if s != shard},
        )

    def reallocate(self, job: JobId, now: Moment, **changes: object) -> Allocation:
        """Change what a job holds, or shall hold, under its term."""
        record = self.records[job]
        if record.allocation is None:
            raise IllegalEvent(f"job {job} holds nothing")
        allocation = msgspec.structs.replace(record.allocation, **changes)
        self.update(msgspec.structs.replace(record, allocation=allocation), now)
        return allocation

    def tell(self, job: JobId, what: str, reason: str, now: Moment) -> None:
        """Tell everyone of a change that is none of its state, with the record as it is now."""
        self._publish(self.records[job], what, reason, now.unix)

    def note(self, what: str, warning: bool = False, **fields: object) -> None:
        """Have something logged."""
        self.out.append(Note(what, tuple(fields.items()), warning))

    def _take_back(self, allocation: Allocation, job: JobId) -> None:
        for shard in allocation.shards:
            self.pool.take_back(shard, Holding(job), allocation.term)
        for worker, agent in allocation.workers.items():
            self.pool.take_back(agent, Holding(job, worker), allocation.term)

    def _publish(
        self, record: JobRecord, what: str, reason: str, at: float, state: JobState | None = None
    ) -> None:
        self.out.append(
            PublishEvent(
                JobEvent(
                    job=record.id,
                    what=what,
                    at=at,
                    reason=reason,
                    state=state,
                    iteration=record.progress.iteration,
                    record=msgspec.structs.replace(record, secret=""),
                )
            )
        )
