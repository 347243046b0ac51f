"""The part of a model that no gradient trains, on a shard: what workers found becomes its next value by a rule.

What is collected of such elements lies in the same array as the sum of the gradients, so that copies, moves and
replicas get it as they get that. Of an iteration, whose workers all began at the same value, is kept

- ``mean``: the sum of value times samples, to be divided by the samples counted;
- ``max``: the largest value;
- ``last``: the value of the interval that lies furthest in the order of the samples, whenever it came.

So the next value depends on what was counted, and not on who computed it or came first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elps.psshard.core.inheriting import History
from elps.psshard.identity import Identity
from elps.stream.interval import Interval

Array = NDArray[Any]


@dataclass(frozen=True)
class Segment:
    """Consecutive elements under one rule."""

    start: int
    stop: int
    rule: str


def segments_of(history: History | None) -> tuple[Segment, ...]:
    """The untrained elements of a job's flat vector, its last ones; `ProtocolError` for a layout that is none."""
    if history is None or '"rules"' not in history.identity:
        return ()
    parameters = Identity.of_text(history.identity).read_layout().parameters
    found = (Segment(p.offset, p.offset + p.size, p.rule) for p in parameters if p.rule and p.size)
    return _joined(found)


def _joined(segments: Iterable[Segment]) -> tuple[Segment, ...]:
    """Neighbours under the same rule as one."""
    out: list[Segment] = []
    for segment in segments:
        if out and (out[-1].stop, out[-1].rule) == (segment.start, segment.rule):
            out[-1] = replace(out[-1], stop=segment.stop)
        else:
            out.append(segment)
    return tuple(out)


class Untrained:
    """Of one partition, over one iteration after the other. Not for two threads at once."""

    def __init__(self, segments: Iterable[Segment], start: int, stop: int) -> None:
        """`segments` of the whole vector, of which the partition is the elements from `start` to `stop`."""
        self._segments = [
            Segment(max(s.start, start) - start, min(s.stop, stop) - start, s.rule)
            for s in segments
            if s.start < stop and start < s.stop
        ]
        #: elements before it are trained
        self.trained = min((s.start for s in self._segments), default=stop - start)
        self._newest: Interval | None = None  #: that has come in this iteration

    def afresh(self) -> Untrained:
        """The same for another block."""
        other = Untrained((), 0, self.trained)
        other._segments = self._segments
        return other

    def add(self, total: Array, interval: Interval, found: Array, *, first: bool) -> None:
        """Collect what an interval found; `first` of an iteration, when `total` holds nothing yet."""
        newer = first or self._newest is None or self._newest < interval
        for s in self._segments:
            into, value = total[s.start : s.stop], found[s.start : s.stop]
            if first or (s.rule == "last" and newer):
                np.copyto(into, value)
            elif s.rule == "max":
                np.maximum(into, value, out=into)
            elif s.rule == "mean":
                np.add(into, value, out=into)
        if newer:
            self._newest = interval

    def nothing(self, total: Array, old: Array, count: int) -> None:
        """Nobody found anything: what is collected shall leave the values as they are."""
        for s in self._segments:
            into = total[s.start : s.stop]
            np.multiply(old[s.start : s.stop], count if s.rule == "mean" else 1, out=into)

    def step(self, total: Array, count: int, out: Array) -> None:
        """Write the next values after `count` samples."""
        self._newest = None
        for s in self._segments:
            value = total[s.start : s.stop]
            if s.rule == "mean":
                np.divide(value, count, out=out[s.start : s.stop])
            else:
                np.copyto(out[s.start : s.stop], value)
