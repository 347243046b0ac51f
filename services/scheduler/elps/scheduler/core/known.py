"""What is known of jobs besides their records: seen in heartbeats or counted meanwhile, and gone with the scheduler.

After a restart it is filled anew by the members' next heartbeats.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from elps.contracts.ids import AgentId, JobId, ShardId, WorkerId
from elps.contracts.messages import HostedJob
from elps.contracts.state import JobRecord
from elps.scheduler.core.batching import Batching
from elps.scheduler.core.curve import LossCurve
from elps.scheduler.core.events import Request
from elps.scheduler.core.gain import Speeds
from elps.scheduler.core.policy import QueuedFact, Start


@dataclass(frozen=True)
class Retiring:
    """A worker that is on its way out."""

    agent: AgentId
    why: str


@dataclass
class Reign:
    """What is known of a job under its present term."""

    placed_at: float  #: monotonic, s; forgiven like all deadlines after deafness
    begun_at: float | None = (
        None  #: since when iterations were computed: no shard is asked to join after that
    )
    hosted: dict[ShardId, None] = field(
        default_factory=dict
    )  #: shards whose heartbeat has shown the term
    lead: HostedJob | None = None  #: as in the leader's newest heartbeat
    started: dict[WorkerId, float] = field(
        default_factory=dict
    )  #: workers not yet ready: since when, monotonic
    shown: dict[WorkerId, None] = field(
        default_factory=dict
    )  #: workers that their agent's heartbeat has shown
    exits: dict[WorkerId, str] = field(default_factory=dict)  #: how workers ended, the newest last
    spared: set[WorkerId] = field(
        default_factory=set
    )  #: those of them that the network or their machine has let down
    retiring: dict[WorkerId, Retiring] = field(
        default_factory=dict
    )  #: not needed any more, but may finish what they compute: in no allocation, their agents still have them
    absent: dict[ShardId, float] = field(
        default_factory=dict
    )  #: shards of the job that do not show it: since when that is noticed, monotonic
    cut_off: dict[ShardId, float] = field(
        default_factory=dict
    )  #: shards that the leader cannot reach: since when it says so, monotonic
    unfit: dict[ShardId, float] = field(
        default_factory=dict
    )  #: shards that did not take it in time: until when it is not asked of them, monotonic
    astray_at: float | None = (
        None  #: since when the leader counts on a shard that the job does not have, monotonic
    )
    sent_away: bool = (
        False  #: a trainer had nothing more to do, and its leader has not been heard since
    )
    bare_at: float | None = None  #: since when it has no worker, monotonic
    stranded_at: float | None = (
        None  #: since when it is to pause and nobody brings it to the boundary, monotonic
    )


@dataclass(frozen=True)
class Reservation:
    """A place that a queued job will take as soon as its term is there."""

    attempt: int
    start: Start


@dataclass(frozen=True)
class Succession:
    """Another shard is to lead a job as soon as its term is there."""

    attempt: int
    why: str
    cut_off: bool = False  #: the old leader is there, but out of reach of all others: what it holds is lost to the job


@dataclass
class Live:
    """What is known of a job that has not ended."""

    reign: Reign | None = None  #: present exactly while the record has an allocation
    reservation: Reservation | None = None  #: only while queued; set by `Book.reserve`
    succession: Succession | None = None  #: only while the record has an allocation
    requeue: str = ""  #: why the job shall be checkpointed and queued again; empty: it shall not
    failures: int = 0  #: trainers in a row that ended before they were ready
    cut_off_at: float | None = None  #: when one was counted last that was cut off, monotonic s
    late: int = 0  #: rounds in a row in which something was not ready in time
    avoid: dict[AgentId, None] = field(
        default_factory=dict
    )  #: agents on which its trainers do not start
    highest: int = 0  #: highest term number seen anywhere
    written_at: float = 0.0  #: monotonic, s; when the record was last handed out to be stored
    batching: Batching | None = None  #: of balanced jobs, since their leader was first heard
    speeds: Speeds = field(default_factory=Speeds)  #: measured, by number of workers
    curve: LossCurve = field(default_factory=LossCurve)  #: of its losses
    behind: bool = False  #: it would miss its deadline (`deadlines`)
    told: tuple[JobRecord, QueuedFact] | None = (
        None  #: what the policy was told of it last, and by which record
    )
    resized_at: float = -math.inf  #: monotonic, s; when the policy last changed its size
    gives_fastest: bool = False  #: of what it gives up by that, the fastest go first
    trend: int = 0  #: whether it did so to more workers (1) or to fewer (-1)
    unwritten: bool = False  #: the record has changed since, in its progress or its reason


@dataclass
class Suspension:
    """A suspension whose answer is owed."""

    request: Request
    deadline: float
    jobs: list[JobId]
