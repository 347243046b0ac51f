"""Who gets what: a pure function of facts. `Fifo` is the policy of this version; others stand beside it later.

A policy proposes only what the facts show to be free; the core applies a decision whole, within the same event.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from elps.contracts.ids import AgentId, JobId, ShardId
from elps.contracts.job import Pool as Size


@dataclass(frozen=True)
class ShardFact:
    """A shard process that may be given jobs."""

    shard: ShardId
    slots: int
    free: int
    clearing: int
    """Slots whose job is over but not yet seen to be gone."""


@dataclass(frozen=True)
class AgentFact:
    """An agent that may be given trainers."""

    agent: AgentId
    slots: int
    free: int
    clearing: int


@dataclass(frozen=True)
class QueuedFact:
    """A job that holds nothing."""

    job: JobId
    shards: Size
    workers: Size


@dataclass(frozen=True)
class RunningFact:
    """A job that holds something but lacks workers or shards of the number it was given."""

    job: JobId
    missing: int
    """Workers."""
    agents: tuple[AgentId, ...]
    """Where its workers are, once for each."""
    avoid: tuple[AgentId, ...]
    """Agents on which its trainers do not start."""
    missing_shards: int = 0
    barred: tuple[ShardId, ...] = ()
    """Shards that it cannot be given: its own, and those that may still have something of it."""


@dataclass(frozen=True)
class Facts:
    """All that a policy knows. Jobs are in their order of arrival, members in that of their ids."""

    shards: tuple[ShardFact, ...]
    agents: tuple[AgentFact, ...]
    queued: tuple[QueuedFact, ...]
    running: tuple[RunningFact, ...]
    settling: bool = False
    """The scheduler started just now and members are still being discovered."""


@dataclass(frozen=True)
class Start:
    """Give a queued job its place."""

    job: JobId
    shards: tuple[ShardId, ...]
    """Different ones, the leader first."""
    agents: tuple[AgentId, ...]
    """Where its workers go, an agent once for each of its slots taken."""
    reason: str


@dataclass(frozen=True)
class Refill:
    """Give a running job workers and shards that it lacks."""

    job: JobId
    agents: tuple[AgentId, ...]
    reason: str
    shards: tuple[ShardId, ...] = ()


@dataclass(frozen=True)
class Decision:
    """What to do now, and why the others wait."""

    starts: tuple[Start, ...] = ()
    refills: tuple[Refill, ...] = ()
    waits: tuple[tuple[JobId, str], ...] = ()
    """Queued jobs that get nothing now, each with its reason."""


class Policy(Protocol):
    """Decides for all jobs. Equal facts give equal decisions."""

    @property
    def name(self) -> str:
        """As in ``ELPS_POLICY``."""

    def decide(self, facts: Facts) -> Decision:
        """What to do now."""


class Fifo:
    """Strictly first come, first served, at a size that is fixed when the job starts, or by its user.

    Running jobs that lack workers or shards come first, in their order: were a slot kept for an earlier job that still
    needs more, each could wait for what the other holds. Then the queue: its head waits until `min` is free and
    gets what is free, up to `max`; nobody overtakes it. It also waits for slots that are being cleared, which
    takes a moment, so that a job that is placed anew does not come out smaller.

    A job that asks for more than the whole pool has cannot be waited for: it is passed over, keeps its place, and
    is the head again when the pool has grown.
    """

    name = "fifo"

    def decide(self, facts: Facts) -> Decision:
        """See `Policy.decide`."""
        shards = {fact.shard: fact.free for fact in facts.shards}
        agents = {fact.agent: fact.free for fact in facts.agents}
        refills = []
        for running in facts.running:
            usable = {agent: free for agent, free in agents.items() if agent not in running.avoid}
            taken = _spread(usable, running.missing, running.agents)
            for agent in taken:
                agents[agent] -= 1
            joined = tuple(s for s in _by_room(shards) if s not in running.barred)
            joined = joined[: running.missing_shards]
            for shard in joined:
                shards[shard] -= 1
            if taken or joined:
                refills.append(
                    Refill(running.job, taken, _refilled(running, taken, joined), joined)
                )
        starts: list[Start] = []
        waits: list[tuple[JobId, str]] = []
        blocked = False
        for queued in facts.queued:
            if too_large := _too_large(queued, facts):
                waits.append((queued.job, too_large))
                continue
            if blocked:
                waits.append((queued.job, "behind earlier jobs: first come, first served"))
                continue
            if obstacle := _obstacle(queued, facts, shards, agents):
                waits.append((queued.job, obstacle))
                blocked = True
                continue
            on = _by_room(shards)[: queued.shards.max]
            at = _spread(agents, queued.workers.max, ())
            for shard in on:
                shards[shard] -= 1
            for agent in at:
                agents[agent] -= 1
            place = "first in the queue" + (" that the pool can hold" if waits else "")
            reason = f"{place}; {_count(len(on), 'shard')} and {_count(len(at), 'worker slot')} were free"
            starts.append(Start(queued.job, on, at, reason))
        return Decision(tuple(starts), tuple(refills), tuple(waits))


POLICIES: Mapping[str, Policy] = {policy.name: policy for policy in (Fifo(),)}


def _by_room(free: Mapping[ShardId, int]) -> tuple[ShardId, ...]:
    """Shards with a free slot, those with the most first."""
    return tuple(sorted((s for s in free if free[s] > 0), key=lambda s: (-free[s], s)))


def _refilled(running: RunningFact, taken: tuple[AgentId, ...], joined: tuple[ShardId, ...]) -> str:
    parts = []
    if taken:
        parts.append(f"{len(taken)} of {running.missing} missing workers")
    if joined:
        parts.append(f"{len(joined)} of {running.missing_shards} missing shards")
    return f"{' and '.join(parts)}: earliest running job that lacks any"


def _spread(
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


def _too_large(job: QueuedFact, facts: Facts) -> str | None:
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
        f"{_need(job)}; the pool is too small in {' and '.join(lacking)}: start more; "
        "later jobs go ahead meanwhile"
    )


def _obstacle(
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
        return f"{_need(job)}; free now: {_count(shards_free, 'shard')} and {_count(workers_free, 'worker slot')}"
    if facts.settling:
        enough = shards_free >= job.shards.max and workers_free >= job.workers.max
        return None if enough else "the scheduler has just started and is discovering the pool"
    want_shards = min(job.shards.max, shards_free + shards_coming)
    want_workers = min(job.workers.max, workers_free + workers_coming)
    if shards_free < want_shards or workers_free < want_workers:
        return "slots for it are being cleared"
    return None


def _need(job: QueuedFact) -> str:
    return f"needs {_count(job.shards.min, 'shard')} and {_count(job.workers.min, 'worker slot')}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
