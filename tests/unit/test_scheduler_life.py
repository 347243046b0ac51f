"""The table of a job's life."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elps.contracts.epoch import Term
from elps.contracts.errors import IllegalEvent
from elps.contracts.ids import AgentId, JobId, ShardId, WorkerId
from elps.contracts.job import JobDocument
from elps.contracts.state import Allocation, JobRecord, JobState
from elps.contracts.texts import LOGGED_CHARACTERS
from elps.scheduler.core.life import (
    CHANGES,
    CHANGES_KEPT,
    LifeEvent,
    change,
    entry,
    problems,
)

PLACE = Allocation(
    term=Term(1, 2), shards=[ShardId("s")], workers={WorkerId("j-w1"): AgentId("a")}, size=1
)


def record() -> JobRecord:
    return JobRecord(
        id=JobId("j"),
        document=JobDocument(task="linear", iterations=1),
        state=JobState.QUEUED,
        reason="submitted",
        seq=1,
        submitted_at=1.0,
        changed_at=1.0,
        terms=1,
        changes=[entry(1.0, JobState.QUEUED, "submitted")],
    )


@pytest.mark.parametrize("state", [s for s in JobState if s.ended])
@pytest.mark.parametrize("event", list(LifeEvent))
def test_nothing_happens_to_a_job_that_has_ended(state: JobState, event: LifeEvent) -> None:
    assert (state, event) not in CHANGES


@pytest.mark.parametrize("state", [s for s in JobState if not s.ended])
def test_kill_is_allowed_in_every_live_state(state: JobState) -> None:
    assert CHANGES[state, LifeEvent.KILLED] is JobState.KILLED


def test_every_state_can_be_reached_and_every_live_one_can_end() -> None:
    reached = {JobState.QUEUED}
    while more := {after for (state, _), after in CHANGES.items() if state in reached} - reached:
        reached |= more
    assert reached == set(JobState)


@settings(deadline=None)
@given(st.lists(st.sampled_from(list(LifeEvent)), max_size=12), st.booleans())
def test_an_event_either_is_in_the_table_or_raises_and_changes_nothing(
    events: list[LifeEvent], pausing: bool
) -> None:
    job, at = record(), itertools.count(2)
    for event in events:
        if pausing and job.allocation is not None:
            job = msgspec.structs.replace(job, pausing=True)
        before = msgspec.to_builtins(job)
        given = event in (LifeEvent.PLACED, LifeEvent.SUCCEEDED)
        place = PLACE if given else None
        try:
            changed = change(job, event, "because", float(next(at)), place)
        except IllegalEvent:
            assert (job.state, event) not in CHANGES
            assert msgspec.to_builtins(job) == before
        else:
            assert changed.state is CHANGES[job.state, event]
            assert changed.reason == "because"
            assert problems(changed) == []
            assert changed.changes == [
                *job.changes,
                entry(changed.changed_at, changed.state, "because"),
            ]
            job = changed


def test_an_allocation_comes_with_placing_and_with_nothing_else() -> None:
    with pytest.raises(IllegalEvent):
        change(record(), LifeEvent.PLACED, "", 1.0)
    with pytest.raises(IllegalEvent):
        change(record(), LifeEvent.PAUSED, "", 1.0, PLACE)


def test_an_ended_job_keeps_no_secret() -> None:
    job = msgspec.structs.replace(record(), secret="s3cret")
    assert change(job, LifeEvent.KILLED, "", 2.0).secret == ""


def test_a_job_that_flaps_tells_how_it_began_and_what_happened_lately() -> None:
    job = record()
    for at in range(2, 200, 2):
        job = change(job, LifeEvent.PAUSED, f"paused at {at}", float(at))
        job = change(job, LifeEvent.RESUMED, f"resumed at {at + 1}", float(at + 1))
    assert len(job.changes) == CHANGES_KEPT
    assert job.changes[0] == entry(1.0, JobState.QUEUED, "submitted")
    newest = [c.at for c in job.changes[1:]]
    assert newest == [float(at) for at in range(200 - CHANGES_KEPT + 1, 200)]
    assert problems(job) == []


def test_a_record_of_a_version_without_changes_tells_what_it_was_in() -> None:
    old = msgspec.structs.replace(record(), changes=[], reason="needs 2 workers", changed_at=3.0)
    assert problems(old) == []
    assert change(old, LifeEvent.KILLED, "no longer wanted", 4.0).changes == [
        entry(3.0, JobState.QUEUED, "needs 2 workers"),
        entry(4.0, JobState.KILLED, "no longer wanted"),
    ]


def test_the_reason_of_a_past_change_is_short_and_keeps_both_ends() -> None:
    job = change(record(), LifeEvent.KILLED, f"begin {'x' * 4000} end", 2.0)
    reason = job.changes[-1].reason
    assert len(reason) <= LOGGED_CHARACTERS
    assert reason.startswith("begin")
    assert reason.endswith("end")
