"""What shards have of iterations that are not complete, when another leader goes on without a barrier.

Each partition is somewhere else: at its version, with what it has applied beyond it. The new leader goes on at the
oldest version. What all partitions have is done; what some lack is lent again, cut where the applied intervals of any
of them begin and end, so that each partition has all of a piece or nothing of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from elps.stream.geometry import Geometry
from elps.stream.interval import Interval, IntervalSet

Applied = tuple[int, tuple[Interval, ...]]
"""Of one partition: its version, and what it has applied of later iterations."""


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """The same samples of one iteration in as few intervals as can be, in order."""
    out: list[Interval] = []
    for interval in sorted(intervals):
        if out and out[-1].hi == interval.lo:
            out[-1] = Interval(out[-1].lo, interval.hi)
        else:
            out.append(interval)
    return out


@dataclass
class Holes:
    """What of the iterations from `start` on is lacking, and where."""

    geometry: Geometry
    start: int
    partitions: Sequence[Applied]
    far: int = field(
        init=False
    )  #: newest iteration of which anything is applied; start - 1 if nothing is

    def __post_init__(self) -> None:
        self.far = furthest(self.geometry, self.start, self.partitions)
        self._sets = [(version, IntervalSet(applied)) for version, applied in self.partitions]

    def pieces(self, t: int) -> list[tuple[Interval, bool]]:
        """Iteration `t` in pieces that each partition has whole or not at all, and whether all of them have it."""
        whole = self.geometry.iteration(t)
        at = [applied for version, applied in self._sets if version <= t]
        bounds = {*whole, *(x for applied in at for part in applied.within(whole) for x in part)}
        ordered = sorted(bounds)
        parts = [Interval(lo, hi) for lo, hi in pairwise(ordered)]
        return [(part, all(applied.covers(part) for applied in at)) for part in parts]


def furthest(geometry: Geometry, start: int, partitions: Sequence[Applied]) -> int:
    """The newest iteration of which any partition has anything; `start` - 1 if it is before `start`."""
    newest = [start - 1]
    for version, applied in partitions:
        newest += [version - 1, *(geometry.iteration_of(i.lo) for i in applied[-1:])]
    return max(newest)
