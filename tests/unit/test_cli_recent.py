"""The story of a job from its record's changes and the events that the monitor still holds."""

from __future__ import annotations

from elps.cli.recent import NEWEST_CHANGES, NEWEST_OF_A_KIND, lately
from elps.contracts.ids import JobId, WorkerId
from elps.contracts.messages import JobEvent
from elps.contracts.state import Change, JobState

QUEUED = Change(at=1.0, state=JobState.QUEUED, reason="submitted")
RUNNING = Change(at=3.0, state=JobState.RUNNING, reason="training")


def event(what: str, at: float, **more: object) -> JobEvent:
    return JobEvent(job=JobId("j"), what=what, at=at, **more)  # type: ignore[arg-type]


def state_event(change: Change) -> JobEvent:
    return event(change.state.value, change.at, state=change.state, reason=change.reason)


def test_a_change_that_the_record_and_an_event_tell_is_told_once() -> None:
    told = lately([QUEUED, RUNNING], [state_event(QUEUED), state_event(RUNNING)])
    assert [line.text for line in told] == ["queued: submitted", "running: training"]


def test_events_that_came_late_and_doubled_stand_in_order_of_time() -> None:
    joined = event("worker_joined", 2.0, worker=WorkerId("j-w1"))
    told = lately([QUEUED, RUNNING], [event("checkpointed", 4.0, iteration=7), joined, joined])
    assert [line.at for line in told] == [1.0, 2.0, 3.0, 4.0]


def test_evaluations_do_not_crowd_out_what_else_happened() -> None:
    lost = event("worker_lost", 5.0, worker=WorkerId("j-w1"), reason="killed")
    many = [event("evaluated", 10.0 + n, iteration=n) for n in range(200)]
    told = [line.text for line in lately([QUEUED], [lost, *many])]
    assert told[:2] == ["queued: submitted", "worker lost j-w1: killed"]
    assert told[2:] == [f"evaluated at iteration {n}" for n in range(200 - NEWEST_OF_A_KIND, 200)]


def test_of_a_job_that_flaps_the_beginning_and_the_newest_changes_are_told() -> None:
    flaps = [
        Change(at=2.0 + n, state=(JobState.WAITING, JobState.RUNNING)[n % 2], reason=str(n))
        for n in range(49)
    ]
    told = [line.text for line in lately([QUEUED, *flaps], [])]
    assert told[0] == "queued: submitted"
    assert told[1] == f"… {49 - NEWEST_CHANGES} changes of state between, see --json"
    assert len(told) == 2 + NEWEST_CHANGES
    assert told[-1] == "waiting: 48"


def test_without_a_record_that_tells_changes_the_events_alone_do() -> None:
    assert [line.text for line in lately([], [state_event(RUNNING)])] == ["running: training"]
