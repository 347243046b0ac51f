"""Partitions to shards: balanced by bytes and by measured load, moving as little as possible.

Longest first onto the lowest shard (LPT), then single moves from the highest shard while they help. What already lies
on a shard stays there unless the highest shard is above the band or the lowest below it.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping, Sequence

from elps.contracts.ids import PartitionId, ShardId

HIGH, LOW = 1.05, 0.5
"""The band around the fair share in which nothing is moved: a move costs more than an imbalance of this size."""

_Cost = tuple[float, float]


def place(
    sizes_bytes: Sequence[int] | Mapping[PartitionId, int],
    shards: Sequence[ShardId],
    *,
    loads: Mapping[PartitionId, float] | None = None,
    capacities: Mapping[ShardId, float] | None = None,
    current: Mapping[PartitionId, ShardId] | None = None,
) -> dict[PartitionId, ShardId]:
    """Give every partition a shard.

    `loads` weighs partitions by measured work (any unit; one that is missing counts by its bytes), `capacities` weighs
    shards (any unit; all equal when None). A shard's height is the larger of its share of bytes and its share of load,
    over its share of capacity; the highest is made low. `current` says where partitions are now: they stay, except
    those on shards that are not named, and those that must go for balance. Ties go to the lower id. `ValueError` for
    partitions without a shard to go to, and for sizes, loads or capacities that are negative, not finite or, for
    capacities, zero.
    """
    sizes = dict(sizes_bytes) if isinstance(sizes_bytes, Mapping) else _numbered(sizes_bytes)
    names = sorted(set(shards))
    if not names:
        if sizes:
            raise ValueError("there are partitions, but no shard to place them on")
        return {}
    costs = _costs(sizes, loads or {})
    piles = _Piles(costs, names, capacities or {})
    piles.begin(current or {})
    for p in sorted(costs.keys() - piles.where.keys(), key=lambda p: (-max(costs[p]), p)):
        piles.put(p, min(names, key=lambda s: (piles.height(s, costs[p]), s)))
    while piles.improve():
        pass
    return {p: piles.where[p] for p in sorted(piles.where)}


def _numbered(sizes_bytes: Sequence[int]) -> dict[PartitionId, int]:
    return {PartitionId(i): size for i, size in enumerate(sizes_bytes)}


def _checked(name: str, values: Mapping[PartitionId, float]) -> None:
    for p, value in sorted(values.items()):
        if not 0 <= value < float("inf"):
            raise ValueError(
                f"{name} of partition {p} is {value}, expected a finite number, 0 or more"
            )


def _costs(
    sizes: Mapping[PartitionId, int], loads: Mapping[PartitionId, float]
) -> dict[PartitionId, _Cost]:
    """Each partition's share of all bytes and of all load."""
    _checked("the size", sizes)
    _checked("the load", loads)
    all_bytes = sum(sizes.values()) or 1
    known = [p for p in sorted(sizes) if p in loads]
    known_load, known_bytes = sum(loads[p] for p in known), sum(sizes[p] for p in known)
    if not known_load or not known_bytes:
        return {p: (size / all_bytes, size / all_bytes) for p, size in sizes.items()}
    per_byte = known_load / known_bytes
    load = {p: loads.get(p, size * per_byte) for p, size in sizes.items()}
    all_load = sum(load.values())
    return {p: (size / all_bytes, load[p] / all_load) for p, size in sizes.items()}


class _Piles:
    """A placement in the making."""

    def __init__(
        self,
        costs: Mapping[PartitionId, _Cost],
        shards: Sequence[ShardId],
        capacities: Mapping[ShardId, float],
    ) -> None:
        room = {s: capacities.get(s, 1.0) if capacities else 1.0 for s in shards}
        for s, c in room.items():
            if not 0 < c < float("inf"):
                raise ValueError(f"the capacity of {s} is {c}, expected a finite number above 0")
        total = sum(room.values())
        self.costs = costs
        self.fair = {
            s: c / total for s, c in room.items()
        }  #: share of the whole that a shard should hold
        self.held: dict[ShardId, list[PartitionId]] = {s: [] for s in shards}  #: in order
        self.sums: dict[ShardId, list[float]] = {
            s: [0.0, 0.0] for s in shards
        }  #: shares of bytes and load held
        self.where: dict[PartitionId, ShardId] = {}

    def height(self, shard: ShardId, more: _Cost = (0.0, 0.0), sign: int = 1) -> float:
        """What a shard holds over its fair share, with one partition more (or less); 1 is just right."""
        held = self.sums[shard]
        return max(held[0] + sign * more[0], held[1] + sign * more[1]) / self.fair[shard]

    def begin(self, current: Mapping[PartitionId, ShardId]) -> None:
        """Leave partitions where they are, as far as that is still a place."""
        for p in sorted(self.costs):
            if (at := current.get(p)) in self.held:
                self.where[p] = at
                self.held[at].append(p)
        for s in self.held:
            self._sum(s)

    def put(self, partition: PartitionId, shard: ShardId) -> None:
        """Place or move a partition."""
        if (old := self.where.get(partition)) is not None:
            self.held[old].remove(partition)
            self._sum(old)
        self.where[partition] = shard
        insort(self.held[shard], partition)
        self._sum(shard)

    def _sum(self, shard: ShardId) -> None:
        """Anew, so that rounding does not pile up."""
        held = [self.costs[p] for p in self.held[shard]]
        self.sums[shard] = [sum(cost[i] for cost in held) for i in (0, 1)]

    def improve(self) -> bool:
        """Make the one best move from the highest shard to a lower one; False if none is needed or none helps."""
        by_height = sorted(self.held, key=lambda s: (self.height(s), s))
        high = max(by_height, key=self.height)
        top = self.height(high)
        if top <= HIGH and self.height(by_height[0]) >= LOW:
            return False
        for low in by_height:
            if low == high:
                break
            after, p = min(
                (max(self.height(high, cost, -1), self.height(low, cost)), p)
                for cost, p in self._first_of_each(high).items()
            )
            if after < top * (1 - 1e-9):
                self.put(p, low)
                return True
        return False

    def _first_of_each(self, shard: ShardId) -> dict[_Cost, PartitionId]:
        """The lowest of the partitions that cost the same: most of a model's are of one size."""
        return {self.costs[p]: p for p in reversed(self.held[shard])}
