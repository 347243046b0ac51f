"""One iteration (or one evaluation) cut into leases.

The pieces of a cut are disjoint and, with the skips, tile its whole. They only ever *subdivide*: a piece that was lent
keeps its bounds or is cut in smaller ones, so whatever any two holders push is equal, nested or disjoint.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from elps.contracts.errors import IllegalEvent
from elps.contracts.ids import WorkerId
from elps.stream.interval import Interval, IntervalSet


class Hold(Enum):
    """Where a piece stands."""

    FREE = "free"
    """Nobody's; whoever asks next takes it."""
    RESERVED = "reserved"
    """Meant for its holder, not lent yet."""
    LENT = "lent"
    """Its holder may be computing it."""
    COMPUTED = "computed"
    """Its holder has the gradient; the push may be under way."""
    DISPUTED = "disputed"
    """Its gradient was bad; a skip is being decided."""


@dataclass
class Piece:
    """A lease, or what may become one."""

    interval: Interval
    holder: WorkerId | None
    hold: Hold
    lent_at: float = 0.0  #: monotonic s, of the newest lending
    deaths: int = 0  #: workers that died while computing it, or an interval it was cut from
    tries: int = 0  #: times its gradient was bad and the skip refused
    loss: float | None = None  #: sum over the interval, once computed


class Cut:
    """The pieces of one interval, in order."""

    def __init__(self, pieces: Iterable[Piece]) -> None:
        self.pieces = sorted((p for p in pieces if p.interval.size), key=lambda p: p.interval)

    @classmethod
    def fresh(
        cls,
        whole: Interval,
        shares: Mapping[WorkerId, int],
        skips: IntervalSet,
        divide: Callable[[Interval, list[int]], list[Interval]],
    ) -> Cut:
        """Cut for the workers of a plan, in order of their ids. Skips are cut points and are lent to nobody."""
        workers = sorted(shares)
        parts = divide(whole, [shares[w] for w in workers])
        gaps = (
            (w, gap)
            for w, part in zip(workers, parts, strict=True)
            if part.size
            for gap in skips.gaps(part)
        )
        return cls(Piece(gap, w, Hold.RESERVED) for w, gap in gaps)

    def for_worker(self, worker: WorkerId) -> Piece | None:
        """What this worker is to do next here: what it was lent and has not computed, its own, then what is free."""
        for hold in (Hold.LENT, Hold.RESERVED):
            for piece in self.pieces:
                if piece.holder == worker and piece.hold is hold:
                    return piece
        return next((p for p in self.pieces if p.hold is Hold.FREE), None)

    def find(self, interval: Interval, holder: WorkerId) -> Piece | None:
        """The piece with just this interval, if this worker holds it."""
        at = bisect_left(self.pieces, interval, key=lambda p: p.interval)
        if (
            at < len(self.pieces)
            and self.pieces[at].interval == interval
            and self.pieces[at].holder == holder
        ):
            return self.pieces[at]
        return None

    def free(
        self, piece: Piece, parts: int, divide: Callable[[Interval, list[int]], list[Interval]]
    ) -> None:
        """Take a piece from its holder and cut it into up to `parts` free ones."""
        pieces = [
            Piece(part, None, Hold.FREE, deaths=piece.deaths, tries=piece.tries)
            for part in divide(piece.interval, [1] * max(parts, 1))
        ]
        at = self.pieces.index(piece)
        self.pieces[at : at + 1] = [p for p in pieces if p.interval.size]

    def skip(self, piece: Piece) -> None:
        """A piece whose skip was granted is lent to nobody any more."""
        if piece.hold is not Hold.DISPUTED:
            raise IllegalEvent(f"{piece.interval} is {piece.hold.value}, so it cannot be skipped")
        self.pieces.remove(piece)

    def of(self, worker: WorkerId) -> list[Piece]:
        """All pieces of a worker."""
        return [p for p in self.pieces if p.holder == worker]

    @property
    def computed(self) -> bool:
        """Whether every piece's loss is known."""
        return all(p.hold is Hold.COMPUTED for p in self.pieces)
