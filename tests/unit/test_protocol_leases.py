"""Cuts, disputes and rows alone, by any order of events."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from elps.contracts.errors import IllegalEvent
from elps.contracts.ids import ShardId, WorkerId
from elps.psshard.core.commands import IterationDone, Timing
from elps.psshard.core.cut import Cut, Hold, Piece
from elps.psshard.core.disputes import Disputes, Outcome
from elps.psshard.core.evaluation import Round
from elps.psshard.core.rows import KEPT, Rows
from elps.stream.geometry import Geometry
from elps.stream.interval import Interval, IntervalSet

WORKERS = [WorkerId(f"w{i}") for i in range(4)]
SHARDS = [ShardId("a"), ShardId("b")]


class Cutting(RuleBasedStateMachine):
    """Pieces of one iteration, lent, computed, freed, skipped in any order."""

    @initialize(
        granule=st.integers(1, 3),
        granules=st.integers(1, 12),
        workers=st.integers(1, 4),
        skip=st.booleans(),
        tail=st.integers(0, 6),
    )
    def begin(self, granule: int, granules: int, workers: int, skip: bool, tail: int) -> None:
        self.geometry = Geometry(granule * granules + 5, granule * granules, granule)
        self.whole = self.geometry.iteration(0)
        self.skips = IntervalSet([Interval(0, granule)] if skip else [])
        shares = dict.fromkeys(WORKERS[:workers], 1)
        held_back = min(tail * granule, self.whole.size)
        self.cut = Cut.fresh(self.whole, shares, self.skips, self.geometry.cut, held_back)
        kept = IntervalSet(p.interval for p in self.cut.pieces if p.tail)
        last = Interval(self.whole.hi - held_back, self.whole.hi)
        assert kept.size == self.cut.tail_left == sum(i.size for i in self.skips.gaps(last))
        self.lent: list[Interval] = []

    @rule(worker=st.sampled_from(WORKERS))
    def lend(self, worker: WorkerId) -> None:
        piece = self.cut.for_worker(worker)
        if piece is None:
            free = [p for p in self.cut.pieces if p.hold is Hold.FREE]
            assert all(p.tail for p in free)
            assert all(p.hold in (Hold.COMPUTED, Hold.DISPUTED) for p in self.cut.of(worker))
            return
        assert piece.holder == worker or piece.hold is Hold.FREE
        piece.holder, piece.hold = worker, Hold.LENT
        self.lent.append(piece.interval)

    @precondition(lambda self: self.cut.tail_left)
    @rule(worker=st.sampled_from(WORKERS), granules=st.integers(1, 12))
    def lend_of_the_tail(self, worker: WorkerId, granules: int) -> None:
        before, size = self.cut.tail_left, granules * self.geometry.granule
        piece = self.cut.off_the_tail(size, self.geometry.cut)
        assert piece.tail
        assert not piece.begun
        piece.holder, piece.hold = worker, Hold.LENT
        assert piece.begun
        assert 0 < piece.interval.size <= min(size, before)
        assert self.cut.tail_left == before - piece.interval.size
        self.lent.append(piece.interval)

    @precondition(lambda self: self.cut.pieces)
    @rule(data=st.data(), hold=st.sampled_from((Hold.COMPUTED, Hold.DISPUTED)))
    def answer(self, data: st.DataObject, hold: Hold) -> None:
        piece = data.draw(st.sampled_from(self.cut.pieces), "answered")
        if piece.hold is Hold.LENT:
            piece.hold, piece.deaths = hold, piece.deaths + 1

    @precondition(lambda self: self.cut.pieces)
    @rule(data=st.data(), parts=st.integers(0, 5))
    def free(self, data: st.DataObject, parts: int) -> None:
        piece = data.draw(st.sampled_from(self.cut.pieces), "freed")
        before = len(self.cut.pieces)
        self.cut.free(piece, parts, self.geometry.cut)
        inside = [p for p in self.cut.pieces if piece.interval.contains(p.interval)]
        assert before <= len(self.cut.pieces) <= before + max(parts, 1) - 1
        assert all(p.hold is Hold.FREE and p.deaths == piece.deaths for p in inside)

    @precondition(lambda self: self.cut.pieces)
    @rule(data=st.data())
    def skip(self, data: st.DataObject) -> None:
        piece = data.draw(st.sampled_from(self.cut.pieces), "skipped")
        if piece.hold is Hold.DISPUTED:
            self.cut.skip(piece)
            self.skips.add(piece.interval)
        else:
            with pytest.raises(IllegalEvent):
                self.cut.skip(piece)

    @invariant()
    def pieces_and_skips_tile_the_iteration(self) -> None:
        tiles = IntervalSet([*(p.interval for p in self.cut.pieces), *self.skips])
        assert tiles.covers(self.whole)
        assert tiles.size == self.whole.size
        assert all(self.geometry.fits(p.interval, 0) for p in self.cut.pieces)

    @invariant()
    def whatever_was_lent_is_nested_or_apart(self) -> None:
        for i in self.lent:
            for p in self.cut.pieces:
                assert i.contains(p.interval) or not i.overlaps(p.interval)

    @invariant()
    def a_piece_is_found_by_whoever_holds_it(self) -> None:
        for p in self.cut.pieces:
            for w in WORKERS:
                assert self.cut.find(p.interval, w) is (p if p.holder == w else None)


TestCutting = Cutting.TestCase
TestCutting.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)


@given(st.lists(st.tuples(st.sampled_from(SHARDS), st.integers(1, 2), st.booleans()), max_size=12))
def test_a_dispute_is_decided_once_by_the_first_answer_of_each_shard(
    answers: list[tuple[ShardId, int, bool]],
) -> None:
    disputes, i = Disputes(SHARDS), Interval(0, 4)
    first = disputes.begin(i, "x")
    first_of: dict[ShardId, bool] = {}
    for shard, attempt, clean in answers:
        outcome = disputes.answer(shard, i, attempt, clean)
        if attempt == first and len(first_of) < len(SHARDS) and shard not in first_of:
            first_of[shard] = clean
            if len(first_of) == len(SHARDS):
                assert outcome is (Outcome.CLEAN if all(first_of.values()) else Outcome.UNCLEAN)
                continue
        assert outcome is Outcome.OPEN
    assert disputes.awaited() == sorted(set(SHARDS) - set(first_of))


def test_a_thaw_is_kept_until_its_iteration_is_over_or_the_interval_is_frozen_again() -> None:
    disputes, i, j = Disputes(SHARDS), Interval(0, 4), Interval(4, 8)
    for interval in (j, i):
        disputes.begin(interval, "x")
        assert disputes.refuse(interval) == "x"
    assert disputes.refused() == [i, j]
    attempt = disputes.begin(i, "y")
    assert (disputes.refused(), disputes.open()) == ([j], [(i, attempt)])
    disputes.forget(Interval(0, 8))
    assert (disputes.refused(), disputes.open()) == ([], [(i, attempt)])


class Reporting(RuleBasedStateMachine):
    """Losses, pushes and completions come in any order; each iteration makes one row, in order."""

    @initialize()
    def begin(self) -> None:
        self.rows, self.now = Rows(0.0), 0.0
        self.open: dict[int, Cut] = {0: self.cut_of(0)}
        self.t = 0
        self.out: list[IterationDone] = []
        self.losses: dict[int, dict[Interval, float]] = {}
        self.pushing: list[tuple[int, WorkerId]] = []

    def cut_of(self, t: int) -> Cut:
        pieces = [Interval(t * 4, t * 4 + 2), Interval(t * 4 + 2, t * 4 + 4)]
        return Cut(Piece(i, w, Hold.LENT) for i, w in zip(pieces, WORKERS, strict=False))

    @rule(data=st.data())
    def computed(self, data: st.DataObject) -> None:
        t = data.draw(st.integers(max(0, self.t - 3), self.t), "iteration")
        at = data.draw(st.integers(0, 1), "piece")
        interval, worker = self.cut_of(t).pieces[at].interval, WORKERS[at]
        if t in self.open:
            piece = self.open[t].find(interval, worker)
            piece = piece if piece is not None and piece.hold is Hold.LENT else None
        else:
            piece = self.rows.lent(worker, t, interval)
        if piece is not None:
            piece.hold, piece.loss = Hold.COMPUTED, float(at + 1)
            self.rows.computed(t, worker, Timing(samples=2))
            self.losses.setdefault(t, {})[interval] = piece.loss
            self.pushing.append((t, worker))
        self.take()

    @precondition(lambda self: self.pushing)
    @rule(data=st.data(), lost=st.booleans())
    def pushed(self, data: st.DataObject, lost: bool) -> None:
        t, worker = data.draw(st.sampled_from(self.pushing), "pushed")
        self.pushing.remove((t, worker))
        if lost:
            self.rows.lost(worker)
        else:
            self.rows.pushed(t, worker, 0.5)
        self.take()

    @rule()
    def complete(self) -> None:
        self.now += 1
        self.rows.complete(self.t, 4, 0, self.open.pop(self.t), self.now)
        self.t += 1
        self.open[self.t] = self.cut_of(self.t)
        self.take()

    def take(self) -> None:
        self.out += self.rows.take()

    @invariant()
    def rows_leave_in_order_and_none_waits_for_ever(self) -> None:
        assert [row.iteration for row in self.out] == list(range(len(self.out)))
        assert len(self.out) <= self.t
        assert self.t - len(self.out) <= KEPT
        for row in self.out:
            known = self.losses.get(row.iteration, {})
            assert row.loss == (sum(known.values()) / 4 if len(known) == 2 else None)
            assert row.duration_s == 1.0

    def teardown(self) -> None:
        if hasattr(self, "rows"):
            rest = self.rows.flush()
            assert len(self.out) + len(rest) == self.t
            assert not self.rows.waiting


TestReporting = Reporting.TestCase
TestReporting.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)


@given(st.integers(1, 9), st.integers(1, 4), st.lists(st.integers(0, 8), max_size=4))
def test_an_evaluation_sums_every_sample_once_whoever_is_lost(
    samples: int, workers: int, lost: list[int]
) -> None:
    current = Round.begin(3, samples, dict.fromkeys(WORKERS[:workers], 1))
    for n in lost:
        pieces = [p for p in current.cut.pieces if p.hold is not Hold.COMPUTED]
        if pieces:
            current.free(pieces[n % len(pieces)], 2)
    while not current.finished:
        piece = next(p for p in current.cut.pieces if p.hold is not Hold.COMPUTED)
        piece.holder, piece.hold = WORKERS[0], Hold.LENT
        sums = {"m": float(sum(range(*piece.interval)))}
        assert current.report(WORKERS[0], piece.interval, sums)
        assert not current.report(WORKERS[0], piece.interval, sums)
    assert current.means() == {"m": pytest.approx(sum(range(samples)) / samples)}


def test_a_metric_that_one_part_lacks_is_not_a_number() -> None:
    current = Round.begin(3, 4, dict.fromkeys(WORKERS[:2], 1))
    for piece, sums in zip(current.cut.pieces, ({"m": 1.0}, {}), strict=True):
        piece.hold = Hold.LENT
        assert piece.holder is not None
        current.report(piece.holder, piece.interval, sums)
    assert math.isnan(current.means()["m"])


def test_of_several_leases_the_first_push_is_told_and_all_that_was_computed() -> None:
    rows, worker = Rows(0.0), WORKERS[0]
    pieces = [Piece(Interval(n, n + 2), worker, Hold.COMPUTED, loss=1.0) for n in (0, 2)]
    for push_s in (0.5, 0.3):
        rows.computed(0, worker, Timing(samples=2, compute_s=1.0))
        rows.pushed(0, worker, push_s)
    rows.complete(0, 4, 0, Cut(pieces), 3.0)
    (row,) = rows.take()
    told = row.timings[worker]
    assert (told.samples, told.compute_s, told.push_s) == (4, 2.0, 0.5)


def test_what_leases_beyond_the_first_took_is_told_apart() -> None:
    rows, worker = Rows(0.0), WORKERS[0]
    sizes, push_s = (6, 2, 1), (0.5, 0.3, 0.2)
    for size, pushed_s in zip(sizes, push_s, strict=True):
        rows.computed(0, worker, Timing(samples=size, compute_s=size * 1.0, lease_s=0.01 * size))
        rows.pushed(0, worker, pushed_s)
    rows.computed(0, WORKERS[1], Timing(samples=1, compute_s=1.0, lease_s=0.5))
    rows.pushed(0, WORKERS[1], 0.1)
    rows.complete(0, 10, 0, Cut([]), 3.0)
    (row,) = rows.take()
    told, other = row.timings[worker], row.timings[WORKERS[1]]
    assert (told.samples, told.compute_s, told.push_s) == (9, 9.0, 0.5)
    assert (told.extra_leases, told.extra_samples, told.extra_s) == (2, 3, 3.0)
    assert told.extra_wait_s == pytest.approx(0.03 + 0.3 + 0.2)
    assert (other.extra_leases, other.extra_wait_s) == (0, 0.0)
