"""What goes into the core, and what comes out of it.

Events are facts in the past tense, commands to the shell are in the imperative. Time comes as an argument
beside the event.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

import msgspec

from elps.contracts.epoch import Term
from elps.contracts.ids import AgentId, JobId, ShardId
from elps.contracts.job import JobDocument
from elps.contracts.messages import AgentBeat, AgentCommand, JobEvent, ShardBeat, ShardCommand
from elps.contracts.requests import JobCommand, PolicyCommand, Reply, ScaleCommand, SuspendCommand
from elps.contracts.state import JobRecord

MemberId = ShardId | AgentId
Request = NewType("Request", str)
"""Names one message of a user (its message id), so that a repeat is known for one and its answer finds the way."""


@dataclass(frozen=True)
class Moment:
    """When an event is handled."""

    mono: float
    """Monotonic time, s: all deadlines go by it."""
    unix: float
    """Unix time, s: for people."""


# --- events -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class JobSubmitted:
    """A user published a document, already checked; its id is set."""

    request: Request
    document: JobDocument


@dataclass(frozen=True)
class UserAsked:
    """A user sent a command."""

    request: Request
    what: str
    """``kill``, ``pause``, ``resume``, ``delete``, ``scale``, ``suspend``, ``explain`` or ``policy``."""
    body: JobCommand | ScaleCommand | SuspendCommand | PolicyCommand


@dataclass(frozen=True)
class ShardBeaten:
    """A shard's heartbeat arrived."""

    beat: ShardBeat


@dataclass(frozen=True)
class AgentBeaten:
    """An agent's heartbeat arrived."""

    beat: AgentBeat


@dataclass(frozen=True)
class EchoHeard:
    """The scheduler's own heartbeat came back: the way by which the members' beats come works."""


@dataclass(frozen=True)
class TermGranted:
    """The store handed out the term that was asked for."""

    job: JobId
    attempt: int
    """That of the `AskTerm`."""
    term: Term
    secret: str


@dataclass(frozen=True)
class ShardRefused:
    """Nobody listens where a shard did: its process has ended."""

    shard: ShardId
    incarnation: str
    """That of the `Probe`."""


@dataclass(frozen=True)
class KeysRemoved:
    """All keys of these jobs are gone from the store, as `RemoveKeys` wanted."""

    jobs: tuple[JobId, ...]


@dataclass(frozen=True)
class JobsForgotten:
    """The store has nothing of these jobs any more."""

    jobs: tuple[JobId, ...]


@dataclass(frozen=True)
class Ticked:
    """Time has passed."""


Event = (
    JobSubmitted
    | UserAsked
    | ShardBeaten
    | AgentBeaten
    | EchoHeard
    | TermGranted
    | ShardRefused
    | KeysRemoved
    | JobsForgotten
    | Ticked
)


class Marks(msgspec.Struct, frozen=True, kw_only=True):
    """How far two counts had come among the jobs that were forgotten: no later job of any id begins below them.

    So whatever a member that was frozen for however long still says, or writes, of a forgotten job is known for that.
    """

    seq: int = 0
    terms: int = 0


# --- commands to the shell, in the order in which they are to be done; records before all else ------------------------


@dataclass(frozen=True)
class WriteRecord:
    """Store the record; nothing that follows may happen before it is there."""

    record: JobRecord


@dataclass(frozen=True)
class KeepPolicy:
    """Store the name of the policy that a user has chosen."""

    name: str


@dataclass(frozen=True)
class PublishEvent:
    """Tell everyone of a change of a job's state."""

    event: JobEvent


@dataclass(frozen=True)
class Answer:
    """Answer a user's message, which is then done with."""

    request: Request
    reply: Reply


@dataclass(frozen=True)
class AskTerm:
    """Have the store hand out a new term of a job and say so with `TermGranted`."""

    job: JobId
    attempt: int
    at_least: int


@dataclass(frozen=True)
class Probe:
    """Look whether anybody listens where a shard does; say so with `ShardRefused` if not."""

    shard: ShardId
    incarnation: str
    host: str
    port: int


@dataclass(frozen=True)
class RemoveKeys:
    """Remove what the store holds of an ended job but its record: all of it, or what no checkpoint needs.

    When all of it is gone, say so with `KeysRemoved`.
    """

    job: JobId
    all: bool


@dataclass(frozen=True)
class ForgetJobs:
    """Remove all that the store holds of jobs, their records too, and say so with `JobsForgotten`."""

    jobs: tuple[JobId, ...]
    marks: Marks
    """To be stored before."""


@dataclass(frozen=True)
class Note:
    """A decision without a change of state, for the log."""

    what: str
    fields: tuple[tuple[str, object], ...]
    warning: bool = False


Command = (
    WriteRecord
    | KeepPolicy
    | PublishEvent
    | Answer
    | AskTerm
    | Probe
    | RemoveKeys
    | ForgetJobs
    | Note
)


@dataclass(frozen=True)
class Send:
    """A message to a member; lost ones are sent again."""

    member: MemberId
    message: ShardCommand | AgentCommand


@dataclass(frozen=True)
class Bounds:
    """The core's settings. Times in seconds."""

    beat_s: float = 1.0
    lost_s: float = 5.0
    """A member not heard for so long has lost what it held."""
    suspend_s: float = 30.0
    """How long a suspension waits for checkpoints before it says which are missing."""
    progress_s: float = 2.0
    """Least time between two writes of a record for its progress alone."""
    keep_jobs_s: float = 0.0
    """How long an ended job is kept, with its checkpoints; 0: for ever."""

    @property
    def suspect_s(self) -> float:
        """A shard not heard for so long is looked after: a heartbeat is due, and late."""
        return 1.25 * self.beat_s

    @property
    def settle_s(self) -> float:
        """After the start members are still being discovered: jobs that would get less than their most wait so long."""
        return 2 * self.beat_s

    @property
    def deaf_s(self) -> float:
        """Without an echo for so long the broker or the scheduler itself has stood still: nobody's silence counts."""
        return 2.5 * self.beat_s

    @property
    def stranded_s(self) -> float:
        """A job that is to pause goes back to its newest checkpoint when for so long nobody brings it to the boundary.

        Time enough for a lost agent to be noticed and for its workers to be given another one.
        """
        return 3 * self.lost_s

    @property
    def again_s(self) -> float:
        """A job without any worker waits so long before it tries agents again on which its trainers did not start.

        Time enough for an agent that is restarted to come back, on which they do.
        """
        return 6 * self.lost_s

    @property
    def cut_off_s(self) -> float:
        """A shard that is heard, and that the leader of a job cannot reach for so long, is lost to that job."""
        return 3 * self.lost_s

    @property
    def clearing_s(self) -> float:
        """Slots being cleared are waited for so long, then taken for stuck."""
        return 2 * self.lost_s
