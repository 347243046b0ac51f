"""Messages of the control plane. One union per queue.

All of them state what *is* or what *shall be*, never a change: they may be lost, doubled or reordered, and the next
heartbeat puts it right. `seq` grows within one incarnation of a sender, so that a receiver can drop what is older.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from elps.contracts.epoch import NO_CHARGE, Charge, Epoch, Term
from elps.contracts.ids import AgentId, JobId, ShardId, WorkerId
from elps.contracts.job import JobDocument
from elps.contracts.numbers import Natural, Port, Whole
from elps.contracts.state import JobRecord, JobState, Progress


class Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Base of all tagged messages."""


# --- users to scheduler, exchange elps.jobs ---------------------------------------------------------------------------
# `submit` carries a bare job document; the others one of these.


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


# --- members to scheduler and monitor, exchange elps.members ----------------------------------------------------------


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """Where a shard's data plane listens."""

    shard: ShardId
    host: str
    port: Port


Phase = Literal["loading", "waiting", "running", "pausing", "paused", "finished", "failed"]


class HostedJob(msgspec.Struct, frozen=True, kw_only=True):
    """One job as one shard sees it. The fields after `s_per_mib` are filled by the leader only, but for `phase`."""

    job: JobId
    term: Term
    leads: bool
    bytes_held: Whole = 0
    s_per_mib: float | None = None
    """What adding up and updating a MiB of it takes this shard in an iteration, lately; None: it is not known yet."""
    phase: Phase = "loading"
    reason: str = ""
    progress: Progress | None = None
    plan: Whole = 0
    ready: list[WorkerId] = []
    """Trainers connected and fit to be lent work."""
    dismissed: dict[WorkerId, str] = {}
    """Trainers the leader gave up on (hung, refused), with the reason: their agents shall end them."""
    holders: list[ShardId] = []
    """Shards that hold partitions; the job goes on without its others, and they may be taken from it."""
    unreachable: list[ShardId] = []
    """Shards of the job to which the leader has lost its link, or that do not take a new map."""
    moving: str = ""
    """What is on its way between them, for people; empty while everything lies where it is wanted."""
    replicas: str = ""
    """How the replicas of the partitions stand, for people; empty for a job without."""
    obeys: Whole | None = None
    """The highest `DirectJob.plan` heard; the shards of lower ones are no longer heeded. None: it does not heed any."""
    batches: Whole = 0
    """The highest `BatchPlan.number` heard; new cuts go by it."""
    shares: dict[WorkerId, Whole] = {}
    """What that plan gives to each worker: samples of a full batch. Empty: the ready ones get equal shares."""
    shares_reason: str = ""
    """Why, for people."""
    opened: Epoch | None = None
    """The opening, from a checkpoint or from version 0, that all values of the job have come from; None before it."""
    gone: list[WorkerId] = []
    """Trainers whose connection has ended without their saying that they go, and that have not come again."""


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """A term that a shard was asked to host a job under, and that is over there: the store has lost a newer one."""

    term: Term
    """The one refused."""
    highest: Term
    """The highest one that the shard has seen of the job; what follows must have a higher number."""


class ShardBeat(Message, frozen=True, kw_only=True, tag="shard"):
    """Heartbeat of a shard: all it knows of itself."""

    shard: ShardId
    incarnation: str
    """Drawn at each start of the process."""
    seq: Whole
    host: str
    pid: Natural
    data_host: str
    data_port: Port
    slots: Natural
    jobs: list[HostedJob]
    """A job may be here under two terms, the older one being closed: that comes before the one in force."""
    version: str
    rss_bytes: Natural = 0
    leaving: bool = False
    refused: dict[JobId, Refusal] = {}
    """Jobs it will not host under the term it was last told, until it is told a higher one."""
    obeys: Charge = NO_CHARGE
    """The scheduler whose orders count here: the newest that has given any."""


TrainerState = Literal["starting", "running", "exited"]


class TrainerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One trainer process as its agent sees it. Exited ones are reported until the scheduler stops asking for them."""

    job: JobId
    term: Term
    worker: WorkerId
    state: TrainerState
    pid: Natural = 0
    exit: str = ""
    """For people: ``exit code 3``, ``signal 9 (SIGKILL)``, with the end of its standard error."""
    rss_bytes: Natural = 0
    done: bool = False
    """It ended by itself and in order: its leader has nothing more for it, most often since the job is over."""
    cut_off: bool = False
    """It ended since its leader or a shard was out of reach: that is not its task's fault."""


class AgentBeat(Message, frozen=True, kw_only=True, tag="agent"):
    """Heartbeat of a worker agent."""

    agent: AgentId
    incarnation: str
    seq: Whole
    host: str
    pid: Natural
    slots: Natural
    trainers: list[TrainerStatus]
    version: str
    rss_bytes: Natural = 0
    leaving: bool = False
    obeys: Charge = NO_CHARGE
    """As with shards."""
    kind: str = ""
    """Class of its machine: those of one class are expected to be as fast until they are measured. Empty: unknown."""


class SchedulerBeat(Message, frozen=True, kw_only=True, tag="scheduler"):
    """Heartbeat of a scheduler, for the monitor's health report."""

    incarnation: str
    seq: Whole
    host: str
    pid: Natural
    jobs: dict[str, Whole]
    """State to number of jobs; empty on a standby."""
    version: str
    charge: Charge | None = NO_CHARGE
    """None: it stands by."""
    leaving: bool = False


MemberMessage = ShardBeat | AgentBeat | SchedulerBeat


# --- scheduler to members, exchange elps.commands ---------------------------------------------------------------------


class Order(Message, frozen=True, kw_only=True):
    """Base of what a scheduler has members do. One of a scheduler that another has followed is not obeyed."""

    by: Charge = NO_CHARGE


class HostJob(Order, frozen=True, kw_only=True, tag="host_job"):
    """To a shard: take part in a job under a term. Repeated until the shard's beat shows it."""

    job: JobId
    document: JobDocument
    term: Term
    secret: str
    shards: list[Address]
    """All shards of the job, the leader first."""
    workers: list[WorkerId]
    """Trainers that the leader may admit."""
    progress: Progress
    """As far as the job had come before this term, for its counters to go on from."""
    inherits: Epoch | None = None
    """The term goes on from what the shards have of the one before, if that is all of it: what has come from this
    opening, or from a later one. None: from the newest checkpoint."""
    first_term: Whole = 0
    """What the store has of lower terms is of an earlier job of this id; see `JobRecord.first_term`."""


class DropJob(Order, frozen=True, kw_only=True, tag="drop_job"):
    """To a shard: forget a job, if what it holds is of this term or an older one."""

    job: JobId
    term: Term


class DirectJob(Order, frozen=True, kw_only=True, tag="direct_job"):
    """To the leader: how the job shall go on. Repeated until its beat shows the phase."""

    job: JobId
    term: Term
    goal: Literal["run", "pause"]
    workers: list[WorkerId]
    """Trainers that the leader may admit, newly started ones included."""
    exits: dict[WorkerId, str] = {}
    """Trainers that ended, with what their agents saw."""
    spared: list[WorkerId] = []
    """Those of them that the network or their machine has let down: they have not died of what they computed."""
    shards: list[Address] = []
    """Shards that the partitions are to lie on from now on; with `plan` 0 nothing is said of them."""
    plan: Whole = 0
    """Number of that wish within the term; one with a lower number than was heard before is late and does not count."""
    lost: list[ShardId] = []
    """Shards that were the job's and are gone for good, with what they had of it."""


class BatchPlan(Order, frozen=True, kw_only=True, tag="batch_plan"):
    """To the leader: how iterations are cut from the next fresh cut on. Repeated until its beat shows the number."""

    job: JobId
    term: Term
    number: Whole
    """Within the term; one that is not higher than the highest heard is late and does not count."""
    shares: dict[WorkerId, Whole]
    """Samples of a full batch for each worker; 0: it sits out. Those who are gone do no harm."""
    reason: str = ""
    tail: float = 0.0
    """Share of the batch that is held back and lent within the iteration to whoever is free; shares shrink alike."""
    least: float = 0.0
    """Part of its own share that a worker is lent at least of it."""
    trial: Whole = 0
    """Samples of the next fresh cut alone that are held back and lent as one lease: to see what a lease costs."""


class StartTrainer(Order, frozen=True, kw_only=True, tag="start_trainer"):
    """To an agent: have this trainer run."""

    job: JobId
    document: JobDocument
    term: Term
    worker: WorkerId
    leader: Address
    secret: str
    warm: bool = False
    """The job trains already: whoever joins shall have computed before, so that nobody waits for its first steps."""


class StopTrainer(Order, frozen=True, kw_only=True, tag="stop_trainer"):
    """To an agent: have this trainer ended and forgotten."""

    job: JobId
    term: Term
    worker: WorkerId
    reason: str = ""


ShardCommand = HostJob | DropJob | DirectJob | BatchPlan
AgentCommand = StartTrainer | StopTrainer


# --- events, exchange elps.events -------------------------------------------------------------------------------------


class JobEvent(Message, frozen=True, kw_only=True, tag="event"):
    """Something that happened to a job; `what` is also the last word of the routing key.

    The scheduler sends one for each change of state (``what`` is the new state), ``scaled`` when a user has asked for
    another size and ``resized`` when the job gets or gives up workers or shards for it, and ``deleted`` when nothing of
    an ended job is to be shown any more; the leader sends ``evaluated``,
    ``checkpointed``, ``skipped``, ``worker_joined``, ``worker_lost``, ``worker_left`` (it was sent away),
    ``released`` (an interval lent again), ``partitions_moved``, ``move_given_up``, ``shards_weighed`` (partitions are
    to lie by how fast the shards are), ``rebalanced`` (the workers' shares of the batch are others; of several within
    a second one is told).
    """

    job: JobId
    what: str
    at: float
    """Unix time, s."""
    reason: str = ""
    state: JobState | None = None
    iteration: Whole | None = None
    worker: WorkerId | None = None
    metrics: dict[str, float | None] = {}
    record: JobRecord | None = None
    """With a change of state or of size: the whole record, its secret blanked."""
    term: Whole | None = None
    """Number of the term of the leader that sent it: a leader that was cut off may not know yet that it was succeeded.
    None: the scheduler sent it."""


# --- telemetry, exchange elps.telemetry -------------------------------------------------------------------------------


class ExtraLeases(msgspec.Struct, frozen=True, kw_only=True):
    """What of a worker's part of an iteration was in leases beyond its first; means, where several are told as one."""

    leases: float
    samples: float
    compute_s: float
    wait_s: float
    """Asking for them, and pushing them."""


class WorkerTiming(msgspec.Struct, frozen=True, kw_only=True):
    """One worker's part of one iteration; all times in seconds."""

    worker: WorkerId
    samples: Whole
    compute_s: float
    pull_s: float
    """Receiving parameters, without the wait for their version."""
    wait_s: float
    """Waiting for the version to be complete."""
    push_s: float
    lease_s: float
    """Waiting for the leader's answer."""
    cpu_process: float | None = None
    cpu_host: float | None = None
    memory_bytes: Whole | None = None
    """When it had pushed: cores that it can have, idle cores and memory of its machine; None where it is not known."""
    extra: ExtraLeases | None = None
    """Part of the above; None if it had one lease."""


class IterationRow(msgspec.Struct, frozen=True, kw_only=True):
    """One finished iteration."""

    iteration: Whole
    passes: float
    samples: Whole
    """Samples really counted."""
    skipped: Whole
    loss: float | None
    """Mean over the counted samples."""
    duration_s: float
    """Since the iteration before was complete."""
    at: float
    """Unix time, s."""
    term: Whole
    plan: Whole
    lr: float
    workers: list[WorkerTiming]
    n: Whole = 0
    """Of the epoch within the term (`Epoch.n`): iterations that are done again come under a higher one."""
    waiting: dict[WorkerId, float] = {}
    """Workers without a part in it, and how much of a core each could have, as last told."""

    @property
    def standing(self) -> tuple[int, int]:
        """Term and epoch. A row voids those of lower ones from its iteration on."""
        return self.term, self.n


class IterationRows(Message, frozen=True, kw_only=True, tag="iterations"):
    """Rows of one job, oldest first."""

    job: JobId
    rows: list[IterationRow]
    balanced: bool = False
    """The scheduler waits for the timings in them."""


class WorkerMean(msgspec.Struct, frozen=True, kw_only=True):
    """Means over the iterations in which a worker had a part, as in `WorkerTiming`; availability is the newest."""

    worker: WorkerId
    samples: float
    compute_s: float
    pull_s: float
    push_s: float
    wait_s: float
    cpu_process: float | None = None
    cpu_host: float | None = None
    memory_bytes: Whole | None = None
    extra: ExtraLeases | None = None


class IterationTimings(Message, frozen=True, kw_only=True, tag="timings"):
    """From the monitor to the scheduler, at once: what is needed of a batch of rows to decide the coming batches.

    Several rows, which come together when iterations are shorter than their way, are one: a plan could not have come
    between them. May be lost.
    """

    job: JobId
    term: Whole
    iteration: Whole
    """The newest of them."""
    workers: list[WorkerMean]
    n: Whole = 0
    """Of the epoch, as in `IterationRow`."""
    waiting: dict[WorkerId, float] = {}
    """As in the newest `IterationRow`."""


class LogLines(Message, frozen=True, kw_only=True, tag="log"):
    """What a trainer printed."""

    job: JobId
    worker: WorkerId
    at: float
    lines: list[str]


TelemetryMessage = IterationRows | LogLines


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
