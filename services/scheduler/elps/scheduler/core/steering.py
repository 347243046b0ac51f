"""From sizes that a rule finds right to a decision: who starts, who gives up what, who is given more.

Common to `fair`, `srtf` and `optimus`, so that they differ in their rule alone:

1. Who waits is served in the rule's order and nobody overtakes, as far as the least of all fits into the pool; one that
   asks for more than the whole pool has is passed over and keeps its place.
2. The rule shares all slots out among those and the jobs that run: at least its least for everybody, and nobody who
   starts or pauses is taken from.
3. For newcomers, jobs give up at once what they have above their new size. Running jobs come to theirs as slots are
   free, and take them from one another only when both have been left alone for a while.
4. A free shard goes to the job with the fewest for its weight, one at a time. Those of running jobs are taken for
   newcomers only.

What is given up is given out only when it is free. Sizes begin with those that jobs have (`sharing`), so decisions come
to rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from elps.contracts.ids import JobId
from elps.scheduler.core.places import (
    FreeSlots,
    Spreading,
    by_room,
    counted,
    need,
    refilled_from,
    speeds_of,
    taken,
    too_large,
)
from elps.scheduler.core.policy import (
    Decision,
    Facts,
    HeldFact,
    QueuedFact,
    Refill,
    Resize,
    Start,
)
from elps.scheduler.core.shard_room import ShardRoom
from elps.scheduler.core.sharing import Limits, Worth, shared_out
from elps.scheduler.core.work import works

Jobs = Sequence[HeldFact | QueuedFact]


class Rule(Protocol):
    """What is right, by one policy."""

    margin: float
    """As of `sharing.shared_out`."""
    up: str
    """Why a job is given more, for people."""
    down: str
    shortest_first: bool = False
    """Those that wait are served by what is left of them, else in their order of arrival."""

    def worth(self, jobs: Jobs) -> Worth:
        """Of workers, to each job."""
        ...


def steered(facts: Facts, rule: Rule) -> Decision:
    """One decision by a rule."""
    return _Steering(facts, rule).decision()


class _Steering:
    """One decision in the making."""

    def __init__(self, facts: Facts, rule: Rule) -> None:
        self._facts, self._rule = facts, rule
        self._agents = {fact.agent: fact.free for fact in facts.agents if fact.free > 0}
        self._shards = {fact.shard: fact.free for fact in facts.shards}
        self._held = {job.job: job for job in facts.held}
        self._size = {job.job: job.workers for job in facts.held}  #: as it becomes
        self._width = {job.job: job.shards for job in facts.held}
        self._lacking = {lame.job: lame.missing for lame in facts.running if lame.missing}
        self._why: dict[JobId, str] = {}
        self._waits: list[tuple[JobId, str]] = []
        self._starts: list[Start] = []
        self._given_up: list[HeldFact] = []  #: of these a shard

    def decision(self) -> Decision:
        queue = self._queue()
        slots = self._facts.worker_slots
        served = self._served(queue, slots)
        wanted = self._sizes(served, slots)
        refills = self._refill(wanted, bool(served))
        waiting = self._start(served, wanted)
        if self._facts.settling:
            told = "the scheduler has just started and is discovering the pool"
            self._waits += [(job.job, told) for job in waiting]
        elif waiting:
            self._give_way(waiting, wanted)
        else:
            self._grow(wanted)
            self._level(wanted)
            self._widen()
        resizes = (
            Resize(job, self._size[job], self._width[job], why) for job, why in self._why.items()
        )
        return Decision(tuple(self._starts), tuple(refills), tuple(resizes), tuple(self._waits))

    def _queue(self) -> list[QueuedFact]:
        """Who waits, in the rule's order, but for those that the pool cannot hold."""
        queue = []
        order = list(self._facts.queued)
        if order and self._rule.shortest_first:
            everybody: Jobs = [*self._facts.held, *order]
            left = dict(zip((job.job for job in everybody), works(everybody), strict=True))
            order.sort(key=lambda job: left[job.job])
        for job in order:
            if reason := too_large(job, self._facts):
                self._waits.append((job.job, reason))
            else:
                queue.append(job)
        return queue

    def _served(self, queue: Sequence[QueuedFact], slots: int) -> list[QueuedFact]:
        """Those in front whose least can be had beside the least of all that run."""
        if not queue:
            return []
        room = ShardRoom(self._facts, self._shards, [j for j in self._held.values() if j.movable])
        left = slots - sum(job.least for job in self._facts.held)
        served: list[QueuedFact] = []
        for job in queue:
            if job.workers.min > left:
                lacking = counted(job.workers.min - left, "worker slot")
                why = f"all jobs are at their least: {lacking} more must be added or given back"
            elif not room.take(job.shards.min):
                why = "no more different shards have a free slot, nor can running jobs give one up: start more"
            else:
                left -= job.workers.min
                served.append(job)
                continue
            self._waits.append((job.job, f"{need(job)}; {why}"))
            break
        behind = "behind jobs that cannot be served yet"
        self._waits += [(job.job, behind) for job in queue[len(served) + 1 :]]
        self._given_up = room.given_up
        return served

    def _sizes(self, served: Sequence[QueuedFact], slots: int) -> dict[JobId, int]:
        """What is right for those that run and those that are served."""
        jobs: Jobs = [*self._facts.held, *served]
        limits = Limits(
            [j.workers for j in self._facts.held] + [0] * len(served),
            [j.least for j in self._facts.held] + [j.workers.min for j in served],
            [j.most for j in self._facts.held]
            + [max(j.workers.min, j.workers.max) for j in served],
        )
        sizes = shared_out(limits, self._rule.worth(jobs), slots, self._rule.margin)
        return dict(zip((job.job for job in jobs), sizes, strict=True))

    def _refill(self, wanted: Mapping[JobId, int], queued: bool) -> list[Refill]:
        """Give jobs what they lack; while somebody waits, no more than what is right for them."""
        lacking = []
        for lame in self._facts.running:
            known = self._held.get(lame.job)
            if queued and known is not None and lame.missing:
                there = known.workers - lame.missing
                right = max(there, wanted[lame.job])
                if right < known.workers:
                    self._resize(known, right, "others wait for what it lacks")
                lame = replace(lame, missing=right - there)
            lacking.append(lame)
        return refilled_from(self._shards, self._agents, lacking, speeds_of(self._facts))

    def _start(self, queue: Sequence[QueuedFact], wanted: Mapping[JobId, int]) -> list[QueuedFact]:
        """Start whoever can be started; returns the others, in order."""
        if not queue:
            return []
        free = Spreading(self._agents, speeds_of(self._facts))
        kept = sum(job.workers.min for job in queue)  # for those behind
        for n, job in enumerate(queue):
            shards = by_room(self._shards)
            kept -= job.workers.min
            if len(shards) < job.shards.min or free.left < job.workers.min:
                return list(queue[n:])
            count = max(job.workers.min, min(wanted[job.job], free.left - kept))
            agents = free.take(count, job.workers.min, held_up=job.held_up)
            shards = shards[: job.shards.max]
            for shard in shards:
                self._shards[shard] -= 1
            reason = (
                f"next in the queue; {counted(len(shards), 'shard')} and "
                f"{counted(len(agents), 'worker slot')} were free"
            )
            self._starts.append(Start(job.job, shards, agents, reason))
        return []

    def _give_way(self, waiting: Sequence[QueuedFact], wanted: Mapping[JobId, int]) -> None:
        """Have jobs that run give up what those that wait are to have, and is neither free nor on its way."""
        to = waiting[0].job
        lacking = sum(wanted[job.job] for job in waiting) - self._free()
        for job in self._richest(wanted, rested=False):
            above = min(self._size[job.job] - wanted[job.job], lacking)
            if above > 0:
                lacking -= above
                self._resize(
                    job, self._size[job.job] - above, f"gives way to {to}: {self._rule.down}"
                )
        for job in self._given_up:
            self._resize(job, self._size[job.job], f"gives way to {to}", shards=-1)
        told = "running jobs give way to it"
        self._waits += [(job.job, f"{need(job)}; {told}") for job in waiting]

    def _free(self) -> int:
        """Slots that are free or will be."""
        coming = sum(fact.clearing for fact in self._facts.agents)
        return sum(self._agents.values()) + max(coming, self._facts.retiring)

    def _richest(self, wanted: Mapping[JobId, int], *, rested: bool) -> list[HeldFact]:
        """Who has more than is right, whoever has most above it first."""
        able = [
            job
            for job in self._held.values()
            if job.movable
            and (not rested or job.calm_s >= job.rests_s)
            and self._size[job.job] > wanted[job.job]
        ]
        return sorted(able, key=lambda j: (wanted[j.job] - self._size[j.job], j.job))

    def _poorest(self, wanted: Mapping[JobId, int]) -> list[HeldFact]:
        """Who has less than is right and can be given more, whoever lacks most first."""
        able = [
            job
            for job in self._held.values()
            if job.growable
            and self._size[job.job] < wanted[job.job]
            and job.job not in self._lacking
            and (job.calm_s >= job.settles_s or not job.fed)
        ]
        return sorted(able, key=lambda j: (self._size[j.job] - wanted[j.job], j.job))

    def _grow(self, wanted: Mapping[JobId, int]) -> None:
        """Give what is free to those that have less than is right."""
        free = FreeSlots(self._agents, speeds_of(self._facts))
        for job in self._poorest(wanted) if free.left else ():
            given, lacks = 0, wanted[job.job] - self._size[job.job]
            while given < lacks and free.take(job):
                given += 1
            if given:
                self._resize(job, self._size[job.job] + given, self._rule.up)

    def _level(self, wanted: Mapping[JobId, int]) -> None:
        """Have those that have more than is right give it up, if somebody is calm enough to be given it."""
        if self._facts.retiring:
            return
        lacking = sum(
            wanted[job.job] - self._size[job.job]
            for job in self._poorest(wanted)
            if job.calm_s >= job.rests_s
        )
        lacking -= self._free()
        for job in self._richest(wanted, rested=True):
            above = min(self._size[job.job] - wanted[job.job], lacking)
            if above > 0:
                lacking -= above
                self._resize(job, self._size[job.job] - above, self._rule.down)

    def _widen(self) -> None:
        """One job is given a shard that is free; the one with the fewest for its weight."""
        if taken(self._facts, self._shards):
            return  # what is free is not what jobs were told of
        able = [
            job
            for job in self._held.values()
            if job.movable and job.room and job.calm_s >= job.rests_s and job.job not in self._why
            if job.shards < job.shard_bounds.max
        ]
        if able:
            best = max(able, key=lambda j: (j.weight / (j.shards + 1), j.job))
            self._resize(best, best.workers, "a shard is free", shards=1)

    def _resize(self, job: HeldFact, workers: int, why: str, *, shards: int = 0) -> None:
        self._size[job.job] = workers
        self._width[job.job] += shards
        before = self._why.get(job.job)
        self._why[job.job] = why if before in (None, why) else f"{before}; {why}"
