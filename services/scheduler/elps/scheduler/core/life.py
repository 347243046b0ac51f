"""The life of a job: which changes of state are allowed, in one table.

Who sees what: users send kill, pause and resume; the leader's heartbeat shows that a job trains, stalls, is
paused, has finished or has failed; the pool shows that a shard or the last worker is gone. All of these cross
each other on the way:

- A job may finish before its pause is reached, and before it was ever seen to train (a short one): FINISHED is
  allowed in every state that holds shards.
- A resume may cross the leader's "paused". The record says what is wanted (`pausing`), and the leader is told until
  its heartbeat agrees; one that rests already does not go on, so its job is placed anew.
- A pause is asked for while no worker is left. A leader with nothing lent rests at once; one that must complete an
  iteration first waits for a worker, but not for ever: then the job is displaced, which here means paused, and goes
  on from its newest checkpoint.
- Heartbeats of an older term, a superseded incarnation or an ended job never become events: the caller compares
  them with the record first. An event that is not in the table is a fault of the caller; it raises and changes
  nothing.

A job holds shards and workers exactly in STARTING, RUNNING and WAITING. SUCCEEDED changes its leader, and gives it
new trainers, while it holds all of its values: it starts once more, and need not queue. DISPLACED takes them away
and keeps the place in the queue (`seq`), whatever the cause: a shard that died, a stack that goes down, a member
that leaves.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from elps.contracts.errors import IllegalEvent
from elps.contracts.state import Allocation, Change, JobRecord, JobState
from elps.contracts.texts import LOGGED_CHARACTERS, shortened

CHANGES_KEPT = 50
"""Changes of state that a record tells: the first and the newest. A job that flaps stays of bounded size."""


class LifeEvent(Enum):
    """What can happen to a job."""

    PLACED = "placed"
    """Shards and workers were given to it, under a new term."""
    SUCCEEDED = "succeeded"
    """Another shard leads it, under a new term, with what its shards have."""
    TRAINS = "trains"
    """The leader reports iterations being computed."""
    STALLED = "stalled"
    """It keeps what it holds but cannot go on."""
    DISPLACED = "displaced"
    """It lost what it held and waits for a new place."""
    PAUSED = "paused"
    RESUMED = "resumed"
    FINISHED = "finished"
    FAILED = "failed"
    KILLED = "killed"


GOES_ON = (LifeEvent.PLACED, LifeEvent.SUCCEEDED, LifeEvent.TRAINS, LifeEvent.STALLED)
"""Events after which a job that was there is there as before: for the others nothing has changed."""
HOLDING = (JobState.STARTING, JobState.RUNNING, JobState.WAITING)
"""The states in which a job has an allocation."""

CHANGES: dict[tuple[JobState, LifeEvent], JobState] = {
    (JobState.QUEUED, LifeEvent.PLACED): JobState.STARTING,
    (JobState.QUEUED, LifeEvent.PAUSED): JobState.PAUSED,
    (JobState.QUEUED, LifeEvent.KILLED): JobState.KILLED,
    (JobState.PAUSED, LifeEvent.RESUMED): JobState.QUEUED,
    (JobState.PAUSED, LifeEvent.KILLED): JobState.KILLED,
    (JobState.STARTING, LifeEvent.TRAINS): JobState.RUNNING,
    (JobState.WAITING, LifeEvent.TRAINS): JobState.RUNNING,
    (JobState.STARTING, LifeEvent.STALLED): JobState.WAITING,
    (JobState.RUNNING, LifeEvent.STALLED): JobState.WAITING,
    **{(state, LifeEvent.SUCCEEDED): JobState.STARTING for state in HOLDING},
    **{(state, LifeEvent.DISPLACED): JobState.QUEUED for state in HOLDING},
    **{(state, LifeEvent.PAUSED): JobState.PAUSED for state in HOLDING},
    **{(state, LifeEvent.FINISHED): JobState.FINISHED for state in HOLDING},
    **{(state, LifeEvent.FAILED): JobState.FAILED for state in HOLDING},
    **{(state, LifeEvent.KILLED): JobState.KILLED for state in HOLDING},
}
"""State and event to the state after it; whatever is absent is not allowed."""


def after(state: JobState, event: LifeEvent) -> JobState:
    """The state after an event; `IllegalEvent` when the state does not allow it."""
    new = CHANGES.get((state, event))
    if new is None:
        raise IllegalEvent(f"a job that is {state.value} cannot be {event.value}")
    return new


def change(
    record: JobRecord,
    event: LifeEvent,
    reason: str,
    at: float,
    allocation: Allocation | None = None,
) -> JobRecord:
    """The record after an event at Unix time `at`; `allocation` belongs to PLACED and SUCCEEDED only."""
    state = after(record.state, event)
    given = event in (LifeEvent.PLACED, LifeEvent.SUCCEEDED)
    if (allocation is not None) != given:
        raise IllegalEvent(f"event {event.value} with allocation {allocation}")
    life = record.changes or [entry(record.changed_at, record.state, record.reason)]
    # the fallback is for a record of a version that did not keep them: what it is in is all that is known
    return msgspec.structs.replace(
        record,
        state=state,
        reason=reason,
        changed_at=at,
        changes=[life[0], *[*life[1:], entry(at, state, reason)][1 - CHANGES_KEPT :]],
        started_at=at
        if event is LifeEvent.PLACED and record.started_at is None
        else record.started_at,
        ended_at=at if state.ended else None,
        allocation=allocation if given else record.allocation if state in HOLDING else None,
        pausing=record.pausing and state in HOLDING,
        secret="" if state.ended else record.secret,
    )


def entry(at: float, state: JobState, reason: str) -> Change:
    """A change of state as the record tells it; the reason of the present state is kept longer."""
    return Change(at=at, state=state, reason=shortened(reason, LOGGED_CHARACTERS))


def problems(record: JobRecord) -> list[str]:
    """What of a record contradicts the above; empty for every record that the scheduler writes."""
    found = []
    if (record.allocation is not None) != (record.state in HOLDING):
        found.append(f"{record.state.value} with allocation {record.allocation}")
    if (record.ended_at is not None) != record.state.ended:
        found.append(f"{record.state.value} with ended_at {record.ended_at}")
    if record.deleted_at is not None and not record.state.ended:
        found.append(f"{record.state.value} with deleted_at {record.deleted_at}")
    if record.pausing and record.state not in HOLDING:
        found.append(f"{record.state.value} while pausing")
    if record.allocation is not None and record.allocation.term.number != record.terms:
        found.append(f"allocation of term {record.allocation.term} under record of {record.terms}")
    if record.allocation is not None:
        found += _holding_problems(record.allocation)
    if record.changes and record.changes[-1].state is not record.state:
        found.append(f"{record.state.value} after a change to {record.changes[-1].state.value}")
    if len(record.changes) > CHANGES_KEPT:
        found.append(f"{len(record.changes)} changes kept")
    return found


def _holding_problems(allocation: Allocation) -> list[str]:
    found = []
    if not allocation.shards or len(set(allocation.shards)) != len(allocation.shards):
        found.append(f"shards {allocation.shards}")
    strangers = [s for s in allocation.targets if s not in allocation.shards]
    if strangers:
        found.append(f"targets {allocation.targets} of shards {allocation.shards}")
    if again := [s for s in allocation.lost if s in allocation.shards]:
        found.append(f"lost shards {again} are held")
    if len(allocation.workers) > allocation.size:
        found.append(f"{len(allocation.workers)} workers for a size of {allocation.size}")
    return found
