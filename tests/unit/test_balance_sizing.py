"""Sizes are whole numbers that sum to the batch, whatever the batch and whatever is said of the workers."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elps.balance import (
    AnyTimes,
    LeaderStraggler,
    Limits,
    LinearTimes,
    Sizes,
    equal_finish,
    even,
    proportional,
    scaled,
    worth_using,
)
from elps.balance.limits import LARGEST_BATCH, apportion
from elps.contracts.ids import WorkerId

anything = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from([0.0, -1.0, math.nan, 1e9, 1e-300, 1e300, 1e-3, 1.0]),
    st.floats(1e-3, 1e3),
)
totals = st.one_of(
    st.integers(0, 50), st.integers(0, 10_000), st.sampled_from([LARGEST_BATCH, LARGEST_BATCH - 1])
)
bounds = st.one_of(st.integers(0, 20), st.integers(0, 5_000), st.just(LARGEST_BATCH))
granules = st.one_of(st.just(1), st.integers(1, 40), st.just(LARGEST_BATCH))

checked = settings(deadline=None)


@st.composite
def limits_of(draw: st.DrawFn, workers: int) -> Limits:
    free = draw(st.booleans())
    column = st.lists(bounds, min_size=workers, max_size=workers).map(np.array)
    return Limits.of(
        workers,
        granule=draw(granules),
        minimum=1 if free else draw(column),
        maximum=None if free else draw(column),
    )


def check(sizes: Sizes, total: int, limits: Limits) -> None:
    """What holds for any sizes at all."""
    samples = sizes.samples
    assert samples.dtype == np.int64
    assert (samples >= 0).all()
    assert sum(samples.tolist()) == total
    cuts = list(itertools.accumulate(samples.tolist()))
    inside = [cut for cut in cuts if 0 < cut < total]
    assert all(cut % limits.granule == 0 for cut in inside)
    if not sizes.exceeded:
        # The last granule may be cut short, so a most that ends within it holds all the more.
        assert (samples <= np.maximum(limits.maximum, 0)).all()


@checked
@given(st.lists(anything, min_size=1, max_size=12), totals, st.data())
def test_any_speeds_give_whole_sizes_that_sum_to_the_batch_and_keep_the_most(
    speeds: list[float], total: int, data: st.DataObject
) -> None:
    limits = data.draw(limits_of(len(speeds)))
    check(proportional(np.array(speeds), total, limits), total, limits)
    check(even(total, limits), total, limits)


@checked
@given(
    st.lists(st.tuples(anything, anything, anything), min_size=1, max_size=10), totals, st.data()
)
def test_any_time_model_gives_whole_sizes_that_sum_to_the_batch(
    lines: list[tuple[float, float, float]], total: int, data: st.DataObject
) -> None:
    limits = data.draw(limits_of(len(lines)))
    per, fixed, knee = np.array(lines).T
    times = LinearTimes.of(per, fixed, knee if data.draw(st.booleans()) else 0.0)
    out = ~worth_using(times, total, limits)
    assert not out.all()
    for at in (limits, limits.without(out)):
        check(equal_finish(times, total, at), total, at)


@checked
@given(st.lists(anything, min_size=1, max_size=8), st.integers(0, 3_000), st.data())
def test_a_function_that_is_no_time_model_at_all_still_gives_sizes_that_sum(
    weird: list[float], total: int, data: st.DataObject
) -> None:
    limits = data.draw(limits_of(len(weird)))

    def function(samples: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            return np.array(weird) * np.sin(samples)

    check(equal_finish(AnyTimes(function), total, limits), total, limits)


@checked
@given(st.lists(anything, min_size=2, max_size=12), st.integers(1, 2_000), st.data())
def test_steps_of_leader_and_straggler_keep_the_sum_and_the_bounds(
    times: list[float], total: int, data: st.DataObject
) -> None:
    limits = data.draw(limits_of(len(times)))
    begin = even(total, limits)
    low, high = limits.units(-(-total // limits.granule))
    steps, sizes = LeaderStraggler(), begin.samples
    steps.arrange(np.full(len(times), -1))
    for turn in range(6):
        with np.errstate(over="ignore"):
            steps.observe(np.roll(np.array(times), turn))
        moved = steps.move(sizes, limits)
        assert int(moved.sum()) == total
        assert (moved >= 0).all()
        was, units = -(-sizes // limits.granule), -(-moved // limits.granule)
        assert (units <= np.maximum(high, was)).all()
        assert (units >= np.minimum(low, was)).all()
        sizes = moved


@checked
@given(st.lists(st.integers(0, 500), min_size=1, max_size=12), totals, granules)
def test_the_same_shares_of_another_batch_sum_to_that_batch(
    sizes: list[int], total: int, granule: int
) -> None:
    plan = {WorkerId(f"w{i}"): size for i, size in enumerate(sizes)}
    other = scaled(plan, total, granule)
    assert list(other) == list(plan)
    assert sum(other.values()) == total
    if any(sizes):
        assert not any(other[w] for w, size in plan.items() if not size)


def best_by_trying(times: LinearTimes, total: int, limits: Limits) -> float:
    """The earliest finish of all ways to share a small batch within the limits."""
    low, high = limits.units(total)
    every = itertools.product(*(range(a, b + 1) for a, b in zip(low, high, strict=True)))
    return min(
        float(times.time_s(np.array(sizes, dtype=np.float64)).max())
        for sizes in every
        if sum(sizes) == total
    )


positive = st.floats(0.01, 10.0)


@checked
@given(
    st.lists(st.tuples(positive, st.floats(0, 5.0), st.integers(0, 5)), min_size=2, max_size=4),
    st.integers(1, 9),
    st.booleans(),
    st.data(),
)
def test_equal_finish_finds_the_earliest_finish_there_is(
    lines: list[tuple[float, float, int]], total: int, flat: bool, data: st.DataObject
) -> None:
    workers = len(lines)
    low = np.array(data.draw(st.lists(st.integers(1, 2), min_size=workers, max_size=workers)))
    high = low + np.array(
        data.draw(st.lists(st.integers(0, 9), min_size=workers, max_size=workers))
    )
    if not low.sum() <= total <= high.sum():
        return
    per, fixed, knee = np.array(lines).T
    times = LinearTimes.of(per, fixed, knee if flat else 0.0)
    limits = Limits.of(workers, minimum=low, maximum=high)
    for model in (times, AnyTimes(times.time_s)):
        sizes = equal_finish(model, total, limits).samples
        assert (sizes >= low).all()
        assert (sizes <= high).all()
        took = float(times.time_s(sizes.astype(np.float64)).max())
        assert took <= best_by_trying(times, total, limits) * (1 + 1e-9)


@checked
@given(
    st.lists(st.tuples(positive, st.floats(0, 20.0)), min_size=2, max_size=4),
    st.integers(1, 9),
)
def test_leaving_workers_out_never_makes_the_iteration_longer(
    lines: list[tuple[float, float]], total: int
) -> None:
    per, fixed = np.array(lines).T
    times, limits = LinearTimes.of(per, fixed), Limits.of(len(lines))

    def finish(without: np.ndarray) -> float:
        sizes = equal_finish(times, total, limits.without(without)).samples
        return float(times.time_s(sizes.astype(np.float64)).max())

    chosen = finish(~worth_using(times, total, limits))
    for out in itertools.product([False, True], repeat=len(lines)):
        if not all(out):
            assert chosen <= finish(np.array(out)) * (1 + 1e-9)


def test_sizes_are_in_proportion_to_speeds() -> None:
    sizes = proportional(np.array([1.0, 2.0, 4.0, 1.0]), 800, Limits.of(4)).samples
    assert sizes.tolist() == [100, 200, 400, 100]


def test_a_speed_of_nearly_nothing_still_gets_one_sample() -> None:
    sizes = proportional(np.array([1.0, 1.0, 1.0, 0.001]), 8, Limits.of(4)).samples
    assert sizes.tolist() == [3, 2, 2, 1]


def test_more_workers_than_samples_gives_the_samples_to_the_fastest() -> None:
    sizes = proportional(np.array([1.0, 5.0, 3.0, 4.0]), 2, Limits.of(4)).samples
    assert sizes.tolist() == [0, 1, 0, 1]


def test_a_most_that_cannot_hold_the_batch_is_exceeded_and_that_is_said() -> None:
    sizes = proportional(np.array([1.0, 1.0]), 30, Limits.of(2, maximum=10))
    assert sizes.samples.tolist() == [15, 15]
    assert sizes.exceeded


def test_samples_beyond_a_workers_memory_go_to_the_others() -> None:
    sizes = proportional(
        np.array([8.0, 1.0, 1.0]), 100, Limits.of(3, maximum=np.array([40, 99, 99]))
    )
    assert sizes.samples.tolist() == [40, 30, 30]
    assert not sizes.exceeded


def test_the_granule_that_the_end_of_the_batch_cuts_short_is_the_last_workers() -> None:
    sizes = even(29, Limits.of(3, granule=4)).samples
    assert sizes.tolist() == [12, 12, 5] or sizes.tolist() == [12, 8, 9]
    assert sum(sizes) == 29


def test_equal_finish_shares_a_flat_part_alike() -> None:
    # Two accelerators that take 1 s for anything up to 64 samples, and a batch that both hold in that time.
    times = LinearTimes.of(np.array([1 / 64, 1 / 64]), knee=np.array([64.0, 64.0]))
    assert equal_finish(times, 80, Limits.of(2)).samples.tolist() == [40, 40]


def test_equal_finish_gives_less_to_a_worker_behind_a_slow_link() -> None:
    times = LinearTimes.of(np.array([0.01, 0.01]), fixed_s=np.array([0.1, 0.5]))
    assert equal_finish(times, 100, Limits.of(2)).samples.tolist() == [70, 30]


def test_a_machine_that_would_make_the_iteration_longer_is_left_out() -> None:
    times = LinearTimes.of(np.array([0.001, 0.001, 5.0]))
    assert worth_using(times, 100, Limits.of(3)).tolist() == [True, True, False]
    # Not when the others cannot hold the batch without it.
    tight = Limits.of(3, maximum=np.array([40, 40, 100]))
    assert worth_using(times, 100, tight).all()


def test_nobody_to_take_a_batch_is_an_error_and_nothing_to_take_is_not() -> None:
    with pytest.raises(ValueError, match="no worker"):
        proportional(np.zeros(0), 5, Limits.of(0))
    with pytest.raises(ValueError, match="batch of -1"):
        proportional(np.ones(2), -1, Limits.of(2))
    with pytest.raises(ValueError, match="granule"):
        Limits.of(2, granule=0)
    assert proportional(np.zeros(0), 0, Limits.of(0)).samples.tolist() == []
    assert proportional(np.ones(2), 0, Limits.of(2)).samples.tolist() == [0, 0]


@checked
@given(st.lists(st.integers(1, 1000), min_size=1, max_size=20), st.integers(0, 10_000))
def test_apportioning_is_off_from_the_exact_share_by_less_than_one(
    weights: list[int], total: int
) -> None:
    w = np.array(weights, dtype=np.float64)
    given = apportion(w, total, np.zeros(len(w), np.int64), np.full(len(w), total))
    assert np.abs(given - total * w / w.sum()).max() < 1 + 1e-6


def test_steps_find_equal_times_and_then_stay() -> None:
    cost = np.array([1.0, 1.0, 2.0, 4.0])
    steps, limits = LeaderStraggler(), Limits.of(4)
    steps.arrange(np.full(4, -1))
    sizes = even(1100, limits).samples
    moves = []
    for _ in range(120):
        steps.observe(sizes * cost)
        after = steps.move(sizes, limits)
        moves.append(not np.array_equal(after, sizes))
        sizes = after
    times = sizes * cost
    assert times.max() / times.min() < 1.06
    assert not any(moves[-30:])


def test_a_step_that_went_too_far_is_halved_and_the_window_grows() -> None:
    steps, limits = LeaderStraggler(), Limits.of(2)
    steps.arrange(np.full(2, -1))
    sizes = even(100, limits).samples
    moved, windows = [], []
    for turn in range(40):
        steps.observe(np.array([1.0, 1.2]) if turn % 2 else np.array([1.2, 1.0]))
        after = steps.move(sizes, limits)
        if not np.array_equal(after, sizes):
            moved.append(abs(int(after[0] - sizes[0])))
            windows.append(steps.window)
        sizes = after
    assert moved[0] == 12
    assert moved[1] == 6
    assert windows[1] > windows[0]
    assert len(moved) < 6  # averaged over two iterations both are the same


def test_steps_never_go_beyond_a_workers_memory() -> None:
    limits = Limits.of(2, maximum=np.array([60, 200]))
    steps = LeaderStraggler()
    steps.arrange(np.full(2, -1))
    sizes = even(100, limits).samples
    for _ in range(30):
        steps.observe(sizes * np.array([1.0, 9.0]))
        sizes = steps.move(sizes, limits)
    assert sizes.tolist() == [60, 40]
