"""Slots of members to jobs: what all policies have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping

from elps.contracts.ids import AgentId, ShardId
from elps.scheduler.core.policy import Facts, QueuedFact, Refill, RunningFact


def refilled_from(
    shards: MutableMapping[ShardId, int],
    agents: MutableMapping[AgentId, int],
    lacking: Iterable[RunningFact],
) -> list[Refill]:
    """Give running jobs what they lack, in order, as far as it is free; the counts are lowered by that."""
    refills = []
    for running in lacking:
        usable = {agent: free for agent, free in agents.items() if agent not in running.avoid}
        taken = spread(usable, running.missing, running.agents)
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


def spread(
    free: Mapping[AgentId, int], count: int, present: tuple[AgentId, ...]
) -> tuple[AgentId, ...]:
    """Up to `count` slots, each on the agent with the fewest workers of the job, then with the most free slots."""
    left = dict(free)
    workers = {agent: present.count(agent) for agent in free}
    taken: list[AgentId] = []
    while len(taken) < count:
        candidates = [agent for agent in left if left[agent] > 0]
        if not candidates:
            break
        best = min(candidates, key=lambda agent: (workers[agent], -left[agent], agent))
        left[best] -= 1
        workers[best] += 1
        taken.append(best)
    return tuple(taken)


def too_large(job: QueuedFact, facts: Facts) -> str | None:
    """Why a job could not start if the pool were idle, or None; not told while the pool is being discovered."""
    if facts.settling:
        return None
    lacking = []
    if (shards := sum(fact.slots > 0 for fact in facts.shards)) < job.shards.min:
        lacking.append(f"shards (there are {shards} in all)")
    if (slots := sum(fact.slots for fact in facts.agents)) < job.workers.min:
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
