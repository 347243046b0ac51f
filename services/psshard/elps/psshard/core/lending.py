"""Who has which piece of work: cuts of iterations, the evaluation, what each worker has in hand.

* At most two iterations are cut: the oldest one that some partition still needs, *t*, and *t+1*, whose leases are lent
  early so that leasing costs nothing. A cut is kept until its iteration is complete everywhere: a second cut of the
  same iteration would not nest with what some partitions have accepted.
* A worker that is lost loses its pieces in both cuts. They are only ever subdivided, lent or not.
* An evaluation at *v* is taken up before the leases of iteration *v*.
* A worker that waits for *t+1* while a piece of *t* is free is called back: nobody else may be there to take it. It
  keeps the lease of *t+1* and gets it again afterwards.
* A worker is at any time either asking, or has one lease in hand, or is idle: between the two, which takes no time in
  a worker that lives.
* A fresh cut goes by the newest plan of shares (`Batches`); a newer plan changes nothing of it any more.
* Of a cut with a tail the last part is nobody's at first. It is lent, in shrinking leases, to those who have done
  their own share while others have not (`elps.balance.tail`).
* One that retires ends what it has in hand and is lent nothing more; later cuts leave it out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from elps.contracts.ids import WorkerId
from elps.psshard.core import commands as do
from elps.psshard.core.batches import Batches
from elps.psshard.core.commands import Command, LeaseKind
from elps.psshard.core.cut import Cut, Hold, Piece
from elps.psshard.core.evaluation import Round
from elps.psshard.core.goal import Goal
from elps.psshard.core.holes import Holes
from elps.psshard.core.rules import Rules
from elps.stream.interval import Interval, IntervalSet


@dataclass
class Lease:
    """What a worker was lent last and has not answered."""

    ticket: int
    kind: LeaseKind
    version: int
    piece: Piece
    called_at: float | None = None  #: monotonic s, when it was called back; it is to ask again

    def __str__(self) -> str:
        what = "the evaluation of version" if self.kind == "evaluate" else "iteration"
        return f"samples {self.piece.interval} of {what} {self.version}"


class Lending:
    """All leases of one job under one epoch."""

    def __init__(
        self, rules: Rules, goal: Goal, skips: IntervalSet, evaluated: int, batches: Batches
    ) -> None:
        self._rules, self._goal = rules, goal
        self._batches = batches  #: what the shares of fresh cuts go by
        self._skips = skips  #: granted; the clock adds to it
        self.workers: set[WorkerId] = set()  #: ready ones
        self.cuts: dict[int, Cut] = {}  #: keys are t and t+1 at most
        self.round: Round | None = None  #: of version t-1, t or t+1
        self.evaluated = evaluated  #: newest version evaluated
        self.owed: int | None = None  #: evaluated in place of an earlier version that was not
        self.asking: dict[WorkerId, float] = {}  #: waits for a lease, since
        self.hands: dict[WorkerId, Lease] = {}  #: has this lease in hand
        self.idle: dict[WorkerId, float] = {}  #: neither asks nor has anything in hand, since
        self._retiring: set[WorkerId] = set()  #: ready ones that are about to go
        self._ticket = 0
        self.opened = -1  #: without a barrier: newest iteration that was cut
        self.holes: Holes | None = None  #: what of the first iterations is lacking, and where

    # --- workers ------------------------------------------------------------------------------------------------------

    def join(self, worker: WorkerId, now: float) -> None:
        """A worker may be lent to."""
        self.workers.add(worker)
        self.idle[worker] = now

    def retire(self, worker: WorkerId, now: float) -> None:
        """A worker is about to go: what is only meant for it is others' work."""
        self._retiring.add(worker)
        if self.asking.pop(worker, None) is not None:
            self.idle[worker] = now
        beyond = max((lease.version for lease in self.hands.values()), default=-1)
        for t, cut in list(self.cuts.items()):
            if t >= beyond and not any(piece.begun for piece in cut.pieces):
                # Nobody was lent anything of it, and nobody waits for what comes after: cut anew without this one.
                del self.cuts[t]
                continue
            for piece in [p for p in cut.of(worker) if p.hold is Hold.RESERVED]:
                cut.free(piece, len(self._staying), self._rules.geometry.cut)
        if self.round is not None:
            for piece in [p for p in self.round.cut.of(worker) if p.hold is Hold.RESERVED]:
                self.round.free(piece, len(self._staying))

    def leave(self, worker: WorkerId, why: str, pushed: Collection[int] = ()) -> list[Command]:
        """A worker is gone: its pieces are free, but for those computed whose push is acknowledged.

        `pushed` names the iterations of these.
        """
        self.workers.discard(worker)
        self._retiring.discard(worker)
        for what in (self.asking, self.hands, self.idle):
            what.pop(worker, None)
        out: list[Command] = []
        for t in sorted(self.cuts):
            for piece in self.cuts[t].of(worker):
                if piece.hold is Hold.DISPUTED or (piece.hold is Hold.COMPUTED and t in pushed):
                    piece.holder = None
                else:
                    out += self.free(t, piece, len(self.workers), why)
        if self.round is not None:
            for piece in self.round.cut.of(worker):
                if piece.hold is not Hold.COMPUTED:
                    self.round.free(piece, len(self.workers))
        return out

    def ask(self, worker: WorkerId, now: float) -> None:
        """A worker has nothing in hand, whatever it was lent before, and wants a lease."""
        self.hands.pop(worker, None)
        if worker in self._retiring:
            self.idle.setdefault(worker, now)
            return
        self.idle.pop(worker, None)
        self.asking.setdefault(worker, now)

    def answered(self, worker: WorkerId, version: int, interval: Interval, now: float) -> None:
        """A worker is through with a lease, well or badly."""
        lease = self.hands.get(worker)
        if lease is not None and (lease.version, lease.piece.interval) == (version, interval):
            del self.hands[worker]
            self.idle[worker] = now

    # --- pieces -------------------------------------------------------------------------------------------------------

    def lent(self, worker: WorkerId, iteration: int, interval: Interval) -> Piece | None:
        """The piece of an open iteration with just this interval, if it is lent to this worker."""
        cut = self.cuts.get(iteration)
        piece = cut.find(interval, worker) if cut is not None else None
        return piece if piece is not None and piece.hold is Hold.LENT else None

    def disputed(self, iteration: int, interval: Interval) -> Piece | None:
        """The piece that a skip is being decided about; None when others have filled it meanwhile."""
        cut = self.cuts.get(iteration)
        pieces = cut.pieces if cut is not None else []
        return next((p for p in pieces if p.interval == interval and p.hold is Hold.DISPUTED), None)

    def free(self, t: int, piece: Piece, parts: int, why: str) -> list[Command]:
        """Take a piece of an iteration from its holder and cut it into up to `parts` free ones."""
        out: list[Command] = []
        if piece.hold is not Hold.RESERVED:
            what = f"samples {piece.interval}: {why}"
            out.append(do.Remark("released", what, piece.holder, t))
        self.cuts[t].free(piece, parts, self._rules.geometry.cut)
        return out

    def forgive(self, lease: Lease) -> None:
        """Nobody has died of this lease: what it is cut into by now is not suspected for it."""
        current = self.round if lease.kind == "evaluate" else None
        there = current is not None and current.version == lease.version
        cut = current.cut if current is not None and there else self.cuts.get(lease.version)
        for piece in cut.pieces if cut is not None else ():
            if lease.piece.interval.contains(piece.interval):
                piece.deaths = max(0, piece.deaths - 1)

    def next_boundary(self, t: int) -> int:
        """The first version that nobody was lent anything beyond, t or later."""
        begun = [v for v, cut in self.cuts.items() if any(p.begun for p in cut.pieces)]
        evaluating = self.round.version if self.round is not None else t
        return max([t, evaluating, *(v + 1 for v in begun)])

    # --- lending ------------------------------------------------------------------------------------------------------

    def due(self, version: int) -> bool:
        """Whether a version has to be evaluated and its evaluation has not begun."""
        return (
            self.round is None
            and version > self.evaluated
            and self._goal.reaches(version)
            and (version == self.owed or self._rules.evaluation_due(version, self._goal.end))
        )

    def serve(self, t: int, now: float) -> list[Command]:
        """Lend what can be lent to those who ask, longest first; call back those who wait beside free work."""
        if self.due(t) and self.workers:
            self._begin_round(t)
        out: list[Command] = []
        find = self._find if self._rules.staleness is None else self._find_open
        for worker in sorted(self.asking, key=lambda w: (self.asking[w], w)):
            found = find(worker, t)
            if found is not None:
                out.append(self._lend(worker, *found, now))
        return out + self._call_back(t, now)

    def _begin_round(self, version: int) -> None:
        self.round = Round.begin(
            version, self._rules.test_samples, dict.fromkeys(sorted(self._staying), 1)
        )

    def _find(self, worker: WorkerId, t: int) -> tuple[LeaseKind, int, Piece] | None:
        oldest = t if self.round is None else min(t, self.round.version)
        for version in range(oldest, t + 2):
            if self.due(version):
                self._begin_round(version)
            current = self.round
            here = current.cut if current is not None and current.version == version else None
            if here is not None and (piece := here.for_worker(worker)) is not None:
                return "evaluate", version, piece
            if version < t:
                continue
            if not self._goal.passes(version):
                return None
            if version not in self.cuts:
                self.cuts[version] = self._fresh(version)
            cut = self.cuts[version]
            if (piece := cut.for_worker(worker) or self._of_tail(worker, cut)) is not None:
                return "train", version, piece
        return None

    def _fresh(self, iteration: int) -> Cut:
        geometry = self._rules.geometry
        whole = geometry.iteration(iteration)
        return Cut.fresh(
            whole,
            self._batches.shares(self._staying),
            self._skips,
            geometry.cut,
            self._batches.hold_back(whole.size, geometry.granule),
        )

    def _of_tail(self, worker: WorkerId, cut: Cut) -> Piece | None:
        """A lease off an iteration's tail, smaller than the one before."""
        size = self._tail_lease(worker, cut)
        return cut.off_the_tail(size, self._rules.geometry.cut) if size else None

    def _tail_lease(self, worker: WorkerId, cut: Cut) -> int:
        left, granule = cut.tail_left, self._rules.geometry.granule
        return self._batches.tail_lease(worker, self._staying, left, granule) if left else 0

    def _find_open(self, worker: WorkerId, t: int) -> tuple[LeaseKind, int, Piece] | None:
        """Without a barrier: the oldest piece that nobody has, of any iteration that may be begun.

        One more than those that can be computed is lent early; whoever has it waits in the shards. Nothing is lent
        beyond a version that is to be evaluated, so that it is there, alone, once all before it is done.
        """
        if self.round is not None:
            piece = self.round.cut.for_worker(worker)
            return ("evaluate", self.round.version, piece) if piece is not None else None
        for version in range(t, t + self._rules.ahead + 2):
            if not self._goal.passes(version) or self.due(version):
                return None
            if version not in self.cuts:
                self._open(version)
            if (piece := self.cuts[version].for_worker(worker)) is not None:
                return "train", version, piece
        return None

    def _open(self, version: int) -> None:
        """Cut an iteration in equal pieces, as many as there are workers: anybody's, so that a fast one takes more.

        One that was begun under another leader is cut where partitions have different parts of it, and what all have
        is done.
        """
        begun = self.holes is not None and version <= self.holes.far
        if self.holes is not None and begun:
            parts = self.holes.pieces(version)
        else:
            parts = [(self._rules.geometry.iteration(version), False)]
        pieces = [
            Piece(gap, None, Hold.COMPUTED if everywhere else Hold.FREE)
            for part, everywhere in parts
            for share in self._rules.geometry.cut(part, [1] * max(len(self._staying), 1))
            for gap in self._skips.gaps(share)
        ]
        self.cuts[version], self.opened = Cut(pieces), max(self.opened, version)

    def _lend(
        self, worker: WorkerId, kind: LeaseKind, version: int, piece: Piece, now: float
    ) -> Command:
        piece.holder, piece.hold, piece.lent_at = worker, Hold.LENT, now
        self._ticket += 1
        del self.asking[worker]
        self.hands[worker] = Lease(self._ticket, kind, version, piece)
        return do.Lend(worker, kind, version, piece.interval, self._ticket)

    def _call_back(self, t: int, now: float) -> list[Command]:
        """Call back those who wait for a version that cannot come before somebody takes a free piece."""
        cut = self.cuts.get(t)
        cuts = [cut] if cut is not None else []
        if self.round is not None and self.round.version <= t:
            cuts.append(self.round.cut)
        free = any(p.hold is Hold.FREE and not p.tail for c in cuts for p in c.pieces)
        if not free and (cut is None or not cut.tail_left):
            return []
        out: list[Command] = []
        for worker in sorted(self.hands):
            lease = self.hands[worker]
            if not free and cut is not None and not self._tail_lease(worker, cut):
                continue
            if lease.version > t + self._rules.ahead and lease.called_at is None:
                lease.called_at = now
                out.append(do.CallBack(worker, lease.ticket))
        return out

    def called_back(self) -> list[do.CallBack]:
        """The calls that nobody has followed yet: said again when a link comes back."""
        return [
            do.CallBack(w, self.hands[w].ticket)
            for w in sorted(self.hands)
            if self.hands[w].called_at is not None
        ]

    def call_all_back(self, now: float) -> list[do.CallBack]:
        """Nothing that is waited for will come any more: whoever has a lease in hand is to ask again."""
        for lease in self.hands.values():
            lease.called_at = now
        return self.called_back()

    def outstanding(self, t: int, now: float) -> str:
        """What of iteration t and of the evaluation is not computed, for people; empty when nothing is."""
        cuts = [self.cuts[t]] if t in self.cuts else []
        cuts += [self.round.cut] if self.round is not None else []
        pieces = [p for c in cuts for p in c.pieces if p.hold is not Hold.COMPUTED]
        return "; ".join(
            f"{p.interval} {p.hold.value}"
            + (f" to {p.holder} for {now - p.lent_at:.1f} s" if p.hold is Hold.LENT else "")
            for p in pieces[:4]
        )

    @property
    def _staying(self) -> set[WorkerId]:
        """Every ready worker that stays; all of them, if none does."""
        return self.workers - self._retiring or self.workers

    def check_invariants(self, t: int, lent: Callable[[int], Iterable[Interval]]) -> None:
        """Raise `AssertionError` if a state that cannot be has come about; for tests."""
        assert set(self.cuts) <= set(range(t, t + self._rules.ahead + 2)), (t, sorted(self.cuts))
        for v, cut in self.cuts.items():
            whole = self._rules.geometry.iteration(v)
            tiles = IntervalSet([*(p.interval for p in cut.pieces), *self._skips.within(whole)])
            assert tiles.size == whole.size, (v, cut.pieces)
            assert tiles.covers(whole), (v, cut.pieces)
            for earlier in lent(v):
                for p in cut.pieces:
                    nested = earlier.contains(p.interval) or p.interval.contains(earlier)
                    assert nested or not earlier.overlaps(p.interval), (v, earlier, p)
        pieces = [p for cut in self.cuts.values() for p in cut.pieces]
        if self.round is not None:
            assert t - 1 <= self.round.version <= t + 1, (t, self.round.version)
            assert self._rules.staleness is None or self.opened < self.round.version == t
            assert IntervalSet(p.interval for p in self.round.cut.pieces).size == self.round.samples
            pieces += [p for p in self.round.cut.pieces if p.hold is not Hold.COMPUTED]
        for p in pieces:
            if p.hold is Hold.FREE:
                assert p.holder is None, p
            elif p.hold not in (Hold.DISPUTED, Hold.COMPUTED) or p.holder is not None:
                assert p.holder in self.workers, p
        states = [*self.asking, *self.hands, *self.idle]
        assert sorted(states) == sorted(self.workers), (states, self.workers)
        for worker, lease in self.hands.items():
            assert (lease.piece.holder, lease.piece.hold) == (worker, Hold.LENT), lease
