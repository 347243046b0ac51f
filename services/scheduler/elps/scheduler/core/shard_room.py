"""Which jobs give up a shard so that newcomers find as many different ones as they need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from elps.contracts.ids import ShardId
from elps.scheduler.core.policy import Facts, HeldFact


class ShardRoom:
    """Slots of shards that are there, on their way, or can be given up, as jobs are counted off them."""

    def __init__(
        self, facts: Facts, free: Mapping[ShardId, int], donors: Sequence[HeldFact]
    ) -> None:
        self._left = {f.shard: max(0, free[f.shard]) + f.clearing for f in facts.shards}
        self._moving = facts.shards_moving  #: slots that come, of whatever shards
        self._able = sorted(
            (j for j in donors if j.shards > j.shard_bounds.min and j.gives),
            key=lambda j: (not j.fed, -j.shards, j.job),
        )
        self.given_up: list[HeldFact] = []

    def take(self, number: int) -> bool:
        """Slots of so many different shards; False, and nothing is taken, if they cannot be had."""
        there = sorted((s for s in self._left if self._left[s] > 0), key=lambda s: -self._left[s])
        lacking = number - len(there)
        moving = min(max(lacking, 0), self._moving)
        found: list[HeldFact] = []
        for donor in self._able:
            if lacking - moving - len(found) <= 0:
                break
            new = donor.gives[0] not in (*there, *(j.gives[0] for j in found))
            if new and donor not in self.given_up:
                found.append(donor)
        if lacking - moving - len(found) > 0:
            return False
        for shard in there[:number]:
            self._left[shard] -= 1
        self._moving -= moving
        self.given_up += found
        return True
