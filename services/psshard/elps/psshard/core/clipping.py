"""Clipping by the global norm: no shard has the whole gradient, so each iteration takes a vote (docs/protocol.md).

A partition whose iteration is complete is *measured* before it takes its step: the norm of its part of the mean
gradient. When all that a shard holds at the oldest version are measured, the shard tells the leader their norms. The
leader, once it has those of every shard, says one *factor* for all: the limit over the norm of the whole, or 1 if that
is less. So a step waits for the slowest partition once more, and only in jobs that ask for it.

The factor of an iteration is decided once. Whoever leads next takes it from a partition that has taken the step with
it: the sums that it was made of are gone.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from elps.contracts.ids import PartitionId, ShardId
from elps.psshard.core import commands as do
from elps.psshard.core.commands import Command

Norms = Mapping[PartitionId, float]


def clipping_factor(limit: float, norms: Norms) -> float:
    """What the gradient is to be multiplied by so that its norm is at most `limit`; never above 1.

    The same for the same norms, however they are spread over shards. NaN when the norm is not finite.
    """
    norm = math.hypot(*(norms[p] for p in sorted(norms)))
    if not math.isfinite(norm):
        return math.nan
    return limit / norm if norm > limit else 1.0


class Clipping:
    """The leader's side, under one epoch."""

    def __init__(
        self,
        limit: float | None,
        shards: Collection[ShardId],
        known: Mapping[int, float] | None = None,
    ) -> None:
        """`limit` None: nothing is clipped. `known`: factors of iterations whose step some partition has taken."""
        self._limit = limit
        self._shards = shards  #: those that hold partitions; may change while nothing is open
        self._votes: dict[int, dict[ShardId, Norms]] = {}
        self._factors = dict(known or {})

    def measured(self, shard: ShardId, iteration: int, norms: Norms) -> list[Command]:
        """A shard tells the norms of its partitions; again, when what it was told may have been lost."""
        if self._limit is None:
            return []
        if iteration not in self._factors:
            votes = self._votes.setdefault(iteration, {})
            votes[shard] = norms
            if not votes.keys() >= set(self._shards):
                return []
            every = {p: norm for of in votes.values() for p, norm in of.items()}
            factor = clipping_factor(self._limit, every)
            if math.isnan(factor):
                why = (
                    f"the gradient of iteration {iteration} is so large that its norm is not finite"
                )
                return [do.Fail(f"{why}; a smaller optimizer.lr may keep the job from diverging")]
            self._factors[iteration] = factor
        return [do.Clip(iteration, self._factors[iteration])]

    def completed(self, iteration: int) -> None:
        """Every partition has taken the step."""
        self._votes.pop(iteration, None)
        self._factors.pop(iteration, None)

    def awaited(self, iteration: int) -> list[ShardId]:
        """Shards whose norms are missing while others have told theirs, in order."""
        votes = self._votes.get(iteration)
        if not votes or iteration in self._factors:
            return []
        return sorted(set(self._shards) - votes.keys())
