from __future__ import annotations

import random

import msgspec

from elps.cli.progress import JobProgress
from elps.contracts.answers import JobDetail
from elps.contracts.ids import JobId, WorkerId
from elps.contracts.messages import JobEvent
from elps.contracts.state import JobState
from elps.contracts.telemetry import IterationRow, WorkerTiming


def row(
    t: int, *, term: int = 1, loss: float | None = 1.0, duration_s: float = 0.1
) -> IterationRow:
    timing = WorkerTiming(
        worker=WorkerId("j-w1"),
        samples=32,
        compute_s=0.05,
        pull_s=0.01,
        wait_s=0,
        push_s=0.01,
        lease_s=0,
    )
    return IterationRow(
        iteration=t,
        passes=t / 10,
        samples=32,
        skipped=0,
        loss=loss,
        duration_s=duration_s,
        at=1000.0 + t * duration_s,
        term=term,
        plan=1,
        lr=0.1,
        workers=[timing],
    )


def change(state: JobState, at: float, reason: str = "") -> JobEvent:
    return JobEvent(job=JobId("j"), what=state.value, at=at, state=state, reason=reason)


def test_a_change_of_state_is_told_once_with_its_reason() -> None:
    progress = JobProgress("j")
    event = change(JobState.RUNNING, 10.0, "2 workers, 1 shard")
    assert [n.text for n in progress.take_event(event)] == ["running: 2 workers, 1 shard"]
    assert progress.take_event(event) == []


def test_an_older_change_that_comes_late_does_not_turn_back_the_state() -> None:
    progress = JobProgress("j")
    progress.take_event(change(JobState.FINISHED, 20.0, "all done"))
    assert progress.take_event(change(JobState.RUNNING, 10.0)) == []
    assert progress.state is JobState.FINISHED
    assert progress.ended


def test_a_summary_makes_up_for_a_lost_event() -> None:
    progress = JobProgress("j")
    progress.take_event(change(JobState.RUNNING, 10.0))
    job = JobDetail(
        id="j",
        state=JobState.FAILED,
        reason="task raised",
        changed_at=12.0,
        iteration=7,
        iterations=9,
    )
    [note] = progress.take_summary(job)
    assert note.text == "failed: task raised"
    assert note.grave
    assert (progress.iteration, progress.iterations) == (7, 9)


def test_rows_that_are_doubled_or_of_an_older_term_are_no_news() -> None:
    progress = JobProgress("j")
    assert progress.take_row(row(0))
    assert progress.take_row(row(1))
    assert not progress.take_row(row(1))
    assert progress.take_row(row(1, term=2))
    assert not progress.take_row(row(5, term=1))
    assert progress.iteration == 2


def test_a_rollback_turns_the_iteration_back() -> None:
    progress = JobProgress("j")
    for t in range(10):
        progress.take_row(row(t))
    progress.take_row(row(4, term=2))
    assert progress.iteration == 5


def test_an_event_that_a_summary_forestalled_does_not_bring_back_its_reason() -> None:
    progress = JobProgress("j")
    summary = JobDetail(id="j", state=JobState.QUEUED, reason="needs 2 workers", changed_at=10.0)
    assert progress.take_summary(summary)
    assert progress.take_event(change(JobState.QUEUED, 10.0, "submitted")) == []
    assert progress.reason == "needs 2 workers"


def test_speed_and_time_left_follow_the_newest_seconds() -> None:
    progress = JobProgress("j", iterations=200)
    for t in range(60):
        progress.take_row(row(t, duration_s=1.0))
    assert progress.samples_per_s == 32
    for t in range(60, 120):
        progress.take_row(row(t, duration_s=0.1))
    assert progress.samples_per_s is not None
    assert round(progress.samples_per_s) == 320
    assert progress.left_s is not None
    assert round(progress.left_s, 3) == 8.0


def test_the_time_limit_of_the_job_bounds_the_time_left() -> None:
    progress = JobProgress("j", iterations=1_000_000)
    document = {"stop": {"time_s": 60.0}}
    progress.take_summary(
        JobDetail(id="j", state=JobState.RUNNING, training_s=50.0, document=document)
    )
    for t in range(10):
        progress.take_row(row(t))
    assert progress.left_s is not None
    assert round(progress.left_s, 3) == 9.0


def test_there_is_no_speed_and_no_time_left_before_the_first_row() -> None:
    progress = JobProgress("j", iterations=10)
    assert progress.samples_per_s is None
    assert progress.left_s is None
    assert progress.line() == "iteration 0/10  loss –"


def test_a_loss_that_is_not_finite_is_said_in_words() -> None:
    progress = JobProgress("j")
    progress.take_row(row(0, loss=0.5))
    progress.take_row(row(1, loss=None))
    assert progress.line().startswith("iteration 2  loss not finite")
    progress.metrics = {"accuracy": None}
    assert "accuracy not finite" in progress.line()


def test_an_evaluation_is_told_and_kept() -> None:
    progress = JobProgress("j")
    event = JobEvent(
        job=JobId("j"),
        what="evaluated",
        at=5.0,
        iteration=10,
        metrics={"accuracy": 0.9625, "loss": 0.2},
    )
    [note] = progress.take_event(event)
    assert note.text == "evaluated at iteration 10: accuracy 0.9625, loss 0.2"
    assert "accuracy 0.9625" in progress.line()


def test_what_comes_late_of_a_leader_that_was_succeeded_is_not_told() -> None:
    progress = JobProgress("j")
    before, after = (
        JobEvent(job=JobId("j"), what="worker_joined", at=at, term=term)
        for at, term in ((5.0, 1), (6.0, 2))
    )
    assert progress.take_event(after)
    assert progress.take_event(before) == []


def test_whatever_the_order_of_delivery_the_newest_state_stands() -> None:
    events = [change(s, float(i)) for i, s in enumerate(list(JobState)[:6])]
    for seed in range(50):
        shuffled = events * 2
        random.Random(seed).shuffle(shuffled)
        progress = JobProgress("j")
        for event in shuffled:
            progress.take_event(event)
        assert progress.state is events[-1].state


def test_the_line_tells_the_batches_where_they_differ() -> None:
    progress = JobProgress("j")
    progress.take_row(row(0))
    assert "batches" not in progress.line()
    timing = row(1).workers[0]
    sizes = {"j-w1": 48, "j-w2": 16}
    timings = [
        msgspec.structs.replace(timing, worker=WorkerId(w), samples=n) for w, n in sizes.items()
    ]
    progress.take_row(msgspec.structs.replace(row(1), workers=timings))
    assert "batches 48/16" in progress.line()
