"""The sample stream: what a cut, a set of intervals and an order guarantee, against plain models."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from elps.stream.geometry import Geometry
from elps.stream.interval import Interval, IntervalSet
from elps.stream.order import Order, init_rng, permutation, sample_rng


@st.composite
def geometries(draw: st.DrawFn) -> Geometry:
    granule = draw(st.integers(1, 8))
    return Geometry(draw(st.integers(1, 200)), granule * draw(st.integers(1, 20)), granule)


shares = st.lists(st.integers(0, 1000), min_size=1, max_size=9).filter(lambda s: sum(s) > 0)


class TestGeometry:
    @given(geometries(), st.integers(0, 3))
    def test_iterations_tile_each_pass(self, geometry: Geometry, pass_: int) -> None:
        first = pass_ * geometry.per_pass
        whole = [geometry.iteration(t) for t in range(first, first + geometry.per_pass)]
        assert whole[0].lo == pass_ * geometry.samples
        assert whole[-1].hi == (pass_ + 1) * geometry.samples
        assert all(a.hi == b.lo for a, b in pairwise(whole))
        assert all(i.size == geometry.batch for i in whole[:-1])
        assert 1 <= whole[-1].size <= geometry.batch

    @given(geometries(), st.integers(0, 1000))
    def test_a_position_is_in_the_iteration_that_it_is_said_to_be_in(
        self, geometry: Geometry, position: int
    ) -> None:
        interval = geometry.iteration(geometry.iteration_of(position))
        assert interval.lo <= position < interval.hi

    @given(geometries(), st.integers(0, 60))
    def test_passes_count_the_samples_done(self, geometry: Geometry, t: int) -> None:
        done = sum(geometry.iteration(i).size for i in range(t))
        assert geometry.passes(t) == pytest.approx(done / geometry.samples)

    @given(geometries(), st.integers(0, 60), shares)
    def test_a_cut_tiles_the_iteration_at_granules(
        self, geometry: Geometry, t: int, shares: list[int]
    ) -> None:
        whole = geometry.iteration(t)
        parts = geometry.cut(whole, shares)
        assert len(parts) == len(shares)
        assert (parts[0].lo, parts[-1].hi) == whole
        assert all(a.hi == b.lo for a, b in pairwise(parts))
        assert all(geometry.fits(part, t) for part in parts if part.size)

    @given(geometries(), st.integers(0, 60), shares)
    def test_a_cut_is_proportional_to_less_than_a_granule(
        self, geometry: Geometry, t: int, shares: list[int]
    ) -> None:
        whole = geometry.iteration(t)
        granules = -(-whole.size // geometry.granule)
        for part, share in zip(geometry.cut(whole, shares), shares, strict=True):
            wanted = granules * share / sum(shares)
            got = -(-part.size // geometry.granule)
            assert abs(got - wanted) < 1
            assert share or not part.size

    @given(geometries(), st.integers(0, 60), shares, shares)
    def test_a_part_can_be_cut_again(
        self, geometry: Geometry, t: int, shares: list[int], again: list[int]
    ) -> None:
        for part in geometry.cut(geometry.iteration(t), shares):
            inner = geometry.cut(part, again)
            assert sum(i.size for i in inner) == part.size
            assert all(geometry.fits(i, t) for i in inner if i.size)

    @given(geometries(), st.integers(0, 60), st.integers(-5, 500), st.integers(-5, 500))
    def test_what_does_not_fit_is_told(self, geometry: Geometry, t: int, lo: int, hi: int) -> None:
        whole = geometry.iteration(t)
        cuts = set(range(whole.lo, whole.hi, geometry.granule)) | {whole.hi}
        assert geometry.fits(Interval(lo, hi), t) == (lo < hi and lo in cuts and hi in cuts)

    @pytest.mark.parametrize("shares", [[], [0, 0], [1, -1], [-1]])
    def test_shares_that_mean_nothing_are_refused(self, shares: list[int]) -> None:
        with pytest.raises(ValueError, match="shares"):
            Geometry(10, 5).cut(Interval(0, 5), shares)

    @pytest.mark.parametrize("numbers", [(0, 1, 1), (1, 0, 1), (1, 1, 0), (10, 5, 2), (-1, 1, 1)])
    def test_numbers_that_are_no_geometry_are_refused(self, numbers: tuple[int, int, int]) -> None:
        with pytest.raises(ValueError, match="no geometry"):
            Geometry(*numbers)

    def test_uneven_data_end_with_a_short_batch(self) -> None:
        geometry = Geometry(858, 8)
        assert geometry.per_pass == 108
        assert geometry.iteration(107) == (856, 858)
        assert geometry.iteration(108) == (858, 866)


LIMIT = 40
intervals = st.tuples(st.integers(0, LIMIT), st.integers(0, LIMIT)).map(
    lambda t: Interval(min(t), max(t))
)


class TestIntervals:
    @given(intervals, intervals)
    def test_overlap_and_containment_are_those_of_sets(self, a: Interval, b: Interval) -> None:
        one, two = set(range(*a)), set(range(*b))
        assert a.overlaps(b) == b.overlaps(a) == bool(one & two)
        if b.size:
            assert a.contains(b) == (two <= one)

    @given(st.lists(intervals, max_size=30), intervals)
    def test_a_set_of_intervals_behaves_like_a_set_of_samples(
        self, adds: list[Interval], asked: Interval
    ) -> None:
        found, model = IntervalSet(), set[int]()
        members: list[Interval] = []
        for interval in adds:
            samples = set(range(*interval))
            assert found.overlaps(interval) == bool(model & samples)
            assert found.add(interval) == (not model & samples)
            if samples and not model & samples:
                members.append(interval)
            if not model & samples:
                model |= samples
        assert list(found) == sorted(members)
        assert (len(found), found.size) == (len(members), len(model))
        assert all(member in found for member in members)
        wanted = set(range(*asked))
        assert found.covers(asked) == (wanted <= model)
        assert {s for part in found.within(asked) for s in range(*part)} == wanted & model
        assert {s for part in found.gaps(asked) for s in range(*part)} == wanted - model
        assert all(part.size for part in found.gaps(asked))

    @given(st.lists(intervals, max_size=30), st.data())
    def test_what_is_removed_is_gone_and_nothing_else(
        self, adds: list[Interval], data: st.DataObject
    ) -> None:
        found = IntervalSet()
        for interval in adds:
            found.add(interval)
        assume(len(found))
        victim = data.draw(st.sampled_from(list(found)))
        rest = [member for member in found if member != victim]
        found.remove(victim)
        assert list(found) == rest
        assert found.size == sum(member.size for member in rest)
        with pytest.raises(KeyError):
            found.remove(victim)
        assert found.add(victim)

    def test_a_part_of_a_member_is_no_member(self) -> None:
        found = IntervalSet([Interval(0, 10)])
        assert Interval(0, 5) not in found
        with pytest.raises(KeyError):
            found.remove(Interval(0, 5))
        assert found.size == 10

    def test_overlapping_ones_cannot_be_given_at_the_start(self) -> None:
        with pytest.raises(ValueError, match="overlaps"):
            IntervalSet([Interval(0, 2), Interval(1, 3)])

    def test_a_cleared_set_takes_everything_again(self) -> None:
        found = IntervalSet([Interval(0, 2)])
        found.clear()
        assert (list(found), found.size) == ([], 0)
        assert found.add(Interval(0, 3))


PERMUTATION_0_0_8 = [2, 4, 3, 6, 5, 0, 1, 7]


class TestOrder:
    @given(st.integers(0, 2**63 - 1), st.integers(0, 10), st.integers(1, 300))
    def test_a_pass_visits_each_sample_once(self, seed: int, pass_: int, samples: int) -> None:
        order = permutation(seed, pass_, samples)
        assert order.dtype == np.int64
        assert sorted(order) == list(range(samples))

    def test_seed_and_pass_fix_the_order(self) -> None:
        np.testing.assert_array_equal(permutation(5, 2, 100), permutation(5, 2, 100))
        assert (
            list(permutation(5, 2, 100))
            != list(permutation(5, 3, 100))
            != list(permutation(6, 3, 100))
        )

    def test_the_order_is_the_one_that_earlier_runs_had(self) -> None:
        assert permutation(0, 0, 8).tolist() == PERMUTATION_0_0_8

    @given(st.lists(st.integers(0, 6), min_size=1, max_size=20), st.integers(1, 40), st.data())
    def test_indices_are_those_of_the_pass_whatever_was_asked_before(
        self, passes: list[int], samples: int, data: st.DataObject
    ) -> None:
        order = Order(9, samples)
        for pass_ in passes:
            lo = data.draw(st.integers(0, samples - 1))
            hi = data.draw(st.integers(lo, samples))
            got_pass, indices = order.indices(Interval(pass_ * samples + lo, pass_ * samples + hi))
            assert got_pass == pass_
            np.testing.assert_array_equal(indices, permutation(9, pass_, samples)[lo:hi])

    def test_generators_differ_by_sample_pass_seed_and_purpose(self) -> None:
        draws = [
            generator.random()
            for generator in (
                sample_rng(1, 2, 3),
                sample_rng(1, 2, 4),
                sample_rng(1, 3, 3),
                sample_rng(2, 2, 3),
                init_rng(1),
                init_rng(2),
            )
        ]
        assert len(set(draws)) == len(draws)
        assert sample_rng(1, 2, 3).random() == draws[0]
