"""What the leader's clock asks its shell to do, in the order given."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from elps.contracts.ids import PartitionId, ShardId, WorkerId
from elps.psshard.core.stopping import NO_TREND, Trend
from elps.stream.interval import Interval

LeaseKind = Literal["train", "evaluate"]


@dataclass(frozen=True)
class Lend:
    """Tell a worker what to do next."""

    worker: WorkerId
    kind: LeaseKind
    version: int
    """The version to pull; for training also the iteration."""
    interval: Interval
    """Of the sample stream, or of the held-out samples."""
    ticket: int
    """Grows with every lending; a call back names the ones it is for."""


@dataclass(frozen=True)
class CallBack:
    """Have every shard answer this worker's pulls up to `ticket` with "ask for a lease"."""

    worker: WorkerId
    ticket: int


@dataclass(frozen=True)
class AnnounceGate:
    """Tell every shard that all partitions hold this version."""

    version: int


@dataclass(frozen=True)
class Clip:
    """Tell every shard what the gradient of this iteration is to be multiplied by."""

    iteration: int
    factor: float


@dataclass(frozen=True)
class WriteCheckpoint:
    """Have every shard copy this version aside and write it. Comes before the version's gate.

    Without `hurry` the shards rest between the pieces that they write, so that training keeps its pace. Said again with
    it, they rest no more.
    """

    version: int
    hurry: bool = False
    """Something waits until it is written."""


@dataclass(frozen=True)
class FindCheckpoint:
    """Look whether the checkpoint of this version is in the store: the job is about to rest on it."""

    version: int


@dataclass(frozen=True)
class Freeze:
    """Have every shard refuse the interval and say whether any of it is accepted."""

    interval: Interval
    attempt: int
    """Grows with every new freeze; the answer names it, so that an answer to an earlier one is known."""


@dataclass(frozen=True)
class Thaw:
    """Have every shard accept the interval again."""

    interval: Interval


@dataclass(frozen=True)
class Grant:
    """Have every shard count the interval as skipped; keep it on the job's list."""

    interval: Interval
    reason: str


@dataclass(frozen=True)
class Move:
    """A partition goes from one shard to another."""

    partition: PartitionId
    source: ShardId
    target: ShardId


@dataclass(frozen=True)
class Follow:
    """Have the sources of these moves send copies to their targets, and then the sum of every version."""

    wave: int
    """Grows with every new set of copies; what is said of an earlier one is known by it."""
    moves: tuple[Move, ...]
    standing: bool = False
    """The copies are replicas: they are there to stay."""


@dataclass(frozen=True)
class Unfollow:
    """Have the copies of a wave forgotten, and of those of its kind before it."""

    wave: int
    standing: bool = False


@dataclass(frozen=True)
class Exchange:
    """Give all shards the new map, under the next epoch, at a version that every partition rests at."""

    wave: int
    placed: dict[PartitionId, ShardId]
    version: int


@dataclass(frozen=True)
class Exchanged:
    """Every shard has taken the new map: tell the trainers."""


@dataclass(frozen=True)
class Dismiss:
    """Give up on a worker: end its connection and have its process ended."""

    worker: WorkerId
    reason: str


@dataclass(frozen=True)
class RollBack:
    """Go back to the newest checkpoint under the next epoch, with this interval skipped."""

    skip: Interval
    reason: str


@dataclass(frozen=True)
class Fail:
    """The job cannot go on."""

    reason: str


@dataclass(frozen=True)
class Finish:
    """The job is done: its last version is checkpointed."""

    version: int
    reason: str


@dataclass(frozen=True)
class Rest:
    """The job is paused: this version is checkpointed and nothing is lent."""

    version: int


@dataclass(frozen=True)
class Evaluated:
    """Means over the held-out samples at a version."""

    version: int
    metrics: dict[str, float]
    trend: Trend = NO_TREND


@dataclass(frozen=True)
class Timing:
    """What one worker spent on one iteration, in seconds, over all its leases in it."""

    samples: int = 0
    compute_s: float = 0.0
    pull_s: float = 0.0
    wait_s: float = 0.0
    push_s: float = 0.0
    """Of the first of them: others are worked on meanwhile."""
    lease_s: float = 0.0
    extra_leases: int = 0
    """Beyond the first; the following are of these alone."""
    extra_samples: int = 0
    extra_s: float = 0.0
    """Computing, a part of `compute_s`."""
    extra_wait_s: float = 0.0
    """Asking for them, a part of `lease_s`, and pushing them, which is not in `push_s`."""

    @property
    def beyond_first(self) -> Timing:
        """The same of a lease that is not the worker's first in the iteration."""
        return replace(
            self,
            extra_leases=1,
            extra_samples=self.samples,
            extra_s=self.compute_s,
            extra_wait_s=self.lease_s,
        )

    def __add__(self, other: Timing) -> Timing:
        return Timing(
            self.samples + other.samples,
            self.compute_s + other.compute_s,
            self.pull_s + other.pull_s,
            self.wait_s + other.wait_s,
            self.push_s + other.push_s,
            self.lease_s + other.lease_s,
            self.extra_leases + other.extra_leases,
            self.extra_samples + other.extra_samples,
            self.extra_s + other.extra_s,
            self.extra_wait_s + other.extra_wait_s,
        )


@dataclass(frozen=True)
class IterationDone:
    """An iteration is complete on every partition and its losses are in."""

    iteration: int
    count: int
    skipped: int
    loss: float | None
    """Mean over the counted samples; None when it is not finite or nothing was counted."""
    duration_s: float
    timings: dict[WorkerId, Timing]


@dataclass(frozen=True)
class Remark:
    """Something worth an event.

    ``worker_joined``, ``worker_lost``, ``worker_left``, ``released``, ``skipped``, ``partitions_moved``,
    ``move_given_up``, ``shards_weighed``, ``replicated``, ``replicas_given_up``.
    """

    what: str
    reason: str
    worker: WorkerId | None = None
    iteration: int | None = None


@dataclass(frozen=True)
class TakeStock:
    """A shard is to say what it has from the term before."""


Command = (
    Lend
    | CallBack
    | AnnounceGate
    | Clip
    | WriteCheckpoint
    | FindCheckpoint
    | Freeze
    | Thaw
    | Grant
    | Follow
    | Unfollow
    | Exchange
    | Exchanged
    | Dismiss
    | RollBack
    | Fail
    | Finish
    | Rest
    | Evaluated
    | IterationDone
    | Remark
)
