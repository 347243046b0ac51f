"""One shard's part of a job under ``ssp`` and ``asp``: a gradient is applied when it comes, once.

The theory (docs/protocol.md, "Without a barrier"):

* A partition keeps the set of intervals that it has applied: all of the iterations before its *version*, and what it
  accepted of later ones. It accepts an interval only if it overlaps nothing of that set, skipped or frozen. So every
  sample counts once on every partition, in whatever order and by whomever it comes.
* That set is kept with the values, and goes with them to whoever goes on with the partition.
* The version is the oldest iteration of which something is missing. It rises by itself; nothing is written then.
* The gate of *t* says that iteration *t* is opened: pieces of it are lent. Who trains on *t* pulls first, from every
  shard, and a pull waits for the gate; so no gradient comes before it, and what the leader had done at the boundary
  before (a checkpoint, an evaluation, another map) is heard of everywhere before anything newer is applied.
* A pull for training gives the newest values, which hold at least all iterations more than `staleness` before its own.
* A pull of a version, for an evaluation, is answered while the partition rests there, before the gate is announced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from elps.contracts.epoch import Epoch
from elps.contracts.ids import PartitionId
from elps.psshard.core.part import Advance, Part, Reading, _Partition
from elps.stream.geometry import Geometry
from elps.stream.interval import Interval


class Applying(Part):
    """The partitions of one job on one shard; see `Part`, of which it keeps the interface.

    The shell applies a gradient between `offer` and `added`. What `due` gives changes no values: it is only the number.
    """

    def __init__(
        self, epoch: Epoch, geometry: Geometry, skips: Iterable[Interval] = (), *, staleness: int
    ) -> None:
        super().__init__(epoch, geometry, skips)
        self._staleness = staleness  #: iterations

    def _newest(self, _: _Partition, /) -> int:
        return self.gate

    def leaves(self, version: int, iteration: int, /) -> bool:
        """Whether applying a gradient of an iteration changes what is read of a version."""
        return iteration >= version

    def added(self, partition: PartitionId, iteration: int) -> None:
        """An accepted interval's gradient is applied: one more step."""
        super().added(partition, iteration)
        self._partitions[partition].steps += 1

    def due(self, partition: PartitionId) -> Advance | None:
        """Begin the partition's next version if all of its oldest iteration is applied."""
        p = self._partitions[partition]
        if p.advancing or p.adding[p.version] or self.gate < p.version:
            return None
        whole = self.geometry.iteration(p.version)
        skipped = tuple(self._skips.within(whole))
        count = sum(i.size for i in p.accepted.within(whole))
        if count + sum(s.size for s in skipped) < whole.size:
            return None
        p.advancing = True
        return Advance(partition, p.version, count, p.steps, skipped)

    def advanced(self, done: Advance) -> None:
        """The next version is known as such. What others have applied meanwhile stays."""
        p = self._partitions[done.partition]
        steps, later = p.steps, [i for i in p.accepted if i.lo >= self._end(done.iteration)]
        super().advanced(done)
        p.steps = steps
        for interval in later:
            p.accepted.add(interval)

    def _end(self, iteration: int) -> int:
        return self.geometry.iteration(iteration).hi

    def reading(self, partition: PartitionId, version: int, *, newest: bool = False) -> Reading:
        """Whether the values can be read for training on iteration `version` (`newest`), or as just this version."""
        p = self._partitions.get(partition)
        if p is None:
            return Reading.NOT_YET
        if newest:
            fresh = p.version >= version - self._staleness and self.gate >= version
            return Reading.READY if fresh else Reading.NOT_YET
        if version > p.version:
            return Reading.NOT_YET
        rests = version == p.version and self.gate < version
        return Reading.READY if rests else Reading.GONE

    def rests_at(self, version: int) -> bool:
        """Whether every partition holds just this version: nothing newer is applied."""
        return all(p.version == version and not p.accepted for p in self._partitions.values())

    def check_invariants(self) -> None:
        """Raise `AssertionError` if a state that cannot be has come about; for tests."""
        for pid, p in self._partitions.items():
            assert all(n > 0 for n in p.adding.values()), pid
            assert all(t >= p.version for t in p.adding), pid
            assert all(i.lo >= self.geometry.iteration(p.version).lo for i in p.accepted), pid
            assert not any(self._skips.overlaps(i) for i in p.accepted), pid
            assert p.version <= self.gate + 1, pid


def part_for(
    staleness: int | None, *, clips: bool = False
) -> Callable[[Epoch, Geometry, Iterable[Interval]], Part]:
    """The part that a job needs; None is ``bsp``, where gradients may be clipped."""
    return (
        partial(Part, clips=clips) if staleness is None else partial(Applying, staleness=staleness)
    )
