"""What the monitor answers, over HTTP as over the broker: the same types are served, described and read.

Times of day are Unix seconds; everything else in seconds is a duration. Whoever reads ignores fields that a newer
monitor adds; those that an older one lacks are empty.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from elps.contracts.messages import TrainerState
from elps.contracts.state import Change, JobState
from elps.contracts.telemetry import IterationRow, WorkerTiming

Liveness = Literal["alive", "leaving", "lost"]
Status = Literal["ok", "degraded"]


class JobSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A job in the list."""

    id: str
    state: JobState
    reason: str = ""
    """Why it is in this state; cut in the list, whole in the answer about one job."""
    phase: str | None = None
    """What its leader is at; null without one."""
    task: str = ""
    group: str = ""
    iteration: int = 0
    """Iterations completed."""
    iterations: int = 0
    """Iterations in the whole job; 0 while unknown."""
    passes: float = 0.0
    samples: int = 0
    loss: float | None = None
    """Over the newest iteration; null before the first, and (with `samples` above 0) while it is not finite."""
    metrics: dict[str, float | None] = {}
    """Newest evaluation on held-out samples; null is a metric that is not finite."""
    metrics_iteration: int | None = None
    samples_per_s: float | None = None
    time_left_s: float | None = None
    workers: list[str] = []
    ready: list[str] = []
    """Workers that the leader may lend work."""
    shards: list[str] = []
    """The leader first."""
    leader: str | None = None
    targets: list[str] = []
    """Those of `shards` that the partitions are to lie on; the others are on their way out."""
    workers_wanted: int = 0
    """How many it shall have; 0 while it holds nothing."""
    shards_wanted: int = 0
    workers_pinned: int | None = None
    """What `scale` has asked for; null while the policy decides."""
    shards_pinned: int | None = None
    moving: str = ""
    """Which partitions are on their way, for people; empty while none is."""
    replicas: str = ""
    """How the replicas of the partitions stand, for people; empty for a job without."""
    holders: list[str] = []
    """Shards that hold partitions."""
    submitted_at: float | None = None
    fed_at: float | None = None
    """When it had given its early feedback."""
    changed_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    training_s: float = 0.0
    checkpoint: int | None = None
    """Iteration of the newest valid checkpoint."""
    skipped_samples: int = 0
    redone_iterations: int = 0
    plan: int = 0
    batches: int = 0
    """Number of the plan by which its leader cuts batches; 0: there is none, all are equal."""
    shares: dict[str, int] = {}
    """Samples of a full batch that this plan gives to each worker."""
    shares_reason: str = ""
    """Why, for people."""
    term: int = 0
    loss_curve: list[tuple[int, float | None]] = []
    """Iteration and loss at a few points over the whole job, for a picture."""


class JobDetail(JobSummary, frozen=True, kw_only=True):
    """One job, with its document and its life."""

    changes: list[Change] = []
    """How its life began and its newest changes, oldest first."""
    stale: str = ""
    """For people: why this may be old, with the age; empty while it is not."""
    document: dict[str, Any] = {}
    dismissed: dict[str, str] = {}
    """Workers that the leader gave up on, with the reason."""

    @property
    def time_limit_s(self) -> float | None:
        """The job's own bound on its training time."""
        limit = self.document.get("stop", {}).get("time_s")
        return limit if isinstance(limit, int | float) else None


class Jobs(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs in the order of their arrival."""

    jobs: list[JobSummary]
    total: int = 0
    """Jobs that the monitor keeps; when more than listed, the older ended ones are left out."""
    stale: str = ""
    """For people: why this may be old, with the age; empty while it is not."""


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """One evaluation on held-out samples."""

    iteration: int
    """Iterations that the evaluated parameters have behind them."""
    at: float
    metrics: dict[str, float | None]
    """Means; null for one that is not finite."""
    term: int = 0
    """Of the leader that told it; 0: it did not say."""


class Iterations(msgspec.Struct, frozen=True, kw_only=True):
    """Finished iterations, oldest first. The newest are whole; older ones are thinned with age."""

    job: str = ""
    rows: list[IterationRow]
    evaluations: list[Evaluation] = []
    """Those within the range of the rows."""
    next: int = 0
    """What to give as `since` to go on."""
    more: bool = False
    """Whether rows from `next` on are there already."""


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line that a trainer printed."""

    n: int
    worker: str
    at: float
    text: str


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """Lines of a job's trainers in the order of their arrival; the oldest are let go."""

    job: str = ""
    lines: list[LogLine]
    next: int = 0
    """What to give as `since` to go on."""
    more: bool = False
    oldest: int = 0
    """Number of the oldest line kept; a higher one than `since` means that lines are gone."""


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened to a job, as the monitor tells it: a `JobEvent` without the record."""

    id: str = ""
    """``<run>-<n>``: what to give as `after`, or as ``Last-Event-ID``, to go on after it; `run` differs at each start
    of the monitor."""
    job: str
    what: str
    at: float
    reason: str = ""
    state: JobState | None = None
    iteration: int | None = None
    worker: str | None = None
    metrics: dict[str, float | None] = {}
    term: int | None = None
    """Of the leader that told it; null: the scheduler did."""


class Events(msgspec.Struct, frozen=True, kw_only=True):
    """Events that the monitor holds, in the order in which it heard of them."""

    events: list[Event]
    next: str
    """What to give as `after` to go on."""
    more: bool
    """Whether there are further ones already."""
    missed: bool
    """Whether some between `after` and these are lost, so that the reader should ask for the jobs anew."""


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why a job has what it has, and what would bring it more."""

    job: str
    lines: list[str]
    """A sentence each, for people."""


class Trainer(msgspec.Struct, frozen=True, kw_only=True):
    """A trainer process as its agent sees it."""

    worker: str
    job: str
    state: TrainerState
    pid: int = 0
    exit: str = ""
    rss_bytes: int = 0
    timing: WorkerTiming | None = None
    """Its part of the job's newest iteration."""


class Agent(msgspec.Struct, frozen=True, kw_only=True):
    """A worker agent with its trainers."""

    agent: str
    liveness: Liveness
    heard_s: float
    """Since its newest beat."""
    host: str
    pid: int
    slots: int
    used: int
    rss_bytes: int = 0
    version: str = ""
    trainers: list[Trainer] = []


class Workers(msgspec.Struct, frozen=True, kw_only=True):
    """All worker agents."""

    workers: list[Agent]


class Hosted(msgspec.Struct, frozen=True, kw_only=True):
    """A job on a shard."""

    job: str
    leads: bool
    phase: str | None = None
    """The leader's; null on the others."""
    term: int = 0
    bytes_held: int = 0


class Shard(msgspec.Struct, frozen=True, kw_only=True):
    """A shard with the jobs that it takes part in."""

    shard: str
    liveness: Liveness
    heard_s: float
    """Since its newest beat."""
    host: str
    pid: int
    data_host: str
    data_port: int
    slots: int
    used: int
    rss_bytes: int = 0
    version: str = ""
    jobs: list[Hosted] = []


class Shards(msgspec.Struct, frozen=True, kw_only=True):
    """All shards."""

    shards: list[Shard]


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One part of the stack in the health report."""

    status: Status
    detail: str = ""
    """For people: what is there, or what is wrong."""
    count: int = 0
    """Live ones, where the part has several."""


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the whole stack is there."""

    status: Status
    """``ok`` when every part is."""
    parts: dict[str, Part]
    """``broker``, ``store``, ``scheduler``, ``shards``, ``workers``, ``versions``, ``clocks``."""
    version: str
    """Of the monitor."""


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """The body of every answer that is an error."""

    reason: str
