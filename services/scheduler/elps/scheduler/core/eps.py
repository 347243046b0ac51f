"""Early feedback first, then speed: running jobs give way to newcomers, and share the rest by what they gain.

1. A job that waits is given its least at once, from what is free or else from running jobs: a worker is taken where
   the least speed is lost, a shard where there are most; never below a job's least. As much more as would be its fair
   share comes from jobs that have given their early feedback and have more than theirs. Jobs without feedback come
   before the others, and are the last to be taken from. Several newcomers share what is free.
2. Who waits is served in order: nobody overtakes the head, so whoever may be served at all waits for no later one.
3. When nobody waits, what is free goes to where it gains most: each job's speed by its number of workers is fitted from
   what was measured (`gain`), and gains are compared as ratios, so that equal jobs come to equal sizes.
4. When nothing is free either, a worker changes its job if what the one gains exceeds by a margin what the other loses,
   and both have been left alone for a while: a change costs both something, and the next may be needed soon.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from heapq import heapify, heappop, heapreplace

from elps.contracts.ids import AgentId, JobId
from elps.scheduler.core.gain import LEAST_GAIN, gain
from elps.scheduler.core.places import Spreading, by_room, counted, need, refilled_from, too_large
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

MARGIN = 1.25
"""So many times what is lost has to be gained before a worker changes its job."""
GROWS_S, MOVES_S = 1.0, 10.0
"""A job is left alone for so long after a change of its size, before it grows and before a worker changes its job."""
UNFED = 3.0
"""Weight of a job that has not given its early feedback, over that of one that has."""


class Eps:
    """The policy; see above."""

    name, resizes = "eps", True

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
        self._workers = {fact.job: fact.workers for fact in facts.held}
        self._width = {fact.job: fact.shards for fact in facts.held}
        self._why: dict[JobId, str] = {}
        self._starts: list[Start] = []
        self._waits: list[tuple[JobId, str]] = []

    def decision(self) -> Decision:
        queue = self._queue()
        refills = self._refill(bool(queue))
        waiting = self._start(queue)
        if self._facts.settling:
            told = "the scheduler has just started and is discovering the pool"
            self._waits += [(job.job, told) for job in waiting]
        elif not waiting or not self._take_for(waiting):
            self._grow()
            self._level()
        resizes = tuple(
            Resize(job, self._workers[job], self._width[job], why) for job, why in self._why.items()
        )
        return Decision(tuple(self._starts), tuple(refills), resizes, tuple(self._waits))

    def _queue(self) -> list[QueuedFact]:
        """Who waits, in order, but for those that the pool cannot hold."""
        queue = []
        for job in sorted(self._facts.queued, key=lambda q: q.fed):
            if reason := too_large(job, self._facts):
                self._waits.append((job.job, reason))
            else:
                queue.append(job)
        return queue

    def _refill(self, queued: bool) -> list[Refill]:
        """Give jobs what they lack; while somebody waits, no more than their least, and they do not count on more."""
        lacking = []
        for job in sorted(self._facts.running, key=lambda r: self._is_fed(r.job)):
            known, missing = self._held.get(job.job), job.missing
            if queued and known is not None and missing:
                there = known.workers - missing
                least = max(known.bounds.min, there)
                if least < known.workers:
                    self._resize(known, least - known.workers, "others wait for what it lacks")
                missing = least - there
            lacking.append(replace(job, missing=missing))
        return refilled_from(self._shards, self._agents, lacking)

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
        spare = sum(self._workers[j.job] - j.bounds.min for j in self._donors())
        shards = ShardRoom(self._facts, self._shards, self._donors())
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

    def _donors(self) -> list[HeldFact]:
        return [j for j in self._held.values() if j.movable]

    def _fair(self, newcomers: int) -> int:
        """Worker slots of each job, if all had the same."""
        return self._facts.worker_slots // (len(self._held) + len(self._starts) + newcomers)

    def _give_up(self, to: JobId, number: int, above: int) -> int:
        """Take so many workers from jobs that have more than their least, and more than `above`; returns how many.

        What a newcomer is given beyond its least is taken only from jobs that have given their feedback.
        """
        if number <= 0:
            return 0
        able = [
            (not j.fed, self._loss(j), j.job)
            for j in self._donors()
            if self._workers[j.job] > max(j.bounds.min, above) and (j.fed or not above)
        ]
        heapify(able)
        for given in range(number):
            if not able:
                return given
            donor = self._held[able[0][2]]
            self._resize(donor, -1, f"gives way to {to}")
            if self._workers[donor.job] > max(donor.bounds.min, above):
                heapreplace(able, (not donor.fed, self._loss(donor), donor.job))
            else:
                heappop(able)
        return number

    # --- the others ---------------------------------------------------------------------------------------------------

    def _grow(self) -> None:
        """Give what is free to whoever gains most by it."""
        free = _Free(self._agents)
        able = [j for j in self._receivers(GROWS_S) if self._is_of_use(j)] if free.left else []
        place = {job: -n for n, job in enumerate(sorted(j.job for j in able))}
        heap = [(-self._gain(j), place[j.job], j.job) for j in able]
        heapify(heap)
        while heap and free.left:
            best = self._held[heap[0][2]]
            if not free.take(best):
                heappop(heap)
                continue
            self._resize(best, 1, "a slot is free")
            if self._workers[best.job] < best.bounds.max and self._is_of_use(best):
                heapreplace(heap, (-self._gain(best), place[best.job], best.job))
            else:
                heappop(heap)
        for job in self._held.values():
            if not (job.movable and job.calm_s >= MOVES_S and not self._why.get(job.job)):
                continue
            if self._width[job.job] < job.shard_bounds.max and job.room:
                self._resize(job, 0, "a shard is free", shards=1)
                return

    def _level(self) -> None:
        """Let one worker change its job, if that pays."""
        able = [j for j in self._receivers(MOVES_S) if j.job not in self._why]
        donors = [
            j
            for j in self._donors()
            if self._workers[j.job] > j.bounds.min
            and j.calm_s >= MOVES_S
            and j.job not in self._why
        ]
        free = _Free(self._agents)
        if self._coming or not able or not donors:
            return
        if free.left and any(free.usable(j) for j in able):
            return
        to = max(able, key=lambda j: (self._gain(j), j.job))
        donor = min(donors, key=lambda j: (self._loss(j), j.job))
        pays = self._gain(to) > MARGIN * self._loss(donor)
        if to.job != donor.job and pays and self._is_of_use(to):
            self._resize(donor, -1, f"{to.job} gains more by it")
            self._resize(to, 1, f"gains more by it than {donor.job}")

    def _receivers(self, calm_s: float) -> list[HeldFact]:
        lacking = {r.job for r in self._facts.running if r.missing}
        return [
            j
            for j in self._held.values()
            if j.growable
            and self._workers[j.job] < j.bounds.max
            and j.job not in lacking
            and (j.calm_s >= calm_s or not j.fed)
        ]

    def _weight(self, job: HeldFact) -> float:
        return job.weight * (1.0 if job.fed else UNFED)

    def _is_of_use(self, job: HeldFact) -> bool:
        """A worker more, whatever the job's weight."""
        return self._gained(job) > LEAST_GAIN

    def _gain(self, job: HeldFact) -> float:
        """Of a worker more."""
        return self._weight(job) * self._gained(job)

    def _gained(self, job: HeldFact) -> float:
        now = self._workers[job.job]
        return job.gained if now == job.workers else gain(job.rates, now, now + 1)

    def _loss(self, job: HeldFact) -> float:
        """By a worker fewer."""
        now = self._workers[job.job]
        lost = job.lost if now == job.workers else gain(job.rates, now - 1, now)
        return self._weight(job) * lost

    def _resize(self, job: HeldFact, by: int, why: str, *, shards: int = 0) -> None:
        """So many workers, and shards, more or fewer; all reasons are told."""
        self._workers[job.job] += by
        self._width[job.job] += shards
        before = self._why.get(job.job)
        self._why[job.job] = why if before in (None, why) else f"{before}; {why}"


class _Free:
    """Free slots, in the order of their agents."""

    def __init__(self, agents: Mapping[AgentId, int]) -> None:
        self._order = [agent for agent, free in agents.items() if free > 0]
        self._free = {agent: agents[agent] for agent in self._order}
        self._first = 0  #: those before it have none
        self.left = sum(self._free.values())

    def usable(self, job: HeldFact) -> AgentId | None:
        """The first agent with a free slot on which the job's trainers may start."""
        while self._first < len(self._order) and not self._free[self._order[self._first]]:
            self._first += 1
        for n in range(self._first, len(self._order)):
            agent = self._order[n]
            if self._free[agent] and agent not in job.avoid:
                return agent
        return None

    def take(self, job: HeldFact) -> bool:
        """One of them; False if the job can use none."""
        agent = self.usable(job)
        if agent is None:
            return False
        self._free[agent] -= 1
        self.left -= 1
        return True
