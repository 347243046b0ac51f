"""What a change of size has cost a job, and what is allowed for it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elps.scheduler.core.costs import (
    ASSUMED_S,
    GROWING,
    IDLE_S,
    LEAST_S,
    MOST_S,
    MOVING,
    ChangeCost,
    rests_s,
    settles_s,
)
from elps.scheduler.core.gain import Speeds


class Course:
    """A job whose every moment is known, looked at once a second; what changes does so between two looks."""

    def __init__(self) -> None:
        self.speeds = Speeds()
        self.at, self.done = 0.5, 0.0

    def train(self, seconds: int, rate: float, workers: int, lost_s: float = 0.0) -> None:
        """At a rate; at the beginning it stands still for so long."""
        for half in range(2 * seconds):
            self.at += 0.5
            self.done += rate * max(0.0, 0.5 - max(0.0, lost_s - half / 2))
            if self.at % 1 == 0:
                self.speeds.seen(self.at, math.floor(self.done + 1e-9), workers)


@pytest.mark.parametrize("lost_s", [0.0, 0.4, 3.0])
@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 1)])
def test_a_change_costs_what_it_made_the_job_stand_still(
    lost_s: float, before: int, after: int
) -> None:
    course = Course()
    for _ in range(20):
        course.train(8, 50.0 * before, before)
        course.speeds.resized()
        course.train(8, 50.0 * after, after, lost_s)
        course.train(8, 50.0 * before, before)  # nobody decided that
    assert course.speeds.cost.times == 20
    assert course.speeds.cost.seconds == pytest.approx(max(lost_s, LEAST_S), abs=0.06)


def test_what_nobody_decided_is_no_measure_of_what_changes_cost() -> None:
    course = Course()
    course.train(8, 50.0, 2)
    course.train(8, 25.0, 1, lost_s=5.0)
    assert course.speeds.cost.times == 0
    assert course.speeds.cost.seconds == ASSUMED_S


def test_an_order_whose_change_was_not_measured_is_not_held_against_a_later_one() -> None:
    course = Course()
    course.train(1, 50.0, 2)
    course.speeds.resized()  # its rate is not known yet
    course.train(8, 75.0, 3)
    course.train(8, 50.0, 2, lost_s=5.0)  # a worker is lost
    course.train(8, 75.0, 3, lost_s=5.0)
    assert course.speeds.cost.times == 0


def test_a_change_upon_a_change_and_one_with_a_rollback_in_it_are_not_measured() -> None:
    course = Course()
    course.train(8, 50.0, 2)
    course.speeds.resized()
    course.train(1, 75.0, 3)
    course.train(8, 100.0, 4)
    assert course.speeds.cost.times == 0
    course.speeds.resized()
    course.train(2, 75.0, 3)
    course.done -= 100
    course.train(8, 75.0, 3)
    assert course.speeds.cost.times == 0


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=30))
def test_a_cost_stays_within_bounds_whatever_is_measured(measured: list[float]) -> None:
    cost = ChangeCost()
    for seconds in measured:
        cost.learn(seconds)
        assert LEAST_S <= cost.seconds <= MOST_S
    assert cost.times == sum(math.isfinite(seconds) for seconds in measured)


@given(st.floats(LEAST_S, MOST_S))
def test_changes_take_no_more_of_a_jobs_time_than_they_may(cost_s: float) -> None:
    assert cost_s / rests_s(cost_s) == pytest.approx(MOVING)
    assert settles_s(cost_s) == pytest.approx(min(IDLE_S, cost_s / GROWING))
    assert settles_s(cost_s) < rests_s(cost_s)
