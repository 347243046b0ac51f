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

Divide = Callable[[Interval, list[int]], list[Interval]]
"""Cuts an interval into consecutive parts in proportion to weights (`Geometry.cut`)."""


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
    tail: bool = False  #: held back, or lent of what was

    @property
    def begun(self) -> bool:
        """Whether it was ever lent, or is a part of what was."""
        return self.hold is not Hold.RESERVED and not (self.tail and self.hold is Hold.FREE)


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
        divide: Divide,
        held_back: int = 0,
    ) -> Cut:
        """Cut for the workers of a plan, in order of their ids. Skips are cut points and are lent to nobody.

        The last `held_back` samples are nobody's: the tail.
        """
        workers = sorted(shares)
        given, tail = divide(whole, [whole.size - held_back, held_back])
        parts = divide(given, [shares[w] for w in workers])
        gaps = (
            (w, gap)
            for w, part in zip(workers, parts, strict=True)
            if part.size
            for gap in skips.gaps(part)
        )
        pieces = [Piece(gap, w, Hold.RESERVED) for w, gap in gaps]
        rest = skips.gaps(tail) if tail.size else ()
        return cls([*pieces, *(Piece(gap, None, Hold.FREE, tail=True) for gap in rest)])

    def for_worker(self, worker: WorkerId) -> Piece | None:
        """What this worker is to do next here: what it was lent and has not computed, its own, then what is free."""
        for hold in (Hold.LENT, Hold.RESERVED):
            for piece in self.pieces:
                if piece.holder == worker and piece.hold is hold:
                    return piece
        return next((p for p in self.pieces if p.hold is Hold.FREE and not p.tail), None)

    @property
    def tail_left(self) -> int:
        """Samples of the tail that nobody was lent."""
        return sum(p.interval.size for p in self.pieces if p.tail and p.hold is Hold.FREE)

    def off_the_tail(self, size: int, divide: Divide) -> Piece:
        """The next piece of the tail, cut to `size` samples, whole granules, if it has more; there must be one."""
        at, piece = next(
            (i, p) for i, p in enumerate(self.pieces) if p.tail and p.hold is Hold.FREE
        )
        if 0 < size < piece.interval.size:
            first, rest = divide(piece.interval, [size, piece.interval.size - size])
            if first.size and rest.size:
                pieces = [Piece(part, None, Hold.FREE, tail=True) for part in (first, rest)]
                self.pieces[at : at + 1] = pieces
        return self.pieces[at]

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

    def free(self, piece: Piece, parts: int, divide: Divide) -> None:
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
