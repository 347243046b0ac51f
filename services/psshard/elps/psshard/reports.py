"""What a shard tells the leader of a job about its share in it."""

from __future__ import annotations

from dataclasses import dataclass

from elps.contracts.epoch import Epoch
from elps.contracts.ids import PartitionId
from elps.psshard.core.inheriting import Stock
from elps.stream.interval import Interval


@dataclass(frozen=True)
class Progressed:
    """All partitions here hold `version`."""

    epoch: Epoch
    version: int


@dataclass(frozen=True)
class Measured:
    """Norms of what the partitions here, that collect `iteration`, have of its mean gradient."""

    epoch: Epoch
    iteration: int
    norms: dict[PartitionId, float]


@dataclass(frozen=True)
class Frozen:
    """Answer to a freeze."""

    epoch: Epoch
    interval: Interval
    attempt: int
    clean: bool


@dataclass(frozen=True)
class Written:
    """Every chunk of a checkpoint is in the store. Partition to (steps, array name to digest)."""

    epoch: Epoch
    version: int
    partitions: dict[PartitionId, tuple[int, dict[str, int]]]


@dataclass(frozen=True)
class Trouble:
    """The shard cannot do what the assignment asks."""

    epoch: Epoch
    reason: str
    damaged: bool = False
    """The checkpoint cannot be loaded; an older one may do."""
    lost: bool = False
    """Values that were to be here are not: only a checkpoint brings them back."""


@dataclass(frozen=True)
class Missed:
    """A checkpoint was asked for after a partition had left its version."""

    epoch: Epoch
    version: int


@dataclass(frozen=True)
class Followed:
    """How far the copies of a wave are on this shard."""

    epoch: Epoch
    wave: int
    have: int
    """Copies that are there; once all are, those that hold more than `version`."""
    version: int
    """All copies hold it; -1 while some are missing."""


@dataclass(frozen=True)
class Unfollowed:
    """The copies of a wave cannot be made here, or cannot be kept."""

    epoch: Epoch
    wave: int
    reason: str


@dataclass(frozen=True)
class Stocked:
    """What the shard has from the term before."""

    epoch: Epoch
    stock: Stock


@dataclass(frozen=True)
class Worked:
    """What the shard works for a byte of the job and a version, lately; comes with each beat of the link."""

    epoch: Epoch
    s_per_byte: float


Report = (
    Progressed
    | Measured
    | Frozen
    | Written
    | Trouble
    | Missed
    | Followed
    | Unfollowed
    | Stocked
    | Worked
)
