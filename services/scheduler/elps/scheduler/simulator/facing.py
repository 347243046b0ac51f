"""What the policy is told of a simulated cluster: the facts that the scheduler's core tells it of a real one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from elps.contracts.ids import JobId
from elps.contracts.job import Pool as Size
from elps.scheduler.core.curve import standings
from elps.scheduler.core.facts import promised, uneven
from elps.scheduler.core.policy import Facts, HeldFact, QueuedFact, RunningFact
from elps.scheduler.simulator.running import Running
from elps.scheduler.simulator.slots import Slots
from elps.scheduler.simulator.workload import Job

STALE = 0.02
"""A fact is told anew when what is left of its job has changed by this part."""
WEIGHED_S = 10.0
"""So often it is looked at what jobs promise; also when one comes, gives its feedback or goes."""


class Teller:
    """Makes facts, and makes none anew that is still true, since a policy remembers what it made of it."""

    def __init__(self, *, resizes: bool, held_up: bool = False) -> None:
        self._resizes, self._held_up = resizes, held_up
        self._counts: dict[JobId, float] = {}  #: what jobs count for what they promise
        self._weighed_at = -math.inf
        self._queued: dict[JobId, QueuedFact] = {}
        self._held: dict[JobId, tuple[HeldFact, int, float]] = {}
        #: with the number of the shards' state, and when it was told

    def happened(self) -> None:
        """What jobs promise is to be weighed anew."""
        self._weighed_at = -math.inf

    def forget(self, job: JobId) -> None:
        """What was told of a job is not true any more."""
        self._held.pop(job, None)
        self._queued.pop(job, None)

    def facts(
        self,
        slots: Slots,
        queued: Iterable[Job],
        running: Sequence[Running],
        now: float,
        quiet_s: float,
    ) -> Facts:
        """All that a policy may know."""
        if self._resizes and now - self._weighed_at >= WEIGHED_S:
            self._weigh(running, now)
        held: list[HeldFact] = []
        lacking: list[RunningFact] = []
        retiring = moving = 0
        for run in running:
            retiring += len(run.leaving)
            moving += len(run.emptied)
            if len(run.agents) < run.size or len(run.shards) < run.width:
                lacking.append(self._lacking(run, slots))
            if self._resizes:
                held.append(self._told(run, slots, now))
        return Facts(
            shards=slots.shard_facts(),
            agents=slots.agent_facts(),
            queued=tuple(self._waiting(job) for job in queued),
            running=tuple(lacking),
            held=tuple(held),
            retiring=retiring,
            shards_moving=moving,
            at=now,
            quiet_s=quiet_s,
            all_slots=len(slots.agents),
        )

    def _weigh(self, running: Sequence[Running], now: float) -> None:
        """Compare what jobs that have given their feedback promise, as the core does."""
        self._weighed_at = now
        fed = [run for run in running if run.fed_at is not None]
        for run in fed:
            run.advance(now)
            run.evaluate()
        counts = standings([promised(run.curve, run.known_rates) for run in fed])
        found = {run.job.id: count for run, count in zip(fed, counts, strict=True)}
        for job in found.keys() | self._counts.keys():
            if found.get(job, 1.0) != self._counts.get(job, 1.0):
                self._held.pop(job, None)
        self._counts = found

    def _waiting(self, job: Job) -> QueuedFact:
        if (told := self._queued.get(job.id)) is None:
            told = self._queued[job.id] = QueuedFact(
                job.id,
                job.shards,
                self._asked(job),
                weight=job.weight,
                left=float(job.iterations),
                held_up=self._held_up,
            )
        return told

    def _asked(self, job: Job) -> Size:
        if self._resizes or job.fixed is None:
            return job.workers
        return Size(min=job.fixed, max=job.fixed)

    def _told(self, run: Running, slots: Slots, now: float) -> HeldFact:
        job, left = run.job, run.job.iterations - run.done
        widens = run.width < job.shards.max
        if (known := self._held.get(job.id)) is not None:
            fact, number, at = known
            calm = now == at or fact.calm_s > fact.rests_s
            same_room = not widens or number == slots.shards_changed
            if calm and same_room and abs((fact.left or 0.0) - left) <= STALE * left:
                return fact
        begun = run.begun_at is not None
        fact = HeldFact(
            job.id,
            run.size,
            job.workers,
            run.width,
            job.shards,
            fed=run.fed_at is not None,
            weight=job.weight,
            rates=run.known_rates,
            room=slots.room(job.id) if widens else 0,
            gives=tuple(reversed(run.shards[1:])),
            calm_s=now - run.resized_at,
            movable=begun and now >= run.stopped_until,
            growable=now >= run.stopped_until,
            left=left,
            speeds=uneven(slots.speeds_of(run.agents)),
            held_up=self._held_up,
            cost_s=run.cost.seconds,
            trend=run.trend,
            promise=self._counts.get(job.id, 1.0),
        )
        self._held[job.id] = fact, slots.shards_changed, now
        return fact

    def _lacking(self, run: Running, slots: Slots) -> RunningFact:
        missing_shards = max(0, run.width - len(run.shards)) if run.begun_at is not None else 0
        return RunningFact(
            run.job.id,
            max(0, run.size - len(run.agents)),
            tuple(dict.fromkeys(run.agents)),
            (),
            missing_shards,
            (*run.shards, *run.emptied),
            held_up=self._held_up,
            slowest=min(slots.speeds_of(run.agents), default=1.0),
            least=run.job.workers.min,
        )
