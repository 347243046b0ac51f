"""One evaluation: the held-out samples leased over the workers at one version, their sums met at the leader."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from elps.contracts.ids import WorkerId
from elps.psshard.core.cut import Cut, Hold, Piece
from elps.stream.geometry import Geometry
from elps.stream.interval import Interval, IntervalSet


@dataclass
class Round:
    """The evaluation of `version`, open until every piece has reported."""

    version: int
    samples: int
    cut: Cut
    parts: dict[Interval, dict[str, float]] = field(default_factory=dict)  #: piece to its sums

    @classmethod
    def begin(cls, version: int, samples: int, shares: Mapping[WorkerId, int]) -> Round:
        """Cut the held-out samples over the workers of a plan."""
        cut = Cut.fresh(Interval(0, samples), shares, IntervalSet(), _divide)
        return cls(version, samples, cut)

    def report(self, worker: WorkerId, interval: Interval, sums: dict[str, float]) -> bool:
        """Take a piece's sums, once, from whoever holds it; False if it is not theirs to report."""
        piece = self.cut.find(interval, worker)
        if piece is None or piece.hold is not Hold.LENT:
            return False
        piece.hold = Hold.COMPUTED
        self.parts[interval] = sums
        return True

    def free(self, piece: Piece, parts: int) -> None:
        """Take a piece that has not reported from its holder and cut it into up to `parts` free ones."""
        self.cut.free(piece, parts, _divide)

    @property
    def finished(self) -> bool:
        """Whether every piece has reported."""
        return self.cut.computed

    def means(self) -> dict[str, float]:
        """Means over the held-out samples, summed in the order of the samples."""
        names = sorted({n for sums in self.parts.values() for n in sums})
        ordered = [self.parts[i] for i in sorted(self.parts)]
        return {n: math.fsum(s.get(n, math.nan) for s in ordered) / self.samples for n in names}


def _divide(interval: Interval, shares: list[int]) -> list[Interval]:
    """Evaluations are cut anywhere: their sums are additive over samples."""
    return Geometry(max(interval.hi, 1), max(interval.hi, 1)).cut(interval, shares)
