"""One shard's part of a job: which gradients its partitions accept, and when each may go to its next version.

The theory (docs/protocol.md has the whole of it):

* A partition at version *t* collects iteration *t*. It accepts an interval only if it overlaps nothing accepted,
  skipped or frozen; so what it accepts is disjoint, and since leases only ever subdivide, it ends as a tiling of the
  iteration whichever holders reach it first.
* Version *t+1* is due when the tiling is complete, every accepted interval has really been added, and the gate for *t*
  is announced: every partition of the job then holds *t*, so a worker that must redo a part of *t* can still pull it
  (each partition keeps *t* until it starts to write *t+2*).
* Every message carries an epoch, and only those of the one in force count. A new epoch is a new `Part`: what the old
  one had collected is gone, and whoever is still at work on it finishes with the old object.

The machine holds no arrays. The shell adds a gradient after `offer` said ACCEPT and before it calls `added`; it writes
version *t+1* between `due` and `advanced`. A shell that reads a version asks `reading` again when it is through: GONE
means that what it read is mixed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from elps.contracts.epoch import Epoch
from elps.contracts.errors import IllegalEvent
from elps.contracts.ids import PartitionId
from elps.stream.geometry import Geometry
from elps.stream.interval import Interval, IntervalSet


class Verdict(Enum):
    """Answer to an offered gradient."""

    ACCEPT = 0
    """Add it, then call `added`."""
    HAVE_IT = 1
    """Every sample of it, or some, is already counted or the iteration is over: drop it, all is well."""
    FROZEN = 2
    """A skip of an overlapping interval is being decided: drop it; the leader will lend the interval again."""
    STALE = 3
    """The epoch is not the one in force."""
    EARLY = 4
    """For an iteration this partition has not reached; a correct worker cannot send it."""


class Reading(Enum):
    """Whether a version can be read now."""

    READY = 0
    NOT_YET = 1
    GONE = 2


@dataclass(frozen=True)
class Advance:
    """Write version ``iteration + 1`` of a partition."""

    partition: PartitionId
    iteration: int
    count: int
    """Samples really counted; 0 means that the values go over unchanged and no step is taken."""
    step: int
    """Number of this optimizer step, from 1; of the newest one when `count` is 0."""
    skipped: tuple[Interval, ...] = ()
    """What of the iteration is not counted: a copy that takes the step has to know it, should it take over."""
    factor: float = 1.0
    """On the mean gradient, where it is clipped: the same on every partition (`clipping`)."""


@dataclass
class _Partition:
    first: int  #: version it began at; nothing older was ever here
    version: int  #: newest complete version; iteration `version` is being collected
    steps: int  #: optimizer steps taken up to `version`
    #: disjoint, inside iteration `version`, counted
    accepted: IntervalSet = field(default_factory=IntervalSet)
    #: iteration to accepted intervals of it that the shell has not finished adding; >= 0
    adding: Counter[int] = field(default_factory=Counter)
    advancing: bool = False  #: version + 1 is being written over version - 1
    measuring: bool = False  #: the norm of iteration `version` is being measured, or is known
    norm: float | None = None  #: of iteration `version`


class Part:
    """The partitions of one job on one shard under ``bsp``; `Applying` is the one of the other modes."""

    def __init__(
        self,
        epoch: Epoch,
        geometry: Geometry,
        skips: Iterable[Interval] = (),
        *,
        clips: bool = False,
    ) -> None:
        """`clips`: no step is taken before the factor on its gradient is told."""
        self.epoch = epoch  #: the one in force; never changes
        self.geometry = geometry
        self.gate = -1  #: highest announced; every partition of the job holds this version
        self._partitions: dict[PartitionId, _Partition] = {}
        self._skips = IntervalSet(skips)  #: granted: tiles without a contribution
        self._frozen: set[Interval] = set()  #: a skip of these is being decided
        self.clips = clips  #: never changes
        self._factors: dict[int, float] = {}  #: iteration to what the leader has told of it

    # --- what the leader says -------------------------------------------------------------------------------------

    def hold(
        self,
        partition: PartitionId,
        version: int,
        steps: int,
        first: int | None = None,
        applied: Iterable[Interval] = (),
    ) -> None:
        """A partition's values are here at `version`, and at `first` if that is the one before it.

        `applied` is only known without a barrier: what is in the values of later iterations. Repeats change nothing.
        """
        if partition not in self._partitions:
            self._partitions[partition] = _Partition(
                version if first is None else first, version, steps, IntervalSet(applied)
            )
            self.gate = max(self.gate, version - 1)  # it was left behind once, so it was announced

    def announce_gate(self, epoch: Epoch, version: int) -> None:
        """Every partition of the job holds `version`. Holds until a rollback."""
        if epoch == self.epoch:
            self.gate = max(self.gate, version)

    def freeze(self, epoch: Epoch, interval: Interval) -> bool:
        """Refuse whatever overlaps `interval` until it is granted or thawed.

        Returns whether no partition here has accepted anything that overlaps it, or completed its iteration.
        """
        if epoch != self.epoch:
            return False
        self._frozen.add(interval)
        t = self.geometry.iteration_of(interval.lo)
        return all(
            p.version <= t and not p.accepted.overlaps(interval) for p in self._partitions.values()
        )

    def thaw(self, epoch: Epoch, interval: Interval) -> None:
        """The skip was not granted: the interval may be accepted again."""
        if epoch == self.epoch:
            self._frozen.discard(interval)

    def grant(self, epoch: Epoch, interval: Interval) -> None:
        """The interval is skipped: it counts as a tile that adds nothing. Repeats change nothing."""
        if epoch != self.epoch:
            return
        if interval not in self._skips:
            t = self.geometry.iteration_of(interval.lo)
            counted = any(
                p.accepted.overlaps(interval) or p.first <= t < p.version
                for p in self._partitions.values()
            )
            if counted or not self._skips.add(interval):
                what = f"skip of {interval} granted, although a part of it was accepted or skipped"
                raise IllegalEvent(what)
        self._frozen.discard(interval)

    # --- gradients ------------------------------------------------------------------------------------------------

    def offer(
        self, epoch: Epoch, iteration: int, interval: Interval, partition: PartitionId
    ) -> Verdict:
        """Judge a gradient that has been received whole. On ACCEPT the interval counts from now on."""
        if epoch != self.epoch:
            return Verdict.STALE
        p = self._partitions.get(partition)
        if p is None or iteration > self._newest(p):
            return Verdict.EARLY
        if iteration < p.version:
            return Verdict.HAVE_IT
        if not self.geometry.fits(interval, iteration):
            raise IllegalEvent(f"{interval} is not a part of iteration {iteration} cut at granules")
        if self._skips.overlaps(interval) or p.accepted.overlaps(interval):
            return Verdict.HAVE_IT
        if any(interval.overlaps(f) for f in self._frozen):
            return Verdict.FROZEN
        p.accepted.add(interval)
        p.adding[iteration] += 1
        return Verdict.ACCEPT

    def _newest(self, p: _Partition, /) -> int:
        """The newest iteration that a gradient can be of."""
        return p.version

    def leaves(self, _version: int, _iteration: int, /) -> bool:
        """Whether adding a gradient of an iteration changes what is read of a version."""
        return False

    def added(self, partition: PartitionId, iteration: int) -> None:
        """An accepted interval's gradient is in the sum (or it had nothing to add)."""
        p = self._partitions[partition]
        if p.adding[iteration] < 1:
            raise IllegalEvent(f"partition {partition}: nothing accepted is waiting to be added")
        p.adding -= Counter((iteration,))  # which drops a count of 0

    # --- versions -------------------------------------------------------------------------------------------------

    def due(self, partition: PartitionId) -> Advance | None:
        """Begin the partition's next version if its iteration is complete; the shell then writes it."""
        p = self._partitions[partition]
        if self.clips and p.version not in self._factors:
            return None
        step = self._step(partition, p)
        p.advancing |= step is not None
        return step

    def _step(self, partition: PartitionId, p: _Partition) -> Advance | None:
        """The step that is due, if it is."""
        if p.advancing or p.adding[p.version] or self.gate < p.version:
            return None
        whole = self.geometry.iteration(p.version)
        skipped = tuple(self._skips.within(whole))
        if p.accepted.size + sum(s.size for s in skipped) < whole.size:
            return None
        steps = p.steps + (p.accepted.size > 0)
        factor = self._factors.get(p.version, 1.0)
        return Advance(partition, p.version, p.accepted.size, steps, skipped, factor)

    def unmeasured(self, partition: PartitionId) -> Advance | None:
        """A complete iteration of which the norm is wanted: the shell then measures it. Each is given once."""
        p = self._partitions[partition]
        if not self.clips or p.measuring or p.version in self._factors:
            return None
        step = self._step(partition, p)
        p.measuring |= step is not None
        return step

    def measured(self, step: Advance, norm: float) -> None:
        """The norm of the partition's part of the mean gradient; 0 if nothing is counted."""
        p = self._partitions[step.partition]
        if not p.measuring or p.version != step.iteration:
            raise IllegalEvent(f"partition {step.partition}: nothing is being measured")
        p.norm = norm

    def norms(self) -> tuple[int, dict[PartitionId, float]] | None:
        """The oldest iteration and the norms of all partitions that collect it, once every one of them is measured."""
        low = min((p.version for p in self._partitions.values()), default=-1)
        if low in self._factors:
            return None
        norms = {pid: p.norm for pid, p in self._partitions.items() if p.version == low}
        known = {pid: norm for pid, norm in norms.items() if norm is not None}
        return (low, known) if known and len(known) == len(norms) else None

    def clip(self, epoch: Epoch, iteration: int, factor: float) -> None:
        """What the gradient of an iteration is to be multiplied by. Repeats change nothing."""
        if epoch == self.epoch:
            low = min((p.version for p in self._partitions.values()), default=iteration)
            self._factors = {t: f for t, f in self._factors.items() if t >= low}
            self._factors[iteration] = factor

    def advanced(self, done: Advance) -> None:
        """The next version is written."""
        p = self._partitions[done.partition]
        if not p.advancing or p.version != done.iteration:
            raise IllegalEvent(
                f"partition {done.partition} is not being advanced from {done.iteration}"
            )
        p.version, p.steps, p.advancing = p.version + 1, done.step, False
        p.measuring, p.norm = False, None
        p.accepted.clear()

    def reading(self, partition: PartitionId, version: int, *, newest: bool = False) -> Reading:
        """Whether `version` of a partition can be read. Nobody asks for the `newest` values: they are of a version."""
        if newest:
            raise IllegalEvent("the newest values are asked for, of a job with a barrier")
        p = self._partitions.get(partition)
        if p is None or version > p.version:
            return Reading.NOT_YET
        oldest = max(p.version if p.advancing else p.version - 1, p.first)
        return Reading.READY if version >= oldest else Reading.GONE

    def rests_at(self, version: int) -> bool:
        """Whether every partition holds `version` as its newest and none has begun to leave it."""
        return all(p.version == version and not p.advancing for p in self._partitions.values())

    @property
    def skips(self) -> list[Interval]:
        """Granted ones, in order."""
        return list(self._skips)

    @property
    def partitions(self) -> list[PartitionId]:
        """All partitions held, in order."""
        return sorted(self._partitions)

    def version(self, partition: PartitionId) -> int:
        """Newest complete version of a partition."""
        return self._partitions[partition].version

    def steps(self, partition: PartitionId) -> int:
        """Optimizer steps behind the newest complete version."""
        return self._partitions[partition].steps

    def missing(self, partition: PartitionId) -> list[Interval]:
        """What the partition still lacks of the iteration it collects."""
        p = self._partitions[partition]
        whole = self.geometry.iteration(p.version)
        have = IntervalSet([*p.accepted, *self._skips.within(whole)])
        return list(have.gaps(whole))

    def check_invariants(self) -> None:
        """Raise `AssertionError` if a state that cannot be has come about; for tests."""
        for pid, p in self._partitions.items():
            whole = self.geometry.iteration(p.version)
            assert all(n > 0 for n in p.adding.values()), pid
            assert all(whole.contains(i) for i in p.accepted), pid
            assert not any(self._skips.overlaps(i) for i in p.accepted), pid
            assert p.version <= self.gate + 1, pid
