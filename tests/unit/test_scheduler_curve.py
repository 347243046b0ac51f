"""What a job's losses so far say of the coming ones."""

from __future__ import annotations

import math
import random
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elps.scheduler.core.curve import FEWEST, KEPT, LEAST, MOST, LossCurve, standings


def curve(*losses: Any, every: int = 10) -> LossCurve:
    found = LossCurve()
    for n, loss in enumerate(losses):
        found.seen(n * every, loss)
    return found


def falling(
    count: int, a: float = 50.0, b: float = 20.0, c: float = 0.3, every: int = 10
) -> list[float]:
    return [a / (n * every + b) + c for n in range(count)]


def test_the_curve_finds_what_it_was_made_of() -> None:
    fit = curve(*falling(25)).fit
    assert fit is not None
    assert fit.at(1000) == pytest.approx(50 / 1020 + 0.3, abs=0.03)
    assert fit.sure > 0.99
    done, whole = 20 / 260, 1.0
    assert fit.promise(1e9) == pytest.approx(done / whole, rel=0.25), "what is left to gain"


def test_a_job_promises_less_the_farther_it_is_and_more_the_longer_it_may_train() -> None:
    promises = [
        found.promise(100) for n in (8, 16, 60, 200, 900) if (found := curve(*falling(n)).fit)
    ]
    assert promises == sorted(promises, reverse=True)
    assert len(promises) == 5
    assert promises[0] > 20 * promises[-1]
    fit = curve(*falling(30)).fit
    assert fit is not None
    assert 0 == fit.promise(0) < fit.promise(10) < fit.promise(1000) <= 1


def test_noise_hides_no_fall_and_makes_none() -> None:
    chance = random.Random(3)
    noisy = [loss + chance.gauss(0, 0.1) for loss in falling(80)]
    flat = [1.0 + chance.gauss(0, 0.1) for _ in range(80)]
    falls, rests = curve(*noisy).fit, curve(*flat).fit
    assert falls is not None
    assert rests is not None
    assert falls.promise(1000) > 5 * rests.promise(1000)


@pytest.mark.parametrize(
    "losses",
    [
        [1.0] * 40,
        [1.0 + n for n in range(40)],
        [-1e300, *[1.0] * 40],
        [0.0] * 40,
    ],
)
def test_what_is_flat_or_rises_promises_nothing(losses: list[float]) -> None:
    fit = curve(*losses).fit
    assert fit is not None
    assert fit.promise(1e6) < 0.1


@pytest.mark.parametrize("loss", [None, math.nan, math.inf, -1e200])
def test_one_whose_losses_have_ended_keeps_no_promise(loss: Any) -> None:
    found = curve(*falling(20), loss)
    assert found.fit is not None, "one may be missing"
    for n in range(21, 60):
        found.seen(n * 10, loss)
    assert found.fit is None
    found.seen(600, 0.4)
    assert found.fit is not None


def test_iterations_of_many_digits_are_no_fault() -> None:
    found = LossCurve()
    for n, loss in enumerate(falling(40)):
        found.seen(2**62 + n * 600, loss)
    assert found.fit is None or found.fit.promise(1000) >= 0


@pytest.mark.parametrize("loss", [None, math.nan, math.inf, -math.inf, "0.1", True, 1e300, 10**400])
def test_what_is_no_number_is_passed_over(loss: Any) -> None:
    assert curve(*[loss] * 100).fit is None
    mixed = [x for pair in zip(falling(20, every=20), [loss] * 20, strict=True) for x in pair]
    assert curve(*mixed).fit == curve(*falling(20, every=20), every=20).fit


def test_a_job_that_went_back_is_measured_from_there() -> None:
    gone_back = curve(*falling(20))
    for n in range(5, 20):
        gone_back.seen(n * 10, falling(20)[n])
    straight = curve(*falling(20)).fit
    assert gone_back.fit is not None
    assert straight is not None
    assert gone_back.fit.promise(100) == pytest.approx(straight.promise(100), rel=0.05)


losses = st.lists(
    st.tuples(
        st.integers(0, 10**6) | st.integers(2**52, 2**53) | st.integers(2**62, 2**62 + 10**4),
        st.floats(allow_nan=True, allow_infinity=True) | st.none() | st.text(max_size=3),
    ),
    max_size=120,
)


@given(losses)
@settings(max_examples=300, deadline=None)
def test_whatever_is_seen_a_promise_is_a_part_and_what_is_kept_is_bounded(seen: Any) -> None:
    found = LossCurve()
    for iteration, loss in seen:
        found.seen(iteration, loss)
        assert len(found._spans) <= KEPT
    if (fit := found.fit) is not None:
        for iterations in (0.0, 1.0, 1e3, 1e12):
            assert 0 <= fit.promise(iterations) <= 1 + 1e-9
    again = LossCurve()
    for iteration, loss in seen:
        again.seen(iteration, loss)
    assert again.fit == found.fit


promises = st.lists(st.none() | st.floats(0.0, 1.0), max_size=12)


@given(promises)
def test_standings_are_bounded_in_order_and_the_unknown_count_as_the_median(
    found: list[float | None],
) -> None:
    counts = standings(found)
    known = sorted((p, c) for p, c in zip(found, counts, strict=True) if p is not None)
    assert all(LEAST <= count <= MOST for count in counts)
    assert all(a[1] <= b[1] for a, b in pairwise(known))
    assert all(c == 1 for p, c in zip(found, counts, strict=True) if p is None)
    if len(known) == 1:
        assert known[0][1] == 1, "there is nothing to compare it with"


def test_too_few_losses_are_no_curve() -> None:
    assert curve(*falling(FEWEST - 1)).fit is None
    assert curve(*falling(FEWEST)).fit is not None
