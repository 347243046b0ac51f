"""What ends a job early: a target, or a metric that gets no better any more."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from protocol_game import A, Game

from elps.psshard.core import commands as do
from elps.psshard.core.rules import Rules
from elps.psshard.core.stopping import Stopping, Trend
from elps.stream.geometry import Geometry


def watching(
    patience: int, *, rises: bool = True, delta: float = 0.0, target: float | None = None
) -> Rules:
    return Rules(
        Geometry(8, 8),
        100,
        target_metric="m",
        target=target,
        target_is_maximum=rises,
        patience=patience,
        min_delta=delta,
    )


def ends_at(rules: Rules, values: list[float]) -> int | None:
    stopping = Stopping(rules)
    for at, value in enumerate(values):
        if stopping.evaluated(at, {"m": value}):
            return at
    return None


@pytest.mark.parametrize(
    ("rules", "values", "at"),
    [
        (watching(2), [1, 2, 3, 3, 3, 9], 4),
        (watching(2), [1, 2, 1, 3, 1, 4, 1], None),
        (watching(2, rises=False), [3, 2, 2.5, 1.9, 5, 5], 5),
        (watching(2, delta=0.5), [1, 1.4, 1.5, 1.6], 2),
        (watching(2, delta=0.5), [1, 1.4, 1.6, 2.0, 2.05], 4),
        (watching(1, rises=False, delta=0.1), [1.0, 0.95], 1),
        (watching(3), [math.nan, 1, math.inf, math.nan, 0], 4),
        (watching(2), [math.nan, math.nan], 1),
        (watching(0), [1] * 20, None),
        (watching(3, target=5), [1, 5, 1], 1),
    ],
)
def test_a_job_ends_after_so_many_evaluations_without_a_better_one(
    rules: Rules, values: list[float], at: int | None
) -> None:
    assert ends_at(rules, values) == at


def test_the_reason_tells_the_best_and_how_long_it_has_been() -> None:
    stopping = Stopping(watching(2))
    for at, value in enumerate([0.5, 0.7, 0.6, 0.7]):
        reason = stopping.evaluated(10 * at, {"m": value, "other": 1.0})
    assert reason == "m has been no better than 0.7 at iteration 10 for 2 evaluations"
    never = Stopping(watching(1)).evaluated(7, {"other": 1.0})
    assert never == "m was no finite number in 1 evaluations"


@given(
    values=st.lists(st.floats(-10, 10), max_size=12),
    patience=st.integers(1, 4),
    cut=st.integers(0, 12),
    rises=st.booleans(),
    delta=st.sampled_from([0.0, 0.5]),
)
def test_whoever_goes_on_from_the_trend_decides_the_same(
    values: list[float], patience: int, cut: int, rises: bool, delta: float
) -> None:
    rules = watching(patience, rises=rises, delta=delta)
    whole, first = Stopping(rules), Stopping(rules)
    for at, value in enumerate(values):
        if at == cut:
            first = Stopping(rules, Trend(*first.trend))
        metrics = {"m": value}
        assert whole.evaluated(at, metrics) == first.evaluated(at, metrics)
        assert whole.verdict(metrics) == first.verdict(metrics)


def test_the_clock_stops_at_the_next_boundary_and_tells_the_trend() -> None:
    g = Game(A, evaluate_every=1, test_samples=2, target_metric="m", target=None, patience=1)
    for version in (1, 2):
        g.compute(A)
        g.held(version)
        g.evaluate(A)  # the metric is 1 each time
    assert g.of(do.Evaluated)[-1].trend == Trend(1.0, 1, 1)
    assert g.clock.end == 2
    reason = "m has been no better than 1 at iteration 1 for 1 evaluations"
    assert g("checkpoint_written", 2)[-1] == do.Finish(2, reason)


def test_a_leader_that_inherits_a_metric_without_hope_stops() -> None:
    g = Game(A, evaluate_every=1, test_samples=2, target_metric="m", target=None, patience=2)
    g.clock._stopping.trend = Trend(1.0, 1, 2)
    g.clock.go_on({"m": None})
    assert g.clock.end < 10
