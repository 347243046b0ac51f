"""The shapes of the monitor's answers: plain JSON values, the same over HTTP and over the broker.

Times of day are Unix seconds; everything else in seconds is a duration. Numbers that are not known are null.
"""

from __future__ import annotations

from typing import Any

from typing_extensions import TypedDict  # pydantic reads only this one before Python 3.12


class JobView(TypedDict):
    """A job in the list."""

    id: str
    state: str
    reason: str
    """Why it is in this state; cut in the list, whole in the job's own view."""
    phase: str | None
    """What its leader is at; null without one."""
    task: str
    group: str
    iteration: int
    """Iterations completed."""
    iterations: int
    """Iterations in the whole job; 0 while unknown."""
    passes: float
    samples: int
    loss: float | None
    """Over the newest iteration; null before the first, and (with `samples` above 0) while it is not finite."""
    metrics: dict[str, float | None]
    """Newest evaluation on held-out samples; null is a metric that is not finite."""
    metrics_iteration: int | None
    samples_per_s: float | None
    time_left_s: float | None
    workers: list[str]
    ready: list[str]
    """Workers that the leader may lend work."""
    shards: list[str]
    """The leader first."""
    leader: str | None
    targets: list[str]
    """Those of `shards` that the partitions are to lie on; the others are on their way out."""
    workers_wanted: int
    """How many it shall have; 0 while it holds nothing."""
    shards_wanted: int
    workers_pinned: int | None
    """What a user has asked for; null while the policy decides."""
    shards_pinned: int | None
    moving: str
    replicas: str
    """Which partitions are on their way, for people; empty while none is."""
    holders: list[str]
    """Shards that hold partitions."""
    submitted_at: float | None
    fed_at: float | None
    """When it had given its early feedback."""
    changed_at: float | None
    started_at: float | None
    ended_at: float | None
    training_s: float
    checkpoint: int | None
    """Iteration of the newest valid checkpoint."""
    skipped_samples: int
    redone_iterations: int
    plan: int
    batches: int
    """Number of the plan by which its leader cuts batches; 0: there is none, all are equal."""
    shares: dict[str, int]
    """Samples of a full batch that this plan gives to each worker."""
    shares_reason: str
    """Why, for people."""
    term: int
    loss_curve: list[tuple[int, float | None]]
    """Iteration and loss at a few points over the whole job, for a picture."""


class ChangeView(TypedDict):
    """One change of a job's state, as its record keeps it."""

    at: float
    state: str
    reason: str


class JobDetail(JobView):
    """One job, with its document and its life."""

    changes: list[ChangeView]
    """How its life began and its newest changes, oldest first."""
    stale: str
    """For people: why this may be old, with the age; empty while it is not."""

    document: dict[str, Any]
    dismissed: dict[str, str]
    """Workers that the leader gave up on, with the reason."""


class JobsView(TypedDict):
    """Jobs in the order of their arrival."""

    jobs: list[JobView]
    total: int
    """Jobs that the monitor keeps; when more than listed, the older ended ones are left out."""
    stale: str
    """For people: why this may be old, with the age; empty while it is not."""


class ExtraView(TypedDict):
    """What of a worker's part was in leases beyond its first."""

    leases: float
    samples: float
    compute_s: float
    wait_s: float


class TimingView(TypedDict):
    """One worker's part of one iteration."""

    worker: str
    samples: int
    """Its batch."""
    compute_s: float
    pull_s: float
    wait_s: float
    push_s: float
    lease_s: float
    cpu_process: float | None
    """Cores that it can have, as its machine was when it had pushed; as the next two, None where it is not known."""
    cpu_host: float | None
    """Idle cores."""
    memory_bytes: int | None
    """Memory that can be had."""
    extra: ExtraView | None


class IterationView(TypedDict):
    """One finished iteration."""

    iteration: int
    passes: float
    samples: int
    skipped: int
    loss: float | None
    duration_s: float
    at: float
    term: int
    plan: int
    lr: float
    workers: list[TimingView]


class EvaluationView(TypedDict):
    """One evaluation on held-out samples."""

    iteration: int
    at: float
    metrics: dict[str, float | None]
    term: int
    """Of the leader that told it; 0: not known."""


class EventView(TypedDict):
    """Something that happened to a job."""

    id: str
    """What to give as `after`, or as ``Last-Event-ID``, to go on after it."""
    job: str
    what: str
    at: float
    reason: str
    state: str | None
    iteration: int | None
    worker: str | None
    metrics: dict[str, float | None]
    term: int | None
    """Of the leader that told it; null: the scheduler did."""


class EventsView(TypedDict):
    """Events that the monitor holds, in the order in which it heard of them."""

    events: list[EventView]
    next: str
    """What to give as `after` to go on."""
    more: bool
    """Whether there are further ones already."""
    missed: bool
    """Whether some between `after` and these are lost, so that the reader should ask for the jobs anew."""


class ExplanationView(TypedDict):
    """Why a job has what it has, and what would bring it more."""

    job: str
    lines: list[str]
    """A sentence each, for people."""


class IterationsView(TypedDict):
    """Finished iterations, oldest first. The newest are whole; older ones are thinned with age."""

    job: str
    rows: list[IterationView]
    evaluations: list[EvaluationView]
    """Those within the range of the rows."""
    next: int
    """What to give as `since` to go on."""
    more: bool
    """Whether rows from `next` on are there already."""


class LineView(TypedDict):
    """One line of a trainer's output."""

    n: int
    worker: str
    at: float
    text: str


class LogsView(TypedDict):
    """Lines of a job's trainers in the order of their arrival; the oldest are let go."""

    job: str
    lines: list[LineView]
    next: int
    """What to give as `since` to go on."""
    more: bool
    oldest: int
    """Number of the oldest line kept; a higher one than `since` means that lines are gone."""


class TrainerView(TypedDict):
    """A trainer process as its agent sees it."""

    worker: str
    job: str
    state: str
    pid: int
    exit: str
    rss_bytes: int
    timing: TimingView | None
    """Its part of the job's newest iteration."""


class AgentView(TypedDict):
    """A worker agent with its trainers."""

    agent: str
    liveness: str
    """``alive``, ``leaving`` or ``lost``."""
    heard_s: float
    """Seconds since its newest beat."""
    host: str
    pid: int
    slots: int
    used: int
    rss_bytes: int
    version: str
    trainers: list[TrainerView]


class WorkersView(TypedDict):
    """All worker agents."""

    workers: list[AgentView]


class HostedView(TypedDict):
    """A job on a shard."""

    job: str
    leads: bool
    phase: str | None
    """The leader's; null on the others."""
    term: int
    bytes_held: int


class ShardView(TypedDict):
    """A shard with the jobs it takes part in."""

    shard: str
    liveness: str
    heard_s: float
    host: str
    pid: int
    data_host: str
    data_port: int
    slots: int
    used: int
    rss_bytes: int
    version: str
    jobs: list[HostedView]


class ShardsView(TypedDict):
    """All shards."""

    shards: list[ShardView]


class PartView(TypedDict):
    """One part of the stack in the health report."""

    status: str
    """``ok`` or ``degraded``."""
    detail: str
    """For people: what is there, or what is wrong."""
    count: int
    """Live ones, where the part has several."""


class HealthView(TypedDict):
    """Whether the whole stack is there."""

    status: str
    """``ok`` when every part is."""
    parts: dict[str, PartView]
    """``broker``, ``store``, ``scheduler``, ``shards``, ``workers``, ``versions``, ``clocks``."""
    version: str
    """Of the monitor."""


class Problem(TypedDict):
    """The body of every answer that is an error."""

    reason: str
