"""Messages of users: what they send to the scheduler, and what they ask the monitor.

Over `elps.jobs`, `submit` carries a bare job document, the others one of these.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from elps.contracts.messages import Message
from elps.contracts.numbers import Whole
from elps.contracts.state import JobState

# --- users to scheduler, exchange elps.jobs ---------------------------------------------------------------------------


class JobCommand(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of kill, pause, resume, delete and explain."""

    job: str
    reason: str = ""


class ScaleCommand(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of scale: pins a job at a size within the bounds of its document, or frees it."""

    job: str
    workers: Whole | None = None
    """None: as it was pinned before, or as it was not."""
    shards: Whole | None = None
    auto: bool = False
    """The size is the policy's to choose again, which with first come, first served is only when the job starts anew;
    not with a number."""
    reason: str = ""


class SuspendCommand(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of suspend: checkpoint and requeue every running job and start none, since the stack is going down."""

    reason: str = "the stack is going down"


class PolicyCommand(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of policy: by which the scheduler decides from now on, or the question by which it does."""

    policy: str = ""
    """Empty: nothing is changed. The answer's only line is the policy in force."""


class Reply(Message, frozen=True, kw_only=True, tag="reply"):
    """Answer to a user's message, sent to its `reply_to`."""

    ok: bool
    job: str | None = None
    state: JobState | None = None
    reason: str = ""
    problems: list[str] = []
    """Every fault of a refused document."""
    lines: list[str] = []
    """What an explanation says, a sentence each."""


# --- queries to the monitor, exchange elps.query ----------------------------------------------------------------------


class Query(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A question to the monitor over the broker; the answer is the JSON that HTTP would give."""

    what: Literal[
        "jobs", "job", "explain", "iterations", "logs", "events", "workers", "shards", "health"
    ]
    job: str | None = None
    """Which one; of the events None asks for those of all jobs."""
    since: Whole = 0
    """Iterations: the first to return. Logs: the first line number."""
    limit: Whole = 1000
    after: str = ""
    """Events: the id of the last one seen; empty: from the oldest that the monitor holds."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to a `Query`."""

    ok: bool
    result: msgspec.Raw = msgspec.Raw(b"null")
    reason: str = ""
    later: bool = False
    """It cannot be said now, and may be a little later: the store or the scheduler must be asked."""
