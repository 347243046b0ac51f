"""What is measured of a job's speed, what is made of it, and when a job has given its early feedback."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elps.contracts.codec import parse_job
from elps.contracts.ids import JobId
from elps.contracts.state import JobRecord, JobState, Progress
from elps.scheduler.core.feedback import given as feedback_of
from elps.scheduler.core.gain import Speeds, gain, time_s


def test_speeds_are_measured_by_number_of_workers() -> None:
    speeds = Speeds()
    for at in range(10):
        speeds.seen(float(at), at * 10, 2)
    for at in range(10, 20):
        speeds.seen(float(at), 90 + (at - 9) * 20, 4)
    assert speeds.rates == ((2, pytest.approx(10.0)), (4, pytest.approx(20.0)))
    speeds.seen(20.0, 5, 4)  # gone back
    speeds.seen(21.0, 25, 4)
    assert speeds.rates[1][1] == pytest.approx(20.0)
    speeds.seen(22.0, 25, 0)
    assert len(speeds.rates) == 2


def test_the_first_stretch_with_other_workers_is_no_measure_and_old_ones_fade() -> None:
    speeds = Speeds()
    speeds.seen(0.0, 0, 1)
    speeds.seen(30.0, 1, 1)  # compilation
    assert speeds.rates == ()
    speeds.seen(31.0, 3, 1)
    assert speeds.rates == ((1, 2.0),)
    for at in range(40, 400):
        speeds.seen(float(at), at, 2)
    assert [n for n, _ in speeds.rates] == [2]


@given(st.lists(st.tuples(st.integers(0, 9), st.floats(allow_nan=True)), max_size=5))
def test_a_gain_is_a_number_whatever_was_measured(rates: list[tuple[int, float]]) -> None:
    found = gain(rates, 1, 2)
    assert math.isfinite(found)
    assert 0 <= found <= math.log(2) + 1e-9


def test_the_model_finds_what_it_was_made_of() -> None:
    rates = [(n, 1 / (0.2 + 0.8 / n)) for n in (1, 2, 4)]
    assert time_s(rates, 8) == pytest.approx(0.3)
    assert gain(rates, 4, 8) == pytest.approx(math.log(0.4 / 0.3))


@pytest.mark.parametrize(
    ("wish", "progress", "found"),
    [
        ({}, {"iteration": 9}, ""),
        ({}, {"metrics_iteration": 4, "metrics": {"loss": None}}, "evaluated at iteration 4"),
        ({}, {"passes": 1.0}, "a pass over the data"),
        ({"iterations": 5}, {"iteration": 4, "metrics_iteration": 4}, ""),
        ({"iterations": 5}, {"iteration": 5}, "5 iterations"),
        ({"seconds": 2.0}, {"training_s": 2.5}, "2.5 s of training"),
        ({"passes": 0.5, "seconds": 99.0}, {"passes": 0.5}, "0.5 passes"),
    ],
)
def test_feedback_is_what_the_job_says_it_is(
    wish: dict[str, Any], progress: dict[str, Any], found: str
) -> None:
    document = parse_job({"id": "j", "task": "linear", "iterations": 9, "feedback": wish})
    record = JobRecord(
        id=JobId("j"), document=document, state=JobState.RUNNING, reason="", seq=1,
        submitted_at=0.0, changed_at=0.0, progress=Progress(**progress),
    )  # fmt: skip
    assert feedback_of(record) == found


def test_powers_that_differ_by_rounding_alone_are_one() -> None:
    one, other = 255.99999999999994, 255.99999999999997
    assert 1 / one == 1 / other
    assert time_s(((one, 1.0), (other, 2.0)), one) == pytest.approx(0.75)
    near = ((4.0, 2.0), (4.0 + 1e-12, 1.0))  # of two that are as good as one nothing follows
    assert time_s(near, 8) < time_s(near, 4) < time_s(near, 2)


@given(
    st.lists(
        st.tuples(st.floats(1e-3, 1e4), st.floats(allow_nan=True, allow_infinity=True)), max_size=5
    ),
    st.floats(1e-15, 1e-3),
    st.floats(0.01, 100.0),
)
def test_a_fit_is_of_numbers_above_0_whatever_was_measured(
    rates: list[tuple[float, float]], apart: float, power: float
) -> None:
    found = sorted([*rates, *((n * (1 + apart), rate / 2) for n, rate in rates)])
    seconds = time_s(tuple(found), power)
    assert 0 < seconds < math.inf
