"""Deadlines: who would miss one counts more, and who has is told of, once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduler_crowd import Crowd
from scheduler_desk import reborn

from elps.contracts.job import JobDocument
from elps.contracts.state import JobRecord, JobState, Progress
from elps.scheduler.core.deadlines import WELL, is_late
from elps.scheduler.core.events import Moment
from elps.scheduler.core.gain import time_s


def record(deadline_s: float | None, own: float = 2.0) -> JobRecord:
    document = JobDocument(task="linear", iterations=100, deadline_s=deadline_s, weight=own)
    return JobRecord(
        id="j",  # type: ignore[arg-type]
        document=document,
        state=JobState.RUNNING,
        reason="",
        seq=1,
        submitted_at=1000.0,
        changed_at=1000.0,
    )


@given(st.floats(1, 1e4), st.floats(0, 1e4), st.floats(0, 1e4), st.integers(2, 8))
def test_a_job_is_late_when_it_would_be_and_stays_so_until_it_is_well_in_time(
    deadline_s: float, left: float, after_s: float, workers: int
) -> None:
    now = Moment(0.0, 1000.0 + after_s)
    rates = ((workers - 1, 3.0), (workers, 4.0))
    due = deadline_s - after_s
    takes, fewer = left * time_s(rates, workers), left * time_s(rates, workers - 1)
    if any(x == pytest.approx(due, rel=1e-3, abs=1e-3) for x in (0, takes, fewer / WELL)):
        return
    assert is_late(record(deadline_s), rates, left, workers, False, now) == (0 < due < takes)
    was = is_late(record(deadline_s), rates, left, workers, True, now)
    assert was == (due > 0 and fewer > WELL * due)


def test_what_is_not_known_and_what_is_over_changes_nothing() -> None:
    now, rates = Moment(0.0, 1050.0), ((1, 1.0),)
    for was in (False, True):
        assert not is_late(record(None), rates, 1e9, 1, was, now)
        assert not is_late(record(100.0), (), 1e9, 1, was, now)
        assert not is_late(record(100.0), rates, None, 1, was, now)
        assert not is_late(record(100.0), rates, 1e9, 0, was, now)
        assert not is_late(record(10.0), rates, 1e9, 1, was, now), "it is too late anyway"
    assert is_late(record(100.0), rates, 60.0, 1, False, now)


def test_an_overdue_job_goes_on_and_is_told_of_once() -> None:
    crowd = Crowd(1)
    crowd.submit("j", deadline_s=10.0)
    crowd.go(5)
    assert "overdue" not in crowd.events()
    assert "it should have ended in" in "\n".join(
        line for line in _explained(crowd) if "should" in line
    )
    crowd.go(10)
    assert crowd.events().count("overdue") == 1
    assert crowd.state("j") is JobState.RUNNING
    again = reborn(crowd)
    again.wait(3)
    assert "overdue" not in again.events()


def _explained(crowd: Crowd) -> list[str]:
    from elps.scheduler.core.explaining import explain

    return explain(crowd.core.book, crowd.core.policy, crowd.record("j").id, crowd.now)


def test_of_two_equal_jobs_the_one_that_would_be_late_gets_more() -> None:
    crowd = Crowd(6)
    crowd.submit("calm", workers={"min": 1, "max": 6}, iterations=10_000)
    crowd.submit("late", workers={"min": 1, "max": 6}, iterations=10_000, deadline_s=600.0)
    for n in range(60):
        for job in ("calm", "late"):
            crowd.done[job] = Progress(
                iteration=10 * n, metrics_iteration=10 * n or None, metrics={"loss": 1.0}
            )
        crowd.go(1)
    assert crowd.sizes()["late"] > crowd.sizes()["calm"]
