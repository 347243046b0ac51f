"""What a lease costs by itself: how it is measured, how seldom it is tried, and what tail leases make of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from emulated import lend, pattern, train
from hypothesis import example, given, settings
from hypothesis import strategies as st

from elps.balance import Extra, LeaseCost, Policy
from elps.balance.arrays import FloatArray
from elps.balance.leasing import ENOUGH, PATIENCE, TRIALS_COST

checked = settings(deadline=None, max_examples=40)
wild = st.floats(allow_nan=True, allow_infinity=True)
QUICK = Policy(predictor="average")


def tried(
    fixed: float, factors: list[float], *, jitter: float = 0.0, iterations: int = 5, seed: int = 0
) -> LeaseCost:
    """After trials on workers so many times slower; a lease takes as long as `fixed` samples, whatever its size."""
    rng, cost, total = np.random.default_rng(seed), LeaseCost(), 100 * len(factors)
    sizes = np.full(len(factors), 100)
    for _ in range(iterations):
        each = 1e-3 * np.array(factors) * np.exp(rng.normal(0, jitter, len(factors)))
        lent = lend(each, sizes, total, 1, extra_s=0.002, fixed_s=fixed * each, least=1)
        cost.observe(lent.samples.astype(float), lent.compute_s, lent.extras)
    return cost


@checked
@given(st.floats(0, 1000), st.lists(st.floats(0.1, 10), min_size=2, max_size=6))
def test_one_small_lease_more_tells_what_a_lease_costs_however_slow_who_had_it_is(
    fixed: float, factors: list[float]
) -> None:
    cost = tried(fixed, factors)
    assert cost.known
    assert cost.samples == pytest.approx(fixed, rel=1e-6, abs=1e-6)
    assert cost.wait_s == pytest.approx(0.002)


@checked
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 1.0, 20.0]))
def test_machines_that_jitter_by_a_fifth_do_not_blur_it(seed: int, fixed: float) -> None:
    cost = tried(fixed, [1.0] * 8, jitter=0.2, seed=seed)
    assert cost.samples == pytest.approx(fixed, rel=0.01, abs=0.1)


def test_nothing_is_believed_after_one_trial() -> None:
    assert not tried(3.0, [1.0, 1.0], iterations=ENOUGH - 1).known
    assert not LeaseCost().known


@checked
@example([(1.0, 1.0, (2.2250738585072014e-308, 0.0, 0.0, 2.0))], 2)
@example([(1.0, 1.0, (5e-324, 5e-324, 0.0, 2.0))], 2)
@example([(1.7e308, 1.0, (1.0, 0.0, 0.99, 1.0))], 2)
@example([(1.0, 1.0, (1.0, float("nan"), 0.0, 1.0))], 2)
@given(
    st.lists(st.tuples(wild, wild, st.tuples(wild, wild, wild, wild)), min_size=1, max_size=4),
    st.integers(1, 6),
)
def test_whatever_is_reported_the_cost_is_a_number(
    rows: list[tuple[float, float, tuple[float, float, float, float]]], times: int
) -> None:
    cost = LeaseCost()
    samples, compute_s = np.array([r[0] for r in rows]), np.array([r[1] for r in rows])
    extras = {i: Extra(*row[2]) for i, row in enumerate(rows)}
    with np.errstate(all="ignore"):
        for _ in range(times):
            cost.observe(samples, compute_s, extras)
            cost.as_one(samples, compute_s, extras)
    assert 0 <= cost.samples < float("inf")
    assert 0 <= cost.wait_s < float("inf")


def test_times_of_several_leases_count_as_those_of_one() -> None:
    cost, each = tried(30.0, [1.0, 2.0]), np.array([1e-3, 2e-3])
    lent = lend(each, np.array([200, 100]), 300, 60, extra_s=0, fixed_s=30 * each, least=5)
    assert lent.extras
    one = cost.as_one(lent.samples.astype(float), lent.compute_s, lent.extras)
    assert one == pytest.approx((lent.samples + 30) * each)


def trials(cost: LeaseCost, iterations: int, iteration_s: float, answered: float | None) -> int:
    """How many are begun; each is answered in the next iteration, by so many samples' worth, or none is."""
    begun = 0
    for _ in range(iterations):
        cost.passed(iteration_s)
        if cost.trial_due(1e-3):
            begun += 1
            if answered is not None:
                extra = Extra(1, 1, (answered + 1) * 1e-3, 0.001)
                first_s = (100 + answered) * 1e-3
                cost.observe(np.array([101.0]), np.array([first_s + extra.compute_s]), {0: extra})
    return begun


@checked
@given(st.floats(0.001, 1.0), st.floats(0, 500))
def test_trials_take_a_small_part_of_the_time(iteration_s: float, fixed: float) -> None:
    cost = LeaseCost()
    assert trials(cost, 12, iteration_s, fixed) >= ENOUGH
    assert cost.known
    more = trials(cost, 500, iteration_s, fixed)
    assert more <= 500 // PATIENCE
    assert more * (fixed * 1e-3 + 0.001) <= TRIALS_COST * 501 * iteration_s + fixed * 1e-3 + 0.001


def test_trials_that_nobody_answers_become_rare() -> None:
    assert trials(LeaseCost(), 1000, 0.01, None) <= 12


def paired(cost: FloatArray, fixed_samples: float, extra_s: float) -> tuple[float, int, int]:
    """Time with tails over time without, iterations with a tail and trials."""
    total = 100 * cost.shape[1]
    took = {
        may: train(
            cost,
            total,
            replace(QUICK, may_tail=may),
            transfer_s=2 * extra_s,
            fixed_samples=fixed_samples,
        )
        for may in (True, False)
    }
    with_s, without_s = (float(took[may].seconds.sum()) for may in (True, False))
    return with_s / without_s, took[True].tails, took[True].trials


@settings(deadline=None, max_examples=10)
@given(
    st.integers(0, 1000),
    st.sampled_from([0.0, 0.05, 0.2]),
    st.sampled_from([0.0, 3.0, 30.0, 1000.0]),
    st.sampled_from([0.0005, 0.01]),
)
def test_a_job_is_never_made_slower_by_a_tenth_whatever_a_lease_costs(
    seed: int, jitter: float, fixed_samples: float, extra_s: float
) -> None:
    rng = np.random.default_rng(seed)
    cost = 1e-3 * np.exp(rng.normal(0, jitter, (60, 4)))
    ratio, _, tries = paired(cost, fixed_samples, extra_s)
    assert ratio < 1.1
    assert tries <= 12


def test_speeds_that_jump_bring_tails_where_a_lease_is_cheap_and_not_where_it_is_dear() -> None:
    cost = 1e-3 * np.exp(np.random.default_rng(4).normal(0, 0.2, (80, 6)))
    ratio, tails, _ = paired(cost, 0.0, 0.0005)
    assert tails > 40
    assert ratio < 0.97
    ratio, tails, tries = paired(cost, 200.0, 0.0005)
    assert (tails, tries >= ENOUGH) == (0, True)
    assert ratio < 1.05


def test_even_machines_have_neither_tails_nor_trials() -> None:
    assert paired(pattern("even", 8, 80, noise=0.01), 5.0, 0.0005)[1:] == (0, 0)
