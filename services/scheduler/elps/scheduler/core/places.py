"""Slots of members to jobs: what all policies have in common."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, MutableMapping
from heapq import heapify, heappop, heappush, heapreplace

from elps.contracts.ids import AgentId, ShardId
from elps.scheduler.core.machines import worthwhile
from elps.scheduler.core.policy import Facts, HeldFact, QueuedFact, Refill, RunningFact

Speeds = Mapping[AgentId, float]
"""Of agents that are no usual ones."""
USUAL: Speeds = {}


def speeds_of(facts: Facts) -> Speeds:
    """Of those with free slots."""
    return {fact.agent: fact.speed for fact in facts.agents if fact.speed != 1.0 and fact.free > 0}


def refilled_from(
    shards: MutableMapping[ShardId, int],
    agents: MutableMapping[AgentId, int],
    lacking: Iterable[RunningFact],
    speeds: Speeds = USUAL,
) -> list[Refill]:
    """Give running jobs what they lack, in order, as far as it is free; the counts are lowered by that.

    Where there is enough for all, those choose first whose workers wait for the slowest. They take none that would only
    hold the others up.
    """
    refills = []
    lacking = list(lacking)
    if speeds and sum(r.missing for r in lacking) <= sum(agents.values()):
        lacking.sort(key=lambda running: not running.held_up)
    for running in lacking:
        usable = {agent: free for agent, free in agents.items() if agent not in running.avoid}
        taken = spread(usable, running.missing, running.agents, speeds)
        if running.held_up:
            offered = [speeds.get(agent, 1.0) for agent in taken]
            beside = len(running.agents)
            least = max(0, running.least - beside)
            taken = taken[: worthwhile(offered, beside, running.slowest, least)]
        for agent in taken:
            agents[agent] -= 1
        joined = tuple(s for s in by_room(shards) if s not in running.barred)
        joined = joined[: running.missing_shards]
        for shard in joined:
            shards[shard] -= 1
        if taken or joined:
            refills.append(Refill(running.job, taken, _refilled(running, taken, joined), joined))
    return refills


def by_room(free: Mapping[ShardId, int]) -> tuple[ShardId, ...]:
    """Shards with a free slot, those with the most first."""
    return tuple(sorted((s for s in free if free[s] > 0), key=lambda s: (-free[s], s)))


def _refilled(running: RunningFact, taken: tuple[AgentId, ...], joined: tuple[ShardId, ...]) -> str:
    parts = []
    if taken:
        parts.append(f"{len(taken)} of {running.missing} missing workers")
    if joined:
        parts.append(f"{len(joined)} of {running.missing_shards} missing shards")
    return f"{' and '.join(parts)}: earliest running job that lacks any"


def taken(facts: Facts, shards: Mapping[ShardId, int]) -> bool:
    """Whether a decision has given out slots of shards already."""
    return any(shards[fact.shard] != fact.free for fact in facts.shards)


def spread(
    free: Mapping[AgentId, int],
    count: int,
    present: tuple[AgentId, ...],
    speeds: Speeds = USUAL,
) -> tuple[AgentId, ...]:
    """Up to `count` slots, the fastest first; of equals those on the agent with the fewest workers of the job, then
    with the most free slots.
    """
    if count <= 0:
        return ()
    there = Counter(present)
    heap = [
        (-speeds.get(agent, 1.0), there[agent], -left, agent)
        for agent, left in free.items()
        if left > 0
    ]
    heapify(heap)
    taken: list[AgentId] = []
    while heap and len(taken) < count:
        minus_speed, workers, minus_left, agent = heap[0]
        taken.append(agent)
        if minus_left < -1:
            heapreplace(heap, (minus_speed, workers + 1, minus_left + 1, agent))
        else:
            heappop(heap)
    return tuple(taken)


class Spreading:
    """The same for one new job after the other, from counts that are lowered by what each is given."""

    def __init__(self, free: MutableMapping[AgentId, int], speeds: Speeds = USUAL) -> None:
        """Nothing else may change the counts meanwhile."""
        self._free, self._speeds = free, speeds
        heaps: dict[float, list[tuple[int, AgentId]]] = {}
        for agent, left in free.items():
            if left > 0:
                heaps.setdefault(speeds.get(agent, 1.0), []).append((-left, agent))
        for heap in heaps.values():
            heapify(heap)
        self._heaps = {speed: heaps[speed] for speed in sorted(heaps, reverse=True)}  #: by speed
        self.left = -sum(minus for heap in self._heaps.values() for minus, _ in heap)
        """Free slots in all."""

    def take(self, count: int, least: int = 0, *, held_up: bool = False) -> tuple[AgentId, ...]:
        """Up to so many slots; for a job that is `held_up` by slow workers none of those that would do so, beyond the
        least that it needs.
        """
        taken: list[AgentId] = []
        for heap in self._heaps.values():
            if len(taken) < count:
                taken += self._from(heap, count - len(taken))
        if held_up and taken:
            offered = [self._speeds.get(agent, 1.0) for agent in taken]
            kept = worthwhile(offered, 0, offered[0], least)
            self._give_back(taken[kept:])
            del taken[kept:]
        self.left -= len(taken)
        return tuple(taken)

    def _from(self, heap: list[tuple[int, AgentId]], count: int) -> list[AgentId]:
        taken: list[AgentId] = []
        given: list[
            tuple[int, AgentId]
        ] = []  #: agents that have one more of the job's workers than those in the heap
        while len(taken) < count:
            if not heap:
                if not given:
                    break
                heap[:], given = given, []
                heapify(heap)
            minus_left, agent = heappop(heap)
            taken.append(agent)
            self._free[agent] -= 1
            if minus_left < -1:
                given.append((minus_left + 1, agent))
        for entry in given:
            heappush(heap, entry)
        return taken

    def _give_back(self, agents: Iterable[AgentId]) -> None:
        """Each heap is built once, however many slots are given back."""
        back: dict[float, set[AgentId]] = {}
        for agent in agents:
            self._free[agent] += 1
            back.setdefault(self._speeds.get(agent, 1.0), set()).add(agent)
        for speed, anew in back.items():
            heap = self._heaps[speed]
            heap[:] = [entry for entry in heap if entry[1] not in anew]
            heap += [(-self._free[agent], agent) for agent in sorted(anew)]
            heapify(heap)


class FreeSlots:
    """Free slots, the fastest first, else in the order of their agents."""

    def __init__(self, agents: Mapping[AgentId, int], speeds: Speeds = USUAL) -> None:
        self._speeds = speeds
        self._order = [agent for agent, free in agents.items() if free > 0]
        if speeds:
            self._order.sort(key=lambda agent: -speeds.get(agent, 1.0))
        self._free = {agent: agents[agent] for agent in self._order}
        self._first = 0  #: those before it have none
        self.left = sum(self._free.values())

    @property
    def speed(self) -> float:
        """Of the fastest one that is left; 1 where none is."""
        self._pass()
        if not self._speeds or self._first >= len(self._order):
            return 1.0
        return self._speeds.get(self._order[self._first], 1.0)

    def _pass(self) -> None:
        while self._first < len(self._order) and not self._free[self._order[self._first]]:
            self._first += 1

    def usable(self, job: HeldFact) -> AgentId | None:
        """The first agent with a free slot on which the job's trainers may start."""
        self._pass()
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


def too_large(job: QueuedFact, facts: Facts) -> str | None:
    """Why a job could not start if the pool were idle, or None; not told while the pool is being discovered."""
    if facts.settling:
        return None
    lacking = []
    if (shards := facts.shard_processes) < job.shards.min:
        lacking.append(f"shards (there are {shards} in all)")
    if (slots := facts.worker_slots) < job.workers.min:
        lacking.append(f"worker slots (there are {slots} in all)")
    if not lacking:
        return None
    return (
        f"{need(job)}; the pool is too small in {' and '.join(lacking)}: start more; "
        "later jobs go ahead meanwhile"
    )


def obstacle(
    job: QueuedFact, facts: Facts, shards: Mapping[ShardId, int], agents: Mapping[AgentId, int]
) -> str | None:
    """Why the head of the queue cannot start now, or None."""
    shards_free = sum(free > 0 for free in shards.values())
    workers_free = sum(agents.values())
    shards_coming = sum(fact.clearing > 0 and shards[fact.shard] <= 0 for fact in facts.shards)
    workers_coming = sum(fact.clearing for fact in facts.agents)
    if (
        shards_free + shards_coming < job.shards.min
        or workers_free + workers_coming < job.workers.min
    ):
        return f"{need(job)}; free now: {counted(shards_free, 'shard')} and {counted(workers_free, 'worker slot')}"
    if facts.settling:
        enough = shards_free >= job.shards.max and workers_free >= job.workers.max
        return None if enough else "the scheduler has just started and is discovering the pool"
    want_shards = min(job.shards.max, shards_free + shards_coming)
    want_workers = min(job.workers.max, workers_free + workers_coming)
    if shards_free < want_shards or workers_free < want_workers:
        return "slots for it are being cleared"
    return None


def need(job: QueuedFact) -> str:
    """Its least, for people."""
    return f"needs {counted(job.shards.min, 'shard')} and {counted(job.workers.min, 'worker slot')}"


def counted(number: int, what: str) -> str:
    """A number of things, for people."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
