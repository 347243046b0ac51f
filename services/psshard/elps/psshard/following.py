"""Copies that follow partitions owned elsewhere: values and state come first, then the sum of every version."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field

from elps.contracts.epoch import Epoch
from elps.contracts.errors import ProtocolError
from elps.contracts.ids import PartitionId
from elps.contracts.job import JobDocument
from elps.psshard.block import Array, Block
from elps.psshard.core.part import Advance
from elps.psshard.live import blocks_of
from elps.psshard.untrained import Segment
from elps.stream.interval import Interval

WaveKey = tuple[Epoch, int]
Bounds = tuple[int, int]
"""First element and end of a partition in the job's flat vector."""


@dataclass
class Copy:
    """A partition that follows, or has followed."""

    block: Block
    bounds: Bounds
    version: int = -1  #: -1: not whole yet
    lacks: set[str] = field(default_factory=set)  #: arrays that have not come


class Following:
    """The copies of the waves under way on one shard. Each partition is fed by one thread; any thread may ask."""

    def __init__(self, document: JobDocument) -> None:
        self._document = document
        self._changed = threading.Condition()
        self._waves: dict[WaveKey, dict[PartitionId, Copy]] = {}

    def expect(
        self,
        key: WaveKey,
        partitions: list[tuple[int, int, int]],
        iterations: int,
        untrained: tuple[Segment, ...] = (),
    ) -> None:
        """Make room for the copies of a wave. A repeat changes nothing."""
        with self._changed:
            if key in self._waves:
                return
            bounds = {PartitionId(n): (start, stop) for n, start, stop in partitions}
            blocks = blocks_of(self._document, partitions, iterations, untrained)
            self._waves[key] = {
                p: Copy(block, bounds[p], lacks=set(block.array_names))
                for p, block in blocks.items()
            }
            self._changed.notify_all()

    def forget(self, key: WaveKey) -> dict[PartitionId, Copy]:
        """The copies of a wave are not fed any more; those that are whole are returned."""
        with self._changed:
            copies = self._waves.pop(key, {})
        return {p: copy for p, copy in copies.items() if copy.version >= 0}

    def wait_for(self, key: WaveKey, timeout_s: float) -> bool:
        """Wait until the leader has told of a wave."""
        with self._changed:
            return self._changed.wait_for(lambda: key in self._waves, timeout_s)

    def array(self, key: WaveKey, partition: PartitionId, name: str, version: int) -> Array | None:
        """Where an array of a copy's state goes; None when the wave is over. `ProtocolError` when it is not wanted."""
        with self._changed:
            copy = self._copy(key, partition)
            if copy is None:
                return None
            if name not in copy.lacks or copy.version >= 0:
                raise ProtocolError(f"{name} of partition {partition} came twice")
            return copy.block.array(name, version)

    def came(
        self,
        key: WaveKey,
        partition: PartitionId,
        name: str,
        version: int,
        steps: int,
        skips: Iterable[Interval] = (),
    ) -> None:
        """An array of a copy's state is there."""
        with self._changed:
            copy = self._copy(key, partition)
            if copy is None:
                return
            copy.lacks.discard(name)
            if not copy.lacks:
                copy.block.at(version, steps, skips)
                copy.version = version

    def block(self, key: WaveKey, partition: PartitionId, iteration: int) -> Block | None:
        """The copy that the sum of an iteration is for; None when the wave is over."""
        with self._changed:
            copy = self._copy(key, partition)
            if copy is None:
                return None
            if copy.version != iteration:
                what = f"the sum of iteration {iteration} for a copy at {copy.version}"
                raise ProtocolError(f"partition {partition}: {what}")
            return copy.block

    def advanced(self, key: WaveKey, advance: Advance) -> None:
        """A copy has taken the step of an iteration."""
        with self._changed:
            copy = self._copy(key, advance.partition)
            if copy is not None:
                copy.version = advance.iteration + 1

    def progress(self, key: WaveKey) -> tuple[int, int]:
        """Version that all copies of a wave hold, -1 while some are missing; and how many hold more than that."""
        with self._changed:
            versions = [copy.version for copy in self._waves.get(key, {}).values()]
        low = min(versions, default=-1)
        return low, sum(v > low for v in versions)

    def at(self, version: int) -> dict[PartitionId, Block]:
        """All copies that hold just this version."""
        with self._changed:
            copies = [item for wave in self._waves.values() for item in wave.items()]
        return {p: copy.block for p, copy in copies if copy.version == version}

    @property
    def size_bytes(self) -> int:
        """Memory of the copies."""
        with self._changed:
            copies = [copy for wave in self._waves.values() for copy in wave.values()]
        return sum(copy.block.size_bytes for copy in copies)

    def _copy(self, key: WaveKey, partition: PartitionId) -> Copy | None:
        wave = self._waves.get(key)
        if wave is None:
            return None
        copy = wave.get(partition)
        if copy is None:
            raise ProtocolError(f"partition {partition} is not to be followed here")
        return copy
