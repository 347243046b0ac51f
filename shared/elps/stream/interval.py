"""Half-open intervals of the sample stream, and sets of disjoint ones.

Acceptance of gradients rests on these few lines: a set never holds two intervals that overlap, and it *tiles* a range
when its lengths inside the range sum to the range's length.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple


class Interval(NamedTuple):
    """Samples ``lo`` to ``hi - 1`` of the stream; empty when equal."""

    lo: int
    hi: int

    @property
    def size(self) -> int:
        """Number of samples."""
        return self.hi - self.lo

    def overlaps(self, other: Interval) -> bool:
        """Whether the two share a sample."""
        return max(self.lo, other.lo) < min(self.hi, other.hi)

    def contains(self, other: Interval) -> bool:
        """Whether every sample of `other` is in this one."""
        return self.lo <= other.lo and other.hi <= self.hi

    def __str__(self) -> str:
        return f"[{self.lo}, {self.hi})"


class IntervalSet:
    """Disjoint intervals, kept sorted. Adding one that overlaps is refused."""

    __slots__ = ("_his", "_los", "size")

    def __init__(self, intervals: Iterable[Interval] = ()) -> None:
        self._los: list[int] = []  #: sorted starts
        self._his: list[int] = []  #: ends, in step with the starts
        self.size = 0  #: samples in all
        for interval in intervals:
            if not self.add(interval):
                raise ValueError(f"{interval} overlaps an earlier interval")

    def overlaps(self, interval: Interval) -> bool:
        """Whether any member shares a sample with `interval`."""
        if interval.lo >= interval.hi:
            return False
        at = bisect_right(self._his, interval.lo)  # first member that ends after `lo`
        return at < len(self._los) and self._los[at] < interval.hi

    def add(self, interval: Interval) -> bool:
        """Add an interval unless it overlaps; say whether it was added. An empty one is taken and changes nothing."""
        if interval.size <= 0:
            return True
        if self.overlaps(interval):
            return False
        at = bisect_left(self._los, interval.lo)
        self._los.insert(at, interval.lo)
        self._his.insert(at, interval.hi)
        self.size += interval.size
        return True

    def remove(self, interval: Interval) -> None:
        """Remove a member; `KeyError` if there is no such one."""
        at = bisect_left(self._los, interval.lo)
        if at == len(self._los) or self._los[at] != interval.lo or self._his[at] != interval.hi:
            raise KeyError(interval)
        del self._los[at], self._his[at]
        self.size -= interval.size

    def covers(self, interval: Interval) -> bool:
        """Whether every sample of `interval` is in some member."""
        return sum(m.size for m in self.within(interval)) == interval.size

    def within(self, interval: Interval) -> Iterator[Interval]:
        """The parts of members that lie inside `interval`, in order."""
        at = bisect_right(self._his, interval.lo)
        while at < len(self._los) and self._los[at] < interval.hi:
            yield Interval(max(self._los[at], interval.lo), min(self._his[at], interval.hi))
            at += 1

    def gaps(self, interval: Interval) -> Iterator[Interval]:
        """The parts of `interval` that no member holds, in order."""
        lo = interval.lo
        for member in self.within(interval):
            if member.lo > lo:
                yield Interval(lo, member.lo)
            lo = member.hi
        if lo < interval.hi:
            yield Interval(lo, interval.hi)

    def clear(self) -> None:
        """Forget everything."""
        self._los.clear()
        self._his.clear()
        self.size = 0

    def __iter__(self) -> Iterator[Interval]:
        return map(Interval, self._los, self._his)

    def __len__(self) -> int:
        return len(self._los)

    def __contains__(self, interval: Interval) -> bool:
        at = bisect_left(self._los, interval.lo)
        return at < len(self._los) and (self._los[at], self._his[at]) == interval

    def __repr__(self) -> str:
        return f"IntervalSet({' '.join(map(str, self))})"
