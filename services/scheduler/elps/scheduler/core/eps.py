"""Early feedback first, then speed: running jobs give way to newcomers, and share the rest by what they gain.

1. A job that waits is given its least at once, from what is free or else from running jobs: a worker is taken where
   the least speed is lost, a shard where there are most; never below a job's least. As much more as would be its fair
   share comes from jobs that have given their early feedback and have more than theirs. Jobs without feedback come
   before the others, and are the last to be taken from. Several newcomers share what is free.
2. Who waits is served in order: nobody overtakes the head, so whoever may be served at all waits for no later one.
   Newcomers come before those that have given their feedback and were paused or displaced, but for `PATIENCE_S` only:
   from then on no job that arrived later is started before such a one.
3. When nobody waits, what is free goes to where it gains most (`growing`): each job's speed by its workers is fitted
   from what was measured (`gain`), and gains are compared as ratios, so that equal jobs come to equal sizes. A job
   counts more the more its loss is expected to improve (`curve`), within bounds.
4. When nothing is free either, a worker changes its job if what the one gains over a horizon exceeds what the other
   loses and what the change costs both, as measured (`costs`). Then both are left alone for as long as that has cost.
5. Machines differ (`machines`). Where the slowest worker holds the others up, that one is the first to go, and none is
   taken that would do so; where batches follow the workers' speeds, a slow one adds what it can.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from heapq import heapify, heappop, heapreplace

from elps.contracts.ids import JobId
from elps.scheduler.core.growing import Growing
from elps.scheduler.core.places import (
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
    RunningFact,
    Start,
)
from elps.scheduler.core.shard_room import ShardRoom
from elps.scheduler.core.sizing import Sizing

PATIENCE_S = 300.0
"""A job with feedback that has waited for so long is served in its order of arrival, as newcomers are."""


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
        self._speeds = speeds_of(facts)
        self._coming = max(sum(fact.clearing for fact in facts.agents), facts.retiring)
        self._sizing = Sizing(facts.held)
        self._held = self._sizing.held
        self._donors = [fact for fact in facts.held if fact.movable]
        #: what is free may be meant for them, who cannot be given it yet
        self._starting = any(fact.starting for fact in facts.held)
        #: workers that jobs shall have and that are not there
        self._missing = {lame.job: lame.missing for lame in facts.running}
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
        resizes = self._sizing.resizes()
        return Decision(tuple(self._starts), tuple(refills), resizes, tuple(self._waits))

    def _grow(self) -> None:
        growing = Growing(self._facts, self._sizing, self._agents, self._speeds)
        given = growing.give_workers()
        if not taken(self._facts, self._shards):  # else what is free is not what jobs were told of
            growing.give_shard()
        if not given and not self._coming:
            growing.move_worker()

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
        """Whether newcomers that arrived later are served first. Nobody has come to wait in the future: where the clock
        was set back, how long a job has waited is not known, and it may have been long.
        """
        return job.fed and 0 <= self._facts.at - job.since < PATIENCE_S

    def _refill(self, queue: list[QueuedFact]) -> list[Refill]:
        """Give jobs what they lack; while somebody waits who can be served, no more than their least.

        Then they do not count on more. Were that so while nobody can be served, what is free would go to them (`_grow`)
        and be given up again each time.
        """
        lacking = sorted(self._facts.running, key=lambda r: self._is_fed(r.job))
        if not lacking or not queue:
            refills = self._refilled(lacking)
            self._forgo(lacking)
            return refills
        bare = [replace(lame, missing=self._lacks_of_least(lame)) for lame in lacking]
        refills = self._refilled(bare)
        more = [lame.missing - least.missing for lame, least in zip(lacking, bare, strict=True)]
        if self._can_serve(queue[0]):
            for lame, by in zip(lacking, more, strict=True):
                if by:
                    self._sizing.resize(self._held[lame.job], -by, "others wait for what it lacks")
            return refills
        given = {refill.job: refill.agents for refill in refills}
        rest = [
            replace(
                lame, missing=by, missing_shards=0, agents=lame.agents + given.get(lame.job, ())
            )
            for lame, by in zip(lacking, more, strict=True)
        ]
        return refills + self._refilled(rest)

    def _forgo(self, lacking: Iterable[RunningFact]) -> None:
        """Who was offered slow workers alone, and is faster without, is to have no more than it has.

        Else it would be waiting for them, and take no part in what follows. It is given a fast one as any other job is.
        """
        for lame in lacking:
            held, missing = self._held.get(lame.job), self._missing[lame.job]
            if held is None or not (lame.held_up and held.movable and missing > 0):
                continue
            usable = sum(n for agent, n in self._agents.items() if agent not in lame.avoid)
            if (by := min(missing, usable, held.workers - held.bounds.min)) > 0:
                self._sizing.resize(held, -by, "what is free would hold its workers up")

    def _refilled(self, lacking: Iterable[RunningFact]) -> list[Refill]:
        refills = refilled_from(self._shards, self._agents, lacking, self._speeds)
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
        free = Spreading(self._agents, self._speeds)
        for n, job in enumerate(queue):
            shards = by_room(self._shards) if not waiting else ()
            if waiting or len(shards) < job.shards.min or free.left < job.workers.min:
                waiting.append(job)
                continue
            share = free.left // (len(queue) - n)
            wanted = max(job.workers.min, min(job.workers.max, share))
            agents = free.take(wanted, job.workers.min, held_up=job.held_up)
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
            self._sizing.resize(donor, 0, f"gives way to {waiting[0].job}", shards=-1)
        return needed > 0

    def _fair(self, newcomers: int) -> int:
        """Worker slots of each job, if all had the same."""
        return self._facts.worker_slots // (len(self._held) + len(self._starts) + newcomers)

    def _give_up(self, to: JobId, number: int, above: int) -> int:
        """Take so many workers from jobs that have more than their least, and more than `above`; returns how many.

        What a newcomer is given beyond its least is taken only from jobs that have given their feedback.
        """
        if number <= 0:
            return 0
        changed, size = self._sizing.why, self._sizing.size
        able = [
            j.price if j.job not in changed else self._price(j)
            for j in self._donors
            if j.workers > above and (j.fed or not above)
            if (size(j) if j.job in changed else j.workers)
            > (j.least if j.least > above else above)
        ]
        heapify(able)
        for given in range(number):
            if not able:
                return given
            donor = self._held[able[0][2]]
            self._sizing.resize(donor, -1, f"gives way to {to}")
            if self._sizing.size(donor) > max(donor.bounds.min, above):
                heapreplace(able, self._price(donor))
            else:
                heappop(able)
        return number

    def _price(self, job: HeldFact) -> tuple[bool, float, JobId]:
        """Of a worker fewer: the job with the least gives way."""
        counts = job.worth if job.fed else job.weight
        return not job.fed, counts * job.loss_of(self._sizing.size(job)), job.job
