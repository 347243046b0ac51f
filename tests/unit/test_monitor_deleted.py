"""What the monitor keeps of a job that was deleted: nothing, whatever of it comes late."""

from __future__ import annotations

from typing import Any

import pytest
from monitor_messages import change, record, row, rows, view

from elps.contracts.ids import JobId, WorkerId
from elps.contracts.messages import JobEvent
from elps.contracts.state import JobRecord, JobState
from elps.contracts.telemetry import LogLines
from elps.monitor.core.state import State


@pytest.fixture
def state() -> State:
    return State(lost_s=5.0, run="r")


def gone(**fields: Any) -> JobRecord:
    return record(state=JobState.FINISHED, deleted_at=20.0, changed_at=15.0, **fields)


def deletion(found: JobRecord) -> JobEvent:
    return JobEvent(job=found.id, what="deleted", at=20.0, record=found)


def test_a_deleted_job_is_forgotten_with_its_history_and_its_lines(state: State) -> None:
    state.take_event(change(record(state=JobState.FINISHED)), 0.0)
    state.take_telemetry(rows("j", *(row(i) for i in range(5))), 0.0)
    state.take_telemetry(
        LogLines(job=JobId("j"), worker=WorkerId("j-w1"), at=1.0, lines=["hi"]), 0.0
    )
    state.take_event(deletion(gone()), 1.0)
    state.check_invariants()
    assert (len(state.jobs), len(state.logs), state.jobs.cells) == (0, 0, 0)


def test_of_a_deleted_job_only_the_deletion_is_told_on_and_of_others_everything(
    state: State,
) -> None:
    for job in ("j", "k"):
        state.take_event(change(record(job, state=JobState.FINISHED)), 0.0)
    state.take_event(deletion(gone()), 1.0)
    state.take_event(change(record(seq=2, changed_at=30.0)), 2.0)
    told = [(event.job, event.what) for event in state.feed.since(0)]
    assert told == [("k", "finished"), ("j", "deleted"), ("j", "running")]
    assert state.feed.place(state.feed.since(0)[0].id) == (2, False)


def test_a_deletion_that_was_not_heard_is_found_in_the_store_however_fresh_the_job(
    state: State,
) -> None:
    state.take_event(change(record(state=JobState.FINISHED)), 0.0)
    state.take_records([gone()], 0.1)
    assert not len(state.jobs)


def test_what_comes_late_of_a_deleted_job_brings_it_back_to_nobody(state: State) -> None:
    state.take_event(deletion(gone()), 0.0)
    state.take_telemetry(rows("j", row(1)), 1.0)
    state.take_event(change(gone()), 2.0)
    assert not len(state.jobs)
    state.take_telemetry(rows("j", row(2)), 60.0)
    assert state.jobs.take_missing() == ["j"]
    state.take_record(JobId("j"), gone(), 60.0)
    assert not len(state.jobs)


def test_a_later_job_of_the_id_is_not_hurt_by_a_late_word_of_the_deletion(state: State) -> None:
    state.take_event(deletion(gone()), 0.0)
    state.take_event(change(record(seq=2, terms=4)), 1.0)
    state.take_event(deletion(gone()), 2.0)
    state.take_records([record(seq=2, terms=4)], 3.0)
    assert view(state)["state"] == "running"
