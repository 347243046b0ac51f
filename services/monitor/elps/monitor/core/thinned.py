"""A sequence by iteration number that thins with age instead of being cut.

The newest rows are whole. Older ones sink through levels: level *k* keeps the rows whose iteration is a multiple of
2^k, so a curve over a job of any length has points from its start to its end, and memory grows with the logarithm of
the length.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Generic, Protocol, TypeVar

LEVELS = 44
"""Enough for 2^53 iterations with a hundred rows in each level."""
SMALLEST_WHOLE = 8
"""`shrink` leaves at least so many newest rows whole."""


class Numbered(Protocol):
    """Anything that belongs to an iteration."""

    @property
    def iteration(self) -> int:
        """Number of the iteration."""


T = TypeVar("T", bound=Numbered)
_number = attrgetter("iteration")


class Thinned(Generic[T]):
    """Rows in order of iteration, one for each; at least the newest `whole` of them are all kept."""

    def __init__(self, whole: int, per_level: int) -> None:
        self._whole, self._per_level = whole, per_level
        self._levels: list[list[T]] = [
            []
        ]  #: newest first; each sorted, all of level k+1 before all of level k
        self.dropped = 0
        """Rows thinned out so far."""

    def put(self, row: T) -> list[T] | None:
        """Add a row, or put it in the place of the one with its number.

        Returns the rows that went for it (replaced or thinned out), or None when the row was refused because its
        neighbours were thinned already.
        """
        newest = self._levels[0]
        if not newest or row.iteration > newest[-1].iteration:
            if not newest and (last := self.last) is not None and row.iteration <= last.iteration:
                return None
            newest.append(row)
            # Deeper levels grow only when this one gives rows away.
            return self._thin() if len(newest) > self._whole + self._whole // 4 else []
        at = bisect_left(newest, row.iteration, key=_number)
        if at < len(newest) and newest[at].iteration == row.iteration:
            gone, newest[at] = newest[at], row
            return [gone]
        if at == 0 and any(self._levels[1:]):
            return None
        newest.insert(at, row)
        return self._thin()

    def drop_from(self, iteration: int) -> list[T]:
        """Remove and return the rows of `iteration` and later ones."""
        gone: list[T] = []
        for level in self._levels:
            at = bisect_left(level, iteration, key=_number)
            gone += level[at:]
            del level[at:]
        return gone

    def shrink(self) -> list[T]:
        """Keep half as much from now on; remove and return what is too much."""
        self._whole = max(self._whole // 2, SMALLEST_WHOLE)
        self._per_level = max(self._per_level // 2, SMALLEST_WHOLE // 2)
        return self._thin(slack=0)

    def placed(self) -> Iterator[tuple[int, T]]:
        """All rows with the levels that they are at, in no order."""
        for level, rows in enumerate(self._levels):
            for row in rows:
                yield level, row

    def replace(self, placed: Iterable[tuple[int, T]]) -> None:
        """Hold these rows and no others, each at its level if it can be there.

        The numbers of the rows differ. A row that has newer ones at a deeper level sinks to theirs, or goes.
        """
        self._levels, deepest = [[]], 0
        for level, row in sorted(placed, key=lambda pair: pair[1].iteration, reverse=True):
            deepest = max(deepest, min(level, LEVELS - 1))
            while len(self._levels) <= deepest:
                self._levels.append([])
            if row.iteration % 2**deepest == 0:
                self._levels[deepest].append(row)
        for rows in self._levels:
            rows.reverse()
        self._thin()

    @property
    def smallest(self) -> bool:
        """Whether `shrink` changes nothing any more."""
        return self._whole <= SMALLEST_WHOLE and self._per_level <= SMALLEST_WHOLE // 2

    def since(self, iteration: int) -> Iterator[T]:
        """The rows of `iteration` and later ones, oldest first."""
        for level in reversed(self._levels):
            at = bisect_left(level, iteration, key=_number)
            for i in range(at, len(level)):
                yield level[i]

    def at_or_before(self, iteration: int) -> T | None:
        """The last row that is not later than `iteration`."""
        for level in self._levels:
            if at := bisect_right(level, iteration, key=_number):
                return level[at - 1]
        return None

    def newest(self, count: int) -> list[T]:
        """At most `count` of the newest rows, oldest first, none of them thinned out in between."""
        return self._levels[0][-count:] if count > 0 else []

    def curve(self, points: int) -> list[T]:
        """At most `points` rows (2 or more), spread evenly over the iterations, the first and the last among them."""
        first, last = self.first, self.last
        if first is None or last is None:
            return []
        span = last.iteration - first.iteration
        chosen: list[T] = []
        for i in range(points):
            row = self.at_or_before(first.iteration + span * i // (points - 1))
            if row is not None and (not chosen or row.iteration > chosen[-1].iteration):
                chosen.append(row)
        return chosen

    @property
    def first(self) -> T | None:
        """The oldest row."""
        return next((level[0] for level in reversed(self._levels) if level), None)

    @property
    def last(self) -> T | None:
        """The newest row."""
        return next((level[-1] for level in self._levels if level), None)

    def __len__(self) -> int:
        return sum(map(len, self._levels))

    def __iter__(self) -> Iterator[T]:
        return self.since(0)

    def _thin(self, slack: int | None = None) -> list[T]:
        """Let rows beyond a level's capacity sink, in batches of a quarter, so that the cost per row is constant."""
        gone: list[T] = []
        k = 0
        while k < len(self._levels):
            level = self._levels[k]
            capacity = self._whole if k == 0 else self._per_level
            if len(level) > capacity + (capacity // 4 if slack is None else slack):
                sinking = level[: len(level) - capacity]
                del level[: len(level) - capacity]
                if k + 1 == LEVELS:
                    gone += sinking
                else:
                    if k + 1 == len(self._levels):
                        self._levels.append([])
                    stride = 2 ** (k + 1)
                    below = self._levels[k + 1]
                    for row in sinking:
                        (gone if row.iteration % stride else below).append(row)
            k += 1
        self.dropped += len(gone)
        return gone
