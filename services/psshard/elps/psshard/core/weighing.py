"""Whether partitions are to lie otherwise, since the shards of a job are not equally fast.

Each shard tells what it works for a byte (`Labour`). An iteration waits for the shard whose bytes take longest, so a
slow one is to hold fewer: shards are weighed by their speed, and `place` does the rest. But the weights in force are
kept as long as others would not be worth their moves:

1. *Dead band*: the slowest shard's part in an iteration must become shorter by `BAND`, and the iteration by `WORTH`.
2. *Cost gate*: what is saved within `HORIZON_S` must be more than the copies cost.
3. *Patience*: that must have been so at `LOOKS` looks in a row; and after a change nothing changes for `REST_S`, which
   doubles each time that the next change follows soon: whoever is slow every other minute is not followed for ever.

A shard of which nothing is known counts like the middle one. A wanted shard keeps one partition at least, or nothing
would be known of it any more.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from statistics import median

from elps.contracts.ids import PartitionId, ShardId
from elps.placement import place

BAND, WORTH = 0.2, 0.02
HORIZON_S = 60.0
COPY_S_PER_BYTE = 10e-9
"""What a copy costs the job, which trains meanwhile: about as if nothing else was done at 100 MB/s."""
LOOK_S, LOOKS = 2.0, 3
"""The pace of the beats in which shards tell."""
REST_S, LONGEST_REST_S = 20.0, 1280.0
SOON = 4.0
"""Times the rest: a change within it is one that follows soon."""
RECENT = 0.1
"""Weight of the newest iteration in their mean time."""


class Weighing:
    """What is known of the shards of one job under one term, and the weights in force. Times are monotonic seconds."""

    def __init__(self) -> None:
        self.weights: dict[ShardId, float] = {}  #: capacities; empty: all the same
        self._costs: dict[ShardId, float] = {}  #: seconds for a byte and a version, as last told
        self._iteration_s: float | None = None
        self._reached: tuple[int, float] | None = None  #: newest version, and when
        self._looked_at = 0.0
        self._better = 0  #: looks in a row at which others would have been better
        self._changed_at, self._rest_s = -LONGEST_REST_S * SOON, 0.0

    # --- what is told -------------------------------------------------------------------------------------------------

    def told(self, shard: ShardId, s_per_byte: float) -> None:
        """A shard says what a byte costs it; what cannot be is passed over."""
        if 0 < s_per_byte < 1:
            self._costs[shard] = s_per_byte

    def reached(self, version: int, now: float) -> None:
        """Every partition holds this version."""
        if self._reached is not None:
            before, at = self._reached
            if version == before:
                return
            if version > before:
                took_s, known = (now - at) / (version - before), self._iteration_s
                self._iteration_s = took_s if known is None else known + RECENT * (took_s - known)
        self._reached = version, now

    # --- what follows -------------------------------------------------------------------------------------------------

    def target(
        self,
        sizes: Mapping[PartitionId, int],
        wanted: Collection[ShardId],
        placed: Mapping[PartitionId, ShardId],
    ) -> dict[PartitionId, ShardId]:
        """Where partitions are to lie by the weights in force."""
        return self._placed(sizes, wanted, placed, self.weights)

    def look(
        self,
        sizes: Mapping[PartitionId, int],
        wanted: Collection[ShardId],
        placed: Mapping[PartitionId, ShardId],
        now: float,
    ) -> str:
        """Weigh the shards anew, if it is time and worth it; the reason if other weights are in force from now on."""
        if now - self._looked_at < LOOK_S or not wanted:
            return ""
        self._looked_at = now
        rest_s = self._rest_s if now - self._changed_at < self._rest_s else 0.0
        costs = self._by_shard(wanted)
        if rest_s or not costs or not self._may_gain(costs, sizes, placed):
            self._better = 0
            return ""
        self._better += 1
        if self._better < LOOKS:
            return ""
        weights = {shard: 1 / cost for shard, cost in costs.items()}
        target = self._placed(sizes, wanted, placed, weights)
        moved = sum(sizes[p] for p in sizes if target[p] != placed[p])
        before_s, after_s = slowest_s(costs, sizes, placed), slowest_s(costs, sizes, target)
        self._better = 0
        if not self._pays(
            before_s, after_s, moved
        ):  # to look for a place takes its time: not again soon
            self._rest_s = min(max(2 * self._rest_s, REST_S), LONGEST_REST_S)
            self._changed_at = now
            return ""
        again = now - self._changed_at < SOON * max(self._rest_s, REST_S)
        self._rest_s = min(2 * self._rest_s, LONGEST_REST_S) if again else REST_S
        self._changed_at, self.weights = now, weights
        slow, fast = max(costs, key=costs.__getitem__), min(costs, key=costs.__getitem__)
        return (
            f"{slow} takes {costs[slow] / costs[fast]:.1f} times as long for a byte as {fast}: "
            f"{after_s * 1e3:.3g} ms of an iteration expected in place of {before_s * 1e3:.3g} ms"
        )

    def _by_shard(self, wanted: Collection[ShardId]) -> dict[ShardId, float]:
        known = [self._costs[s] for s in wanted if s in self._costs]
        if len(known) < 2:
            return {}
        return {s: self._costs.get(s, median(known)) for s in sorted(wanted)}

    def _may_gain(
        self,
        costs: Mapping[ShardId, float],
        sizes: Mapping[PartitionId, int],
        placed: Mapping[PartitionId, ShardId],
    ) -> bool:
        """Whether it would be worth it if bytes could be placed one by one: to place partitions takes its time."""
        if any(shard not in costs for shard in placed.values()):
            return False  # they are on their way to others
        best_s = sum(sizes.values()) / sum(1 / cost for cost in costs.values())
        return self._pays(slowest_s(costs, sizes, placed), best_s, 0)

    def _pays(self, before_s: float, after_s: float, moved_bytes: int) -> bool:
        iteration_s, saved_s = self._iteration_s, before_s - after_s
        if iteration_s is None or saved_s <= max(BAND * before_s, WORTH * iteration_s):
            return False
        return saved_s * HORIZON_S / max(iteration_s, 1e-6) > moved_bytes * COPY_S_PER_BYTE

    @staticmethod
    def _placed(
        sizes: Mapping[PartitionId, int],
        wanted: Collection[ShardId],
        placed: Mapping[PartitionId, ShardId],
        weights: Mapping[ShardId, float],
    ) -> dict[PartitionId, ShardId]:
        known = [weights[s] for s in wanted if s in weights]
        if not known:
            return place(sizes, list(wanted), current=placed)
        capacities = {s: weights.get(s, median(known)) for s in wanted}
        target = place(sizes, list(wanted), capacities=capacities, current=placed)
        for shard in sorted(set(wanted) - set(target.values())):
            if held := [p for p in sizes if placed.get(p) == shard]:
                target[min(held, key=lambda p: (sizes[p], p))] = shard
        return target


def slowest_s(
    costs: Mapping[ShardId, float],
    sizes: Mapping[PartitionId, int],
    placed: Mapping[PartitionId, ShardId],
) -> float:
    """What the shard whose bytes take longest works in an iteration."""
    work = dict.fromkeys(costs, 0.0)
    for p, shard in placed.items():
        if shard in work:
            work[shard] += sizes.get(p, 0) * costs[shard]
    return max(work.values(), default=0.0)
