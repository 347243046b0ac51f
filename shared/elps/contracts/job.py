"""The job document: what a user publishes to have a model trained.

The same document comes as an AMQP message, or as a TOML, YAML or JSON file. `parse_job` checks it whole and reports
every fault at once. Units: counts of samples and iterations are whole numbers, times are seconds.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from elps.contracts.batching import AUTOMATIC, FIXED, POLICIES, policy_problem
from elps.contracts.numbers import Natural

Count = Annotated[int, Meta(ge=1, le=2**53)]
Small = Annotated[int, Meta(ge=1, le=4096)]
Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Positive = Annotated[float, Meta(gt=0, le=1e12)]
NonNegative = Annotated[float, Meta(ge=0, le=1e12)]
Share = Annotated[float, Meta(ge=0, lt=1)]
Name = Annotated[str, Meta(min_length=1, max_length=512)]
Staleness = Annotated[int, Meta(ge=0, le=1000)]
BatchPolicy = Annotated[str, Meta(max_length=64, extra_json_schema={"enum": list(POLICIES)})]

DEEPEST = 100
"""Levels of lists and tables in what a user hands on to a task or a source. JSON is read deeper than it is written, so
that a document without this bound could be taken and not be passed on."""

STALENESS = 3
"""The bound of ``ssp`` when the job names none: what the parameter servers that have it come with, more or less."""
UNBOUNDED = 1000
"""Iterations that ``asp`` can run ahead of a worker that hangs: partitions remember what they have of each until it is
given up. Nothing that is alive is behind by so many, since whoever asks is lent the oldest piece."""


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the job document."""


class Data(_Part, frozen=True, kw_only=True):
    """Where the samples come from and how they are split."""

    source: Name
    """``digits``, ``breast_cancer``, ``diabetes``, ``libsvm``, ``npy``, ``npz``, ``csv``, ``parquet`` or
    ``module:Callable``."""
    path: str | None = None
    """File, for the sources that read one; relative to the folder of the worker's ``ELPS_DATA_PATH``, or absolute."""
    args: dict[str, Any] = {}
    """Further arguments of the source."""
    test_fraction: Share = 0.0
    """Share of the samples held out for evaluation."""
    stratify: bool = True
    """Keep the classes' shares in the held-out part (only where labels are whole numbers)."""
    split_seed: Seed = 0
    scale: Literal["none", "standard", "minmax"] = "none"
    """Scaling of dense features, fitted on the training part."""

    def __post_init__(self) -> None:
        """Refuse what could be read and not be written again."""
        _refuse_depth("args", self.args)


class Optimizer(_Part, frozen=True, kw_only=True):
    """How a gradient becomes a step. The learning rate is multiplied by the schedule."""

    name: Literal["sgd", "momentum", "nesterov", "adagrad", "rmsprop", "adam", "adamw", "ftrl"] = (
        "sgd"
    )
    lr: Positive = 0.01
    momentum: Share = 0.9
    """``momentum``, ``nesterov``."""
    beta1: Share = 0.9
    beta2: Share = 0.999
    eps: Positive = 1e-8
    """Added to the root of the squares: ``adagrad``, ``rmsprop``, ``adam``, ``adamw``."""
    alpha: Share = 0.99
    """``rmsprop``: how much of the running mean of squares is kept at each step."""
    beta: Annotated[float, Meta(ge=1e-6, le=1e12)] = 1.0
    """``ftrl``: added to the root of the summed squares, so that the first steps stay small."""
    l1: NonNegative = 0.0
    """``ftrl``: parameters whose pull is below this are 0."""
    l2: NonNegative = 0.0
    """``ftrl``: strength of the pull towards 0."""
    weight_decay: NonNegative = 0.0
    """Added to the gradient as ``weight_decay * parameter``; decoupled from it under ``adamw``."""
    clip_norm: Annotated[float, Meta(ge=1e-12, le=1e12)] | None = None
    """Largest Euclidean norm of the mean gradient over all parameters: a longer one is scaled down to it before the
    step (and before `weight_decay`). Costs every iteration one more round trip between the shards."""


class Schedule(_Part, frozen=True, kw_only=True):
    """The factor on the learning rate at each optimizer step."""

    name: Literal["constant", "step", "cosine", "inverse_sqrt", "polynomial"] = "constant"
    warmup: Natural = 0
    """Steps over which the factor rises linearly from 1/warmup to 1; ``inverse_sqrt`` falls from there."""
    step_size: Count = 1000
    """``step``: every so many steps the factor is multiplied by `gamma`."""
    gamma: Annotated[float, Meta(gt=0, le=1)] = 0.1
    total: Natural = 0
    """``cosine``, ``polynomial``: steps until `floor` is reached; 0 means the job's number of iterations."""
    floor: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """``cosine``, ``polynomial``: the factor at their end."""
    power: Annotated[float, Meta(gt=0, le=100)] = 1.0
    """``polynomial``: of the share that is left; 1 falls in a straight line."""


class Batch(_Part, frozen=True, kw_only=True):
    """The global batch and the grain at which it may be cut."""

    global_: Count = msgspec.field(name="global", default=32)
    """Samples in one iteration, over all workers."""
    granule: Count = 1
    """Cuts fall on multiples of this; the task is called once per granule when it is above 1."""
    policy: BatchPolicy | None = None
    """How the workers' batches are decided: ``lb-bsp`` (by their speeds), ``fixed`` (equal, never changed), or a
    predictor (``auto``, ``last``, ``average``, ``median``, ``narx``, ``line``), a sizer (``equal-finish``,
    ``proportional``, ``leader-straggler``) or both joined by ``+``. Absent: ``lb-bsp``, but ``fixed`` with
    `deterministic`, where the cut must not depend on timings, and without `sync` ``bsp``, where fast workers take more
    batches instead of larger ones."""


class Pool(_Part, frozen=True, kw_only=True):
    """How many workers (or shards) the job takes."""

    min: Small = 1
    max: Small = 1


class Evaluate(_Part, frozen=True, kw_only=True):
    """When the held-out samples are evaluated. A job without held-out samples and without this is not evaluated."""

    every: Natural = 0
    """Iterations between evaluations; 0: at the end of each `every_passes` passes."""
    every_passes: Natural = 1
    at_end: bool = True


class Checkpoint(_Part, frozen=True, kw_only=True):
    """When the parameters are written to the store. Pausing, ending and `make down` always write one."""

    every_s: NonNegative = 30.0
    """Seconds between checkpoints; 0 turns the timer off."""
    every: Natural = 0
    """Iterations between checkpoints; 0: by time only."""


class Stop(_Part, frozen=True, kw_only=True):
    """When to stop before the last iteration."""

    metric: Name | None = None
    """Name of an evaluated metric, e.g. ``accuracy`` or ``loss``."""
    target: float | None = None
    mode: Literal["max", "min"] = "max"
    """Whether the metric is to rise to the target or to fall to it."""
    patience: Natural = 0
    """So many evaluations in a row without a better value of the metric end the job; 0: any number may."""
    min_delta: NonNegative = 0.0
    """How much better it has to be than the best one before."""
    time_s: Positive | None = None
    """Training time after which the job ends at the next boundary."""


class Feedback(_Part, frozen=True, kw_only=True):
    """When the job has given its early feedback: whichever of these comes first. By default its first evaluation, or
    the end of its first pass if it is not evaluated. `iterations` and `passes` are not beyond the job's own.
    """

    iterations: Natural = 0
    passes: NonNegative = 0.0
    seconds: NonNegative = 0.0
    """Of training."""


class Kill(_Part, frozen=True, kw_only=True):
    """Rules by which the scheduler kills the job, as its user might who looks at its evaluations; none by default."""

    metric: Name = "loss"
    """What the rules look at: a metric of the evaluations."""
    mode: Literal["max", "min"] = "min"
    """Whether more of it is better, or less."""
    patience: Natural = 0
    """So many evaluations in a row without a better value; 0: not asked."""
    min_delta: NonNegative = 0.0
    """A value counts as better when it is better by more than this."""
    below_median: Natural = 0
    """After so many evaluations: its best value is worse than the median of those that the others of its group had at
    the same iteration, if at least 3 have come as far whose own `metric` and `mode` here are the same; 0: not asked."""
    not_finite: bool = False
    """A value is NaN or infinite."""

    @property
    def asks(self) -> bool:
        """Whether there is any rule."""
        return self.not_finite or self.patience > 0 or self.below_median > 0


class Limits(_Part, frozen=True, kw_only=True):
    """Bounds on waiting for the job's own code."""

    start_s: Positive = 120.0
    """From the start of a trainer to the end of its imports and the opening of its data. One that joins while others
    train computes once besides, for which it has `first_iteration_s` more."""
    first_iteration_s: Positive = 600.0
    """The first leases; later ones get `slack` times the slowest recent one, `floor_s` at the least."""
    slack: Annotated[float, Meta(ge=2, le=1000)] = 10.0
    floor_s: Annotated[float, Meta(gt=0, le=3600)] = 5.0
    """The least time a lease gets, however fast the earlier ones were."""


class JobDocument(_Part, frozen=True, kw_only=True):
    """A job as its user describes it."""

    id: str | None = None
    """Chosen by the scheduler when absent."""
    task: Name
    """A built-in task (``linear``, ``logistic``, ``softmax``, ``svm``, ``mlp``) or ``module:Class`` of an allowed
    place."""
    task_args: dict[str, Any] = {}
    data: Data | None = None
    """May be absent when the task brings its own data."""
    init: Name | None = None
    """A safetensors file with the first parameters, in place of the task's own: absolute, or relative to the
    folder of the worker's ``ELPS_DATA_PATH``."""
    on_change: Literal["refuse", "accept"] = "refuse"
    """What becomes of a job that goes on from a checkpoint and finds other data or other code of the task than
    before: it fails and says which, or takes them as they are now. Their shapes must be the same in any case."""
    optimizer: Optimizer = Optimizer()
    schedule: Schedule = Schedule()
    batch: Batch = Batch()
    passes: Count | None = None
    iterations: Count | None = None
    seed: Seed = 0
    dtype: Literal["float32", "float64"] = "float32"
    workers: Pool = Pool()
    shards: Pool = Pool()
    sync: Literal["bsp", "ssp", "asp"] = "bsp"
    """``bsp``: all workers compute on the same parameters, and an update counts the whole batch. ``ssp``: each worker's
    part is applied when it comes, and parameters lack at most `staleness` iterations. ``asp``: without such a bound."""
    staleness: Staleness | None = None
    """``ssp``: how many iterations before its own the parameters that a worker computes on may lack; 3 when absent."""
    replicas: Literal[0, 1] = 0
    """1: every partition has a copy on another shard that follows it, so that a shard may be lost and nothing is
    computed again but the open iteration. 0: the job then goes back to its newest checkpoint."""
    evaluate: Evaluate = Evaluate()
    checkpoint: Checkpoint = Checkpoint()
    stop: Stop = Stop()
    limits: Limits = Limits()
    feedback: Feedback = Feedback()
    kill: Kill = Kill()
    weight: Annotated[float, Meta(ge=0.01, le=100)] = 1.0
    """How much the job's speed counts beside that of others: under ``fair``, ``optimus`` and ``eps``; under ``srtf``
    for shards alone, and under ``fifo`` not."""
    deadline_s: Positive | None = None
    """Seconds after it was submitted by which it should have ended. A job that runs and would not has three times its
    `weight`, where that counts; one that has not is told of and goes on."""
    deterministic: bool = False
    """Sum the gradients in the order of their intervals: bit for bit the same for the same cut."""
    group: Annotated[str, Meta(max_length=64)] = ""

    def __post_init__(self) -> None:
        """Refuse what could be read and not be written again."""
        _refuse_depth("task_args", self.task_args)

    @property
    def batch_policy(self) -> str:
        """The name of the policy in force."""
        fixed = self.deterministic or self.sync != "bsp"
        return self.batch.policy or (FIXED if fixed else AUTOMATIC)

    @property
    def bound(self) -> int | None:
        """Iterations that a worker's parameters may lack; None under ``bsp``, where that is not asked."""
        match self.sync:
            case "bsp":
                return None
            case "ssp":
                return STALENESS if self.staleness is None else self.staleness
        return UNBOUNDED

    @property
    def held_up(self) -> bool:
        """Whether the slowest worker holds the others up: batches are equal, and all wait for one another."""
        return self.batch_policy == FIXED and self.sync == "bsp"

    @property
    def balanced(self) -> bool:
        """Whether the workers' batches may follow their speeds."""
        return self.batch_policy != FIXED and self.workers.max > 1


def _refuse_depth(name: str, value: object) -> None:
    if _deeper(value, DEEPEST):
        raise ValueError(f"{name} is nested deeper than {DEEPEST} levels")


def _deeper(value: object, levels: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_deeper(part, levels - 1) for part in inner)


def semantic_problems(job: JobDocument) -> list[str]:
    """Faults that no single field shows."""
    problems = []
    if (job.passes is None) == (job.iterations is None):
        problems.append("passes, iterations: give exactly one of the two")
    for name, pool in (("workers", job.workers), ("shards", job.shards)):
        if pool.min > pool.max:
            problems.append(f"{name}: min {pool.min} is above max {pool.max}")
    if job.replicas and job.shards.max < 2:
        problems.append("replicas: 1 needs a second shard; give shards.max 2 or more")
    problems += _feedback_problems(job)
    if job.kill.below_median and not job.group:
        problems.append("kill: below_median compares the job with others of its group; give it one")
    aims = job.stop.target is not None or job.stop.patience > 0
    if (job.stop.metric is not None) != aims:
        problems.append("stop: metric goes with target, patience or both, and these with a metric")
    if job.stop.min_delta and not job.stop.patience:
        problems.append("stop: min_delta goes with patience; give that, too, or leave it out")
    if job.batch.global_ % job.batch.granule:
        problems.append(
            f"batch: global {job.batch.global_} is not a multiple of granule {job.batch.granule}"
        )
    if job.batch.policy is not None and (problem := policy_problem(job.batch.policy)):
        problems.append(f"batch: {problem}")
    elif job.deterministic and job.batch_policy != FIXED:
        problems.append(
            f"batch, deterministic: policy {job.batch.policy!r} cuts batches by timings, which a deterministic job "
            f"must not depend on; give {FIXED!r} or leave one of the two out"
        )
    return problems + _mode_problems(job)


def _feedback_problems(job: JobDocument) -> list[str]:
    """Feedback that would come only after the end, so that the job counted as one without any for all its life.

    Passes and iterations cannot be compared before the data is open.
    """
    return [
        f"feedback, {what}: it is given after {wanted} {what}, which is beyond the job's {whole}; give {whole} or less"
        for what, wanted, whole in (
            ("iterations", job.feedback.iterations, job.iterations),
            ("passes", job.feedback.passes, job.passes),
        )
        if whole is not None and wanted > whole
    ]


def _mode_problems(job: JobDocument) -> list[str]:
    """What does not go with the mode."""
    problems = []
    if job.staleness is not None and job.sync != "ssp":
        problems.append(f"staleness: a bound goes with sync 'ssp', the job says {job.sync!r}")
    if job.sync == "bsp":
        return problems
    if job.deterministic:
        problems.append(
            f"sync, deterministic: under {job.sync!r} gradients are applied as they come, in an order that no two runs "
            "share; give 'bsp' or leave deterministic out"
        )
    if job.optimizer.clip_norm is not None:
        problems.append(
            f"sync, optimizer: clip_norm is about the gradient of a whole iteration, and under {job.sync!r} each "
            "worker's part is applied when it comes; give 'bsp' or leave clip_norm out"
        )
    if job.replicas:
        problems.append(
            f"sync, replicas: under {job.sync!r} there are no replicas in this version, and a lost shard means going "
            "back to the newest checkpoint; give 'bsp' or leave replicas out"
        )
    if job.batch.policy not in (None, FIXED):
        problems.append(
            f"sync, batch: policy {job.batch.policy!r} sizes batches so that workers meet at a barrier, and under "
            f"{job.sync!r} there is none; give {FIXED!r} or leave the policy out"
        )
    return problems
