"""What is recorded about a job, and the states of its life."""

from __future__ import annotations

from enum import Enum

import msgspec

from elps.contracts.epoch import Epoch, Term
from elps.contracts.ids import AgentId, JobId, ShardId, WorkerId
from elps.contracts.job import JobDocument
from elps.contracts.numbers import Whole


class JobState(Enum):
    """The life of a job; the allowed changes are the table of `elps.scheduler.core.life`."""

    QUEUED = "queued"
    """Accepted, holds nothing."""
    STARTING = "starting"
    """Holds shards and workers, whose processes are getting ready."""
    RUNNING = "running"
    WAITING = "waiting"
    """Holds its place but cannot go on; the reason says for what or whom."""
    PAUSED = "paused"
    """Checkpointed at a user's wish, holds nothing."""
    FINISHED = "finished"
    FAILED = "failed"
    KILLED = "killed"

    @property
    def ended(self) -> bool:
        """Whether the job's life is over."""
        return self in (JobState.FINISHED, JobState.FAILED, JobState.KILLED)


class Allocation(msgspec.Struct, frozen=True, kw_only=True):
    """What a job holds under one term: its shards, the leader first, and its workers with their agents."""

    term: Term
    shards: list[ShardId]
    workers: dict[WorkerId, AgentId]
    size: Whole = 0
    """Worker slots the job was given; what `workers` lacks of it is to be replaced."""
    targets: list[ShardId] = []
    """Shards that the partitions are to lie on, some of `shards`; empty: all of them. The others are on their way."""
    width: Whole = 0
    """Shards the job was given; what the targets lack of it is to be added. 0: as many as there are targets."""
    plan: Whole = 0
    """Grows with every change of the targets under this term; of two that the leader hears the higher counts."""
    incarnations: dict[ShardId, str] = {}
    """The process of each shard: only it is asked to take part, for another one in its place would hold nothing."""
    lost: dict[ShardId, Whole] = {}
    """Shards that went before they held anything, with the first plan without them: taken again once that is obeyed."""
    inherits: Epoch | None = None
    """The term goes on from what the shards have of the one before; see `HostJob.inherits`."""


class Pinned(msgspec.Struct, frozen=True, kw_only=True):
    """The size that a user has asked for; None: as the policy decides."""

    workers: Whole | None = None
    shards: Whole | None = None


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a job is; never goes back but by a rollback, which `redone` counts."""

    iteration: Whole = 0
    """Iterations completed on every partition."""
    iterations: Whole = 0
    """Iterations in the whole job; 0 while unknown."""
    passes: float = 0.0
    """Passes over the data, with the part of the current one."""
    samples: Whole = 0
    """Samples counted in those iterations, each once."""
    loss: float | None = None
    """Mean loss over the newest finished iteration; None while none is finite."""
    metrics: dict[str, float | None] = {}
    """Newest evaluation: means over the held-out samples."""
    metrics_iteration: Whole | None = None
    best: float | None = None
    """Best value so far of the metric that `stop.patience` watches."""
    best_iteration: Whole | None = None
    stale: Whole = 0
    """Evaluations since then that were no better."""
    training_s: float = 0.0
    """Time spent training, over all terms."""
    checkpoint: Whole | None = None
    """Iteration of the newest valid checkpoint."""
    skipped_samples: Whole = 0
    redone_iterations: Whole = 0


class Best(msgspec.Struct, frozen=True):
    """A value that was better than all before."""

    iteration: Whole
    value: float


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """A job's evaluations as its rules, and those of its group, look at them."""

    iteration: Whole = -1
    """Of the newest one."""
    evaluations: Whole = 0
    without_better: Whole = 0
    """Evaluations since the best one."""
    best: list[Best] = []
    """Oldest first; of many some are left out."""
    apart: bool = False
    """It is to be compared with others of its group, which look at something else, and that was told."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One change of a job's state."""

    at: float
    """Unix time, s."""
    state: JobState
    """The state since then."""
    reason: str


class JobRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A job as it is kept in the store, so that it survives a restart of everything."""

    id: JobId
    document: JobDocument
    state: JobState
    reason: str
    """Why it is in this state, for people."""
    seq: Whole
    """Order of arrival; first come first served goes by it."""
    submitted_at: float
    """Unix time, s."""
    changed_at: float
    started_at: float | None = None
    ended_at: float | None = None
    allocation: Allocation | None = None
    progress: Progress = Progress()
    pausing: bool = False
    """A pause was asked for and the boundary is not reached yet."""
    terms: Whole = 0
    """Number of the newest term handed out."""
    first_term: Whole = 0
    """Everything of a lower term is of an earlier job that had this id and was deleted; it does not count here."""
    judged: Judged = Judged()
    fed_at: float | None = None
    """Unix time at which it had given its early feedback."""
    overdue: bool = False
    """Its deadline has passed while it had not ended, and that was told."""
    pinned: Pinned = Pinned()
    """What `scale` asked for; it holds through pauses and restarts, until `scale --auto`."""
    workers_named: Whole = 0
    """Trainers started over the job's life; the next one's id has this number."""
    secret: str = ""
    """Proves to the data plane that a process belongs to this job; never shown."""
    deleted_at: float | None = None
    """Unix time, s. Since then nobody is shown the job; the record itself goes a little later, and its id is free."""
    changes: list[Change] = []
    """The job's life, oldest first: how it began and the newest changes. What lies between is let go."""
