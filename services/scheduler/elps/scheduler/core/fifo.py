"""First come, first served: the static parameter server."""

from __future__ import annotations

from elps.contracts.ids import JobId
from elps.scheduler.core.places import (
    Spreading,
    by_room,
    counted,
    obstacle,
    refilled_from,
    too_large,
)
from elps.scheduler.core.policy import Decision, Facts, Start


class Fifo:
    """Strictly first come, first served, at a size that is fixed when the job starts, or by its user.

    Running jobs that lack workers or shards come first, in their order: were a slot kept for an earlier job that still
    needs more, each could wait for what the other holds. Then the queue: its head waits until `min` is free and
    gets what is free, up to `max`; nobody overtakes it. It also waits for slots that are being cleared, which
    takes a moment, so that a job that is placed anew does not come out smaller.

    A job that asks for more than the whole pool has cannot be waited for: it is passed over, keeps its place, and
    is the head again when the pool has grown.
    """

    name, resizes, told_held = "fifo", False, False

    def decide(self, facts: Facts) -> Decision:
        """See `Policy.decide`."""
        shards = {fact.shard: fact.free for fact in facts.shards}
        agents = {fact.agent: fact.free for fact in facts.agents}
        refills = refilled_from(shards, agents, facts.running)
        starts: list[Start] = []
        waits: list[tuple[JobId, str]] = []
        blocked = False
        free = Spreading(agents)
        for queued in facts.queued:
            if reason := too_large(queued, facts):
                waits.append((queued.job, reason))
                continue
            if blocked:
                waits.append((queued.job, "behind earlier jobs: first come, first served"))
                continue
            if reason := obstacle(queued, facts, shards, agents):
                waits.append((queued.job, reason))
                blocked = True
                continue
            on = by_room(shards)[: queued.shards.max]
            at = free.take(queued.workers.max)
            for shard in on:
                shards[shard] -= 1
            place = "first in the queue" + (" that the pool can hold" if waits else "")
            reason = f"{place}; {counted(len(on), 'shard')} and {counted(len(at), 'worker slot')} were free"
            starts.append(Start(queued.job, on, at, reason))
        return Decision(tuple(starts), tuple(refills), waits=tuple(waits))
