"""Early feedback first, then speed: running jobs give way to newcomers, and share the rest by what they gain.

1. A job that waits is given its least at once, from what is free or else from running jobs: a worker is taken where
   the least speed is lost, a shard where there are most; never below a job's least. As much more as would be its fair
   share comes from jobs that have given their early feedback and have more than theirs. Jobs without feedback come
   before the others, and are the last to be taken from. Several newcomers share what is free.
2. Who waits is served in order: nobody overtakes the head, so whoever may be served at all waits for no later one.
   Newcomers come before those that have given their feedback and were paused or displaced, but for `PATIENCE_S` only:
   from then on no job that arrived later is started before such a one.
3. When nobody waits, what is free goes to where it gains most: each job's speed by its number of workers is fitted from
   what was measured (`gain`), and gains are compared as ratios, so that equal jobs come to equal sizes.
4. When nothing is free either, a worker changes its job if what the one gains exceeds by a margin what the other loses,
   and both have been left alone for a while: a change costs both something, and the next may be needed soon.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from dataclasses import replace
from heapq import heapify, heappop, heapreplace

from elps.contracts.ids import JobId
from elps.scheduler.core.gain import LEAST_GAIN, gain
from elps.scheduler.core.places import (
    FreeSlots,
    Spreading,
    by_room,
    counted,
    need,
    refilled_from,
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
    RunningFact,
    Start,
)
from elps.scheduler.core.shard_room import ShardRoom

MARGIN = 1.25
"""So many times what is lost has to be gained before a worker changes its job."""
GROWS_S, MOVES_S = 1.0, 10.0
"""A job is left alone for so long after a change of its size, before it grows and before a worker changes its job."""
PATIENCE_S = 300.0
"""A job with feedback that has waited for so long is served in its order of arrival, as newcomers are."""
UNFED = 3.0
"""Weight of a job that has not given its early feedback, over that of one that has."""


class Eps:
    """The policy; see above."""

    name, resizes, told_held = "eps", True, True

    def decide(self, facts: Facts) -> Decision:
        """See `Policy.decide`."""
        return _Deciding(facts).decision()


class _Deciding:
    """One decision in the making: what is left, and what the jobs are to have."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._shards = {fact.shard: fact.free for fact in facts.shards}
        self._agents = {fact.agent: fact.free for fact in facts.agents if fact.free > 0}
        self._coming = max(sum(fact.clearing for fact in facts.agents), facts.retiring)
        self._held = {fact.job: fact for fact in facts.held}
        self._donors = [fact for fact in facts.held if fact.movable]
        #: what is free may be meant for them, who cannot be given it yet
        self._starting = any(fact.starting for fact in facts.held)
        #: workers that jobs shall have and that are not there
        self._missing = {lame.job: lame.missing for lame in facts.running}
        self._workers: dict[JobId, int] = {}  #: of jobs that are to have others than before
        self._width: dict[JobId, int] = {}
        self._why: dict[JobId, str] = {}
        self._starts: list[Start] = []
        self._waits: list[tuple[JobId, str]] = []

    def decision(self) -> Decision:
        queue = self._queue()
        refills = self._refill(queue)
        waiting = self._start(queue)
        if self._facts.settling:
            told = "the scheduler has just started and is discovering the pool"
            self._waits += [(job.job, told) for job in waiting]
        elif (not waiting or not self._take_for(waiting)) and not self._starting:
            self._grow()
            self._level()
        resizes = tuple(
            Resize(job, self._size(self._held[job]), self._shards_of(self._held[job]), why)
            for job, why in self._why.items()
        )
        return Decision(tuple(self._starts), tuple(refills), resizes, tuple(self._waits))

    def _queue(self) -> list[QueuedFact]:
        """Who waits, in order, but for those that the pool cannot hold."""
        queue = []
        for job in sorted(self._facts.queued, key=self._stands_back):
            if reason := too_large(job, self._facts):
                self._waits.append((job.job, reason))
            else:
                queue.append(job)
        return queue

    def _stands_back(self, job: QueuedFact) -> bool:
        """Whether newcomers that arrived later are served first."""
        return job.fed and self._facts.at - job.since < PATIENCE_S

    def _refill(self, queue: list[QueuedFact]) -> list[Refill]:
        """Give jobs what they lack; while somebody waits who can be served, no more than their least.

        Then they do not count on more. Were that so while nobody can be served, what is free would go to them (`_grow`)
        and be given up again each time.
        """
        lacking = sorted(self._facts.running, key=lambda r: self._is_fed(r.job))
        if not lacking or not queue:
            return self._refilled(lacking)
        bare = [replace(lame, missing=self._lacks_of_least(lame)) for lame in lacking]
        refills = self._refilled(bare)
        more = [lame.missing - least.missing for lame, least in zip(lacking, bare, strict=True)]
        if self._can_serve(queue[0]):
            for lame, by in zip(lacking, more, strict=True):
                if by:
                    self._resize(self._held[lame.job], -by, "others wait for what it lacks")
            return refills
        given = {refill.job: refill.agents for refill in refills}
        rest = [
            replace(
                lame, missing=by, missing_shards=0, agents=lame.agents + given.get(lame.job, ())
            )
            for lame, by in zip(lacking, more, strict=True)
        ]
        return refills + self._refilled(rest)

    def _refilled(self, lacking: Iterable[RunningFact]) -> list[Refill]:
        refills = refilled_from(self._shards, self._agents, lacking)
        for refill in refills:
            self._missing[refill.job] -= len(refill.agents)
        return refills

    def _lacks_of_least(self, lame: RunningFact) -> int:
        """Workers that a job needs to have its least."""
        known = self._held.get(lame.job)
        if known is None:
            return lame.missing
        return min(lame.missing, max(0, known.bounds.min - (known.workers - lame.missing)))

    def _can_serve(self, job: QueuedFact) -> bool:
        """Whether a job can be given its least of what is free and what others can give up."""
        enough = job.workers.min <= sum(self._agents.values()) + self._coming + self._spare()
        return enough and ShardRoom(self._facts, self._shards, self._donors).take(job.shards.min)

    def _spare(self) -> int:
        """Workers that are there and that jobs can give up."""
        missing = self._missing.get
        return sum([max(0, j.workers - missing(j.job, 0) - j.bounds.min) for j in self._donors])

    def _is_fed(self, job: JobId) -> bool:
        return job in self._held and self._held[job].fed

    # --- who waits ----------------------------------------------------------------------------------------------------

    def _start(self, queue: list[QueuedFact]) -> list[QueuedFact]:
        """Start whoever can be started; returns the others, in order."""
        waiting: list[QueuedFact] = []
        free = Spreading(self._agents)
        for n, job in enumerate(queue):
            shards = by_room(self._shards) if not waiting else ()
            if waiting or len(shards) < job.shards.min or free.left < job.workers.min:
                waiting.append(job)
                continue
            share = free.left // (len(queue) - n)
            agents = free.take(max(job.workers.min, min(job.workers.max, share)))
            shards = shards[: job.shards.max]
            for shard in shards:
                self._shards[shard] -= 1
            what = "has given its feedback before" if job.fed else "a newcomer"
            reason = f"{what}; {counted(len(shards), 'shard')} and {counted(len(agents), 'worker slot')} were free"
            self._starts.append(Start(job.job, shards, agents, reason))
        return waiting

    def _take_for(self, waiting: list[QueuedFact]) -> bool:
        """Have running jobs give up what those in front of the queue need; False if the first cannot be served."""
        free = sum(self._agents.values()) + self._coming
        spare = self._spare()
        shards = ShardRoom(self._facts, self._shards, self._donors)
        needed = wished = 0
        for n, job in enumerate(waiting):
            lacking = needed + job.workers.min - free - spare
            if lacking > 0:
                why = f"all jobs are at their least: {counted(lacking, 'worker slot')} more must be added or given back"
            elif not shards.take(job.shards.min):
                why = "no more different shards have a free slot, nor can running jobs give one up: start more"
            else:
                needed += job.workers.min
                wished += max(0, min(job.workers.max, self._fair(len(waiting))) - job.workers.min)
                self._waits.append((job.job, f"{need(job)}; running jobs give way to it"))
                continue
            if n == 0:
                self._waits.append((job.job, f"{need(job)}; {why}"))
            behind = "behind earlier jobs that cannot be served yet"
            self._waits += [(w.job, behind) for w in waiting[max(n, 1) :]]
            break
        for_least, for_share = max(0, needed - free), max(0, needed + wished - free)
        given = self._give_up(waiting[0].job, for_least, 0)
        if given == for_least:
            self._give_up(waiting[0].job, for_share - given, self._fair(len(waiting)))
        for donor in shards.given_up:
            self._resize(donor, 0, f"gives way to {waiting[0].job}", shards=-1)
        return needed > 0

    def _size(self, job: HeldFact) -> int:
        """Workers that it is to have."""
        return self._workers.get(job.job, job.workers)

    def _shards_of(self, job: HeldFact) -> int:
        return self._width.get(job.job, job.shards)

    def _fair(self, newcomers: int) -> int:
        """Worker slots of each job, if all had the same."""
        return self._facts.worker_slots // (len(self._held) + len(self._starts) + newcomers)

    def _give_up(self, to: JobId, number: int, above: int) -> int:
        """Take so many workers from jobs that have more than their least, and more than `above`; returns how many.

        What a newcomer is given beyond its least is taken only from jobs that have given their feedback.
        """
        if number <= 0:
            return 0
        size = self._workers.get
        able = [
            j.price if j.job not in self._workers else self._price(j)
            for j in self._donors
            if j.workers > above and (j.fed or not above)
            if size(j.job, j.workers) > (j.least if j.least > above else above)
        ]
        heapify(able)
        for given in range(number):
            if not able:
                return given
            donor = self._held[able[0][2]]
            self._resize(donor, -1, f"gives way to {to}")
            if self._size(donor) > max(donor.bounds.min, above):
                heapreplace(able, self._price(donor))
            else:
                heappop(able)
        return number

    def _price(self, job: HeldFact) -> tuple[bool, float, JobId]:
        """Of a worker fewer: the job with the least gives way."""
        now = self._size(job)
        return not job.fed, job.weight * gain(job.rates, now - 1, now), job.job

    # --- the others ---------------------------------------------------------------------------------------------------

    def _grow(self) -> None:
        """Give what is free to whoever gains most by it."""
        free = FreeSlots(self._agents)
        able = self._receivers(GROWS_S) if free.left else []
        ranked = sorted([(_weight(j) * j.gained, j.job) for j in able if j.gained > LEAST_GAIN])
        while ranked and free.left:
            best = self._held[ranked.pop()[1]]
            if not free.take(best):
                continue
            self._resize(best, 1, "a slot is free")
            size = self._size(best)
            if size < best.bounds.max and (gained := gain(best.rates, size, size + 1)) > LEAST_GAIN:
                insort(ranked, (_weight(best) * gained, best.job))
        if taken(self._facts, self._shards):
            return  # what is free is not what jobs were told of
        for job in self._facts.held:
            if not (
                job.room and job.movable and job.calm_s >= MOVES_S and job.job not in self._why
            ):
                continue
            if self._shards_of(job) < job.shard_bounds.max:
                self._resize(job, 0, "a shard is free", shards=1)
                return

    def _level(self) -> None:
        """Let one worker change its job, if that pays."""
        if self._coming:
            return
        free = FreeSlots(self._agents)
        able = self._receivers(MOVES_S)
        if not able or (free.left and any(free.usable(j) for j in able)):
            return
        donors = [
            j
            for j in self._donors
            if j.workers > j.bounds.min and j.calm_s >= MOVES_S and j.job not in self._why
        ]
        if not donors:
            return
        gained, to = max([(_weight(j) * j.gained, j.job) for j in able])
        lost, donor = min([(_weight(j) * j.lost, j.job) for j in donors])
        if to != donor and gained > MARGIN * lost and self._held[to].gained > LEAST_GAIN:
            self._resize(self._held[donor], -1, f"{to} gains more by it")
            self._resize(self._held[to], 1, f"gains more by it than {donor}")

    def _receivers(self, calm_s: float) -> list[HeldFact]:
        """Jobs that can be given a worker more, whose sizes are as they were told."""
        barred = {lame.job for lame in self._facts.running if lame.missing} | self._why.keys()
        return [
            j
            for j in self._facts.held
            if j.workers < j.bounds.max
            and (j.calm_s >= calm_s or not j.fed)
            and j.growable
            and j.job not in barred
        ]

    def _resize(self, job: HeldFact, by: int, why: str, *, shards: int = 0) -> None:
        """So many workers, and shards, more or fewer; all reasons are told."""
        self._workers[job.job] = self._size(job) + by
        self._width[job.job] = self._shards_of(job) + shards
        before = self._why.get(job.job)
        self._why[job.job] = why if before in (None, why) else f"{before}; {why}"


def _weight(job: HeldFact) -> float:
    return job.weight if job.fed else job.weight * UNFED
