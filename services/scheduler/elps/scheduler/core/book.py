"""The books: records, what is known besides them, and the changes made to both during one event.

A record is what survives the scheduler; what does not is in `known`.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable

import msgspec

from elps.contracts.errors import IllegalEvent
from elps.contracts.ids import AgentId, JobId, ShardId, WorkerId
from elps.contracts.messages import JobEvent
from elps.contracts.requests import Reply
from elps.contracts.state import Allocation, JobRecord, JobState, Progress
from elps.contracts.texts import REASON_CHARACTERS, shortened
from elps.contracts.topology import DELETED
from elps.scheduler.core import life
from elps.scheduler.core.events import (
    Answer,
    Bounds,
    Command,
    Marks,
    MemberId,
    Moment,
    Note,
    PublishEvent,
    Request,
    WriteRecord,
)
from elps.scheduler.core.known import Live, Reign, Reservation, Retiring, Suspension
from elps.scheduler.core.life import GOES_ON, LifeEvent
from elps.scheduler.core.machines import Machines
from elps.scheduler.core.pool import Claims, Holding, Pool
from elps.scheduler.core.retention import Retention, after

REMEMBERED_REQUESTS = 4096
"""Answers kept for messages that come again."""
REMEMBERED_EXITS = 16
"""Ends of trainers told to the leader, per term."""


class Book:
    """All that the core knows. Changes go through its methods, which note what is to be written and published."""

    def __init__(
        self,
        records: Iterable[JobRecord],
        reserved: Iterable[JobId],
        now: Moment,
        bounds: Bounds,
        marks: Marks,
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
        self.removing: dict[JobId, None] = {}  #: jobs whose keys are being removed, all of them
        self.retention = Retention()
        self.started_at = now.mono  #: forgiven like all deadlines after deafness
        self.asked_at = -math.inf  #: when the policy was last asked although no job wanted anything
        self.served_at = -math.inf  #: when it was last asked since jobs wanted something
        self.heeded = -1  #: `news` as it was then
        self._changes = 0
        self.resizes = False  #: the policy changes the size of jobs that run
        self.echo_at: float | None = None  #: when the own heartbeat last came back
        self.event_at = now.mono  #: when something was last `happened`
        self.machines = Machines()
        self.attempts = 0
        self.probed: dict[ShardId, float] = {}  #: shards: when they were last, monotonic
        self._claims: Claims | None = None  #: as `claims` gives them; None: to be made anew
        self._holders: list[JobId] | None = (
            None  #: jobs with an allocation, by order of arrival; None as above
        )
        self.reserved_places: dict[JobId, None] = {}  #: jobs with a reservation
        for record in sorted(records, key=lambda r: (r.seq, r.id)):
            self.records[record.id] = record
            if record.state.ended:
                continue
            live = self.live[record.id] = Live(highest=record.terms)
            if record.allocation is not None:
                live.reign = self._reign_found(record.allocation, now.mono)
        self.retention.load(self.records.values())
        self.cleanup |= self.retention.deleted
        self.marks = marks  #: of the jobs that were forgotten
        self.next_seq = max([marks.seq, *(record.seq for record in self.records.values())]) + 1

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
        if self._holders is None:
            self._holders = [job for job in self.live if self.records[job].allocation is not None]
        found = []
        for job in self._holders:
            record, live = self.records[job], self.live[job]
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
        for record, allocation, _, _ in self.holding():
            for shard in allocation.shards:
                claims.setdefault(shard, {})[Holding(record.id)] = None
            for worker, agent in allocation.workers.items():
                claims.setdefault(agent, {})[Holding(record.id, worker)] = None
        for job in self.reserved_places:
            place = self.live[job].reservation
            assert place is not None
            for shard in place.start.shards:
                claims.setdefault(shard, {})[Holding(job)] = None
            for n, agent in enumerate(place.start.agents):
                claims.setdefault(agent, {})[Holding(job, WorkerId(f"+{n}"))] = None
        return claims

    @property
    def news(self) -> int:
        """Grows with each change of what a policy may be waiting for; what only time brings is not counted."""
        return self._changes + self.pool.changes

    def changed(self) -> None:
        """Something of that kind has changed which is in no record."""
        self._changes += 1

    def happened(self, now: Moment) -> None:
        """A job or a member came or went, or a job has given its feedback: reason enough to change sizes anew."""
        self.event_at = now.mono

    def speeds_of(self, agents: Iterable[AgentId]) -> tuple[float, ...]:
        """Of machines, beside a usual one."""
        if self.machines.even:
            return tuple(1.0 for _ in agents)
        known = self.pool.agents
        return tuple(self.machines.speed(a, known[a].kind if a in known else "") for a in agents)

    def discovers(self, now: Moment) -> bool:
        """Whether the scheduler has started just now, so that members may be there that were not heard yet."""
        return now.mono - self.started_at < self.bounds.settle_s

    def goal(self, job: JobId) -> str:
        """``pause`` or ``run``: what the leader is to do."""
        return "pause" if self.records[job].pausing or self.live[job].requeue else "run"

    # --- changing -----------------------------------------------------------------------------------------------------

    def add(self, record: JobRecord, now: Moment) -> None:
        """Enter a new job."""
        self.next_seq = record.seq + 1
        self.live[record.id] = Live(highest=record.terms)
        self.update(record, now)
        self.happened(now)
        self._publish(record, record.state.value, record.reason, record.changed_at, record.state)

    def update(self, record: JobRecord, now: Moment, *, news: bool = True) -> None:
        """Replace a record whose state is as before, and have it stored; `news`: more than progress and a reason."""
        old = self.records.get(record.id)
        if (old is None or old.allocation is None) != (record.allocation is None):
            self._holders = None
        if old is None or old.allocation is not record.allocation:
            self._claims = None
        self.records[record.id] = record
        self._changes += news
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
        if (
            record.state.ended
        ):  # whatever was heard of it, under whichever term, is then known to be its own
            record = msgspec.structs.replace(record, terms=max(record.terms, live.highest))
        if old.allocation is not None and record.allocation is None:
            self._take_back(old.allocation, job)
            live.reign = live.succession = None
            live.requeue = ""
        if record.state is not JobState.QUEUED:
            self.reserve(job, None)
        self.update(record, now)
        if event not in GOES_ON:
            self.happened(now)
        if record.state.ended:
            del self.live[job]
            self._holders = None
            self.cleanup[job] = None
            self.retention.ended[job] = None
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
        self.reserved_places.pop(job, None)
        if place is not None:
            self.reserved_places[job] = None
        self._claims = None
        self._changes += 1

    def explain(self, job: JobId, reason: str, now: Moment) -> None:
        """Give another reason for the state that a job is in; the record tells it, it is no event."""
        record = self.records[job]
        if record.reason != shortened(reason, REASON_CHARACTERS):
            told = msgspec.structs.replace(record, reason=shortened(reason, REASON_CHARACTERS))
            self.update(told, now, news=False)

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
            self.update(self.records[job], now, news=False)

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

    def hide(self, job: JobId, reason: str, now: Moment) -> None:
        """Have all that there is of an ended job gone; its record stays a little longer, and is shown to nobody."""
        self.retention.hide(job)
        self.update(msgspec.structs.replace(self.records[job], deleted_at=now.unix), now)
        self.cleanup[job] = None
        self.tell(job, DELETED, reason, now)

    def forget(self, job: JobId) -> None:
        """The store has nothing of a job any more."""
        self.retention.forgotten(job)
        self.marks = after(self.marks, self.records.pop(job))

    def tell(self, job: JobId, what: str, reason: str, now: Moment) -> None:
        """Tell everyone of a change that is none of its state, with the record as it is now."""
        self._publish(self.records[job], what, reason, now.unix)

    def answer(self, request: Request, reply: Reply) -> None:
        """Answer a user's message, and a repeat of it alike."""
        self.answers[request] = reply
        while len(self.answers) > REMEMBERED_REQUESTS:
            self.answers.popitem(last=False)
        self.out.append(Answer(request, reply))

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
