"""Rules by which a job is killed: what counts as better, who is compared with whom; nonsense promotes nobody."""

from __future__ import annotations

import math
import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduler_desk import Desk, reborn

from elps.contracts.codec import parse_job
from elps.contracts.errors import InvalidDocument
from elps.contracts.ids import JobId
from elps.contracts.job import Kill
from elps.contracts.state import JobState, Judged, Progress
from elps.scheduler.core.events import PublishEvent
from elps.scheduler.core.judging import BEST_KEPT, after, best_at, verdict

values = st.none() | st.floats() | st.floats(-5, 5)
NONSENSE = [None, math.nan, math.inf, -math.inf]


def course(rules: Kill, *told: float | None) -> Judged:
    """Evaluations every 10 iterations."""
    judged = Judged()
    for n, value in enumerate(told):
        judged = after(judged, rules, 10 * n, value)
    return judged


def why(rules: Kill, told: list[float | None], *others: list[float | None]) -> str:
    return verdict(rules, course(rules, *told), told[-1], [course(rules, *o) for o in others])


@given(st.lists(values, max_size=300), st.sampled_from(["min", "max"]))
def test_the_best_so_far_is_a_finite_number_that_only_gets_better(
    told: list[float | None], mode: Any
) -> None:
    judged = course(Kill(mode=mode), *told)
    finite = [v for v in told if v is not None and math.isfinite(v)]
    best = [b.value for b in judged.best]
    assert best == sorted(set(best), reverse=mode == "min")
    assert len(best) <= BEST_KEPT
    if finite:
        assert best[-1] == (max if mode == "max" else min)(finite)
        assert (
            judged.without_better
            == next(n for n, value in enumerate(reversed(told)) if value == best[-1])
            or told.count(best[-1]) > 1
        )
    else:
        assert judged.without_better == len(told)


@given(st.lists(values, min_size=1, max_size=60), st.integers(1, 8), st.floats(0, 1))
def test_patience_is_counted_in_evaluations_without_a_better_value(
    told: list[float | None], patience: int, delta: float
) -> None:
    rules = Kill(patience=patience, min_delta=delta)
    best, count = math.inf, 0
    for value in told:
        better = (
            value is not None
            and math.isfinite(value)
            and (best == math.inf or best - value > delta)
        )
        best, count = (value, 0) if better else (best, count + 1)  # type: ignore[assignment]
    assert bool(why(rules, told)) == (count >= patience)


@given(
    st.lists(values, min_size=1, max_size=12),
    st.lists(st.lists(values, min_size=1, max_size=12), max_size=7),
    st.integers(1, 5),
)
def test_a_job_is_compared_with_the_best_that_others_had_at_the_same_iteration(
    told: list[float | None], others: list[list[float | None]], least: int
) -> None:
    def best(course: list[float | None]) -> float | None:
        finite = [v for v in course[: len(told)] if v is not None and math.isfinite(v)]
        return min(finite) if finite else None

    came = [b for o in others if len(o) >= len(told) and (b := best(o)) is not None]
    own = best(told)
    worse = len(came) >= 3 and (own is None or own > statistics.median(came))
    assert bool(why(Kill(below_median=least), told, *others)) == (worse and len(told) >= least)


@pytest.mark.parametrize("value", NONSENSE)
def test_what_is_not_finite_kills_where_that_is_asked_and_never_counts_as_better(
    value: float | None,
) -> None:
    assert "not finite at iteration 10" in why(Kill(not_finite=True), [1.0, value])
    assert why(Kill(not_finite=True), [1.0, 2.0]) == ""
    assert best_at(course(Kill(mode="max"), 1.0, value), 10) == 1.0
    assert why(Kill(below_median=1), [5.0], [value], [value], [value]) == "", "no median of such"


def test_a_group_is_needed_for_its_median() -> None:
    with pytest.raises(InvalidDocument, match="give it one"):
        parse_job({"task": "linear", "iterations": 1, "kill": {"below_median": 3}})


def evaluated(desk: Desk, iteration: int, phase: str = "running", **metrics: Any) -> None:
    progress = Progress(iteration=iteration, metrics=metrics, metrics_iteration=iteration)
    (worker,) = desk.workers()
    desk.shard(jobs=[desk.hosts(phase=phase, ready=[worker], progress=progress)])


def submitted(**rules: Any) -> Desk:
    desk = Desk()
    desk.shard()
    desk.agent()
    desk.submit(kill=rules)
    desk.start()
    return desk


def test_a_job_is_killed_by_its_rule_and_its_record_says_why() -> None:
    desk = submitted(patience=2)
    evaluated(desk, 1, loss=1.0)
    evaluated(desk, 1, loss=1.0)  # a heartbeat tells the same again
    evaluated(desk, 2, loss=1.5)
    desk = reborn(desk)
    evaluated(desk, 3, loss=None)
    assert desk.state() is JobState.KILLED
    assert desk.record().reason == (
        "killed by its own rule: no better loss in 2 evaluations (best 1, now not a finite number)"
    )
    assert desk.core.book.records[JobId("j")].judged.evaluations == 3


@pytest.mark.parametrize(
    ("phase", "iteration"), [("finished", 9), ("running", 9), ("finished", 8), ("failed", 8)]
)
def test_the_last_evaluation_of_a_job_kills_it_no_more_and_counts_for_its_group(
    phase: str, iteration: int
) -> None:
    desk = submitted(patience=1)
    evaluated(desk, 5, loss=1.0)
    evaluated(desk, iteration, phase, loss=1.0)
    assert desk.state().value == phase
    assert (desk.record().judged.iteration, desk.record().judged.evaluations) == (iteration, 2)


def grouped(*kills: dict[str, Any]) -> Desk:
    """Jobs of one group that train, each with its rules."""
    desk = Desk()
    desk.shard(slots=9)
    desk.agent(slots=9)
    for n, kill in enumerate(kills):
        desk.submit(f"j{n}", group="g", kill=kill)
    return desk


def all_evaluated(desk: Desk, iteration: int, **metrics: float) -> None:
    """Each of them, the one submitted last at the end."""
    for job in sorted(desk.core.book.live):
        progress = Progress(iteration=iteration, metrics=metrics, metrics_iteration=iteration)
        hosted = desk.hosts(job, phase="running", ready=list(desk.workers(job)), progress=progress)
        others = [j for j in desk.shards["s1"]["jobs"] if j.job != job]
        desk.shard(jobs=[*others, hosted])
        metrics = {name: value + 1 for name, value in metrics.items()}


def test_a_job_is_compared_with_those_of_its_group_that_look_at_the_same() -> None:
    rules = {"metric": "error", "below_median": 2}
    desk = grouped({"metric": "error"}, {"metric": "error"}, {"metric": "error"}, rules)
    all_evaluated(desk, 1, error=0.1)
    all_evaluated(desk, 2, error=0.1)
    assert desk.state("j3") is JobState.KILLED
    assert "the median of 3 others" in desk.record("j3").reason


def test_who_has_nobody_to_be_compared_with_in_its_group_is_told_so_once() -> None:
    rules = {"metric": "error", "below_median": 2}
    desk = grouped({}, {"metric": "error", "mode": "max"}, {"metric": "error"}, rules)
    for iteration in range(1, 5):
        all_evaluated(desk, iteration, error=0.1, loss=0.1)
    assert desk.state("j3") is JobState.RUNNING
    told = [c.event for c in desk.out if isinstance(c, PublishEvent)]
    (event,) = [e for e in told if e.what == "rules_do_not_apply"]
    assert event.job == "j3"
    assert event.reason == (
        "below_median compares by 'error' and mode 'min', and of the 3 others in group 'g' 1 have these in their "
        "[kill]: it asks for 3"
    )
    assert desk.record("j3").judged.apart, "so it is after a restart"


def test_a_metric_that_is_not_evaluated_judges_nobody_and_is_told() -> None:
    desk = submitted(patience=1, metric="accuracy")
    evaluated(desk, 1, loss=1.0)
    evaluated(desk, 2, loss=1.0)
    assert desk.state() is JobState.RUNNING
    assert desk.events().count("rules_do_not_apply") == 1
