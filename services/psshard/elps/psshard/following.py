"""Copies that follow partitions owned elsewhere: values and state come first, then the sum of every version."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from elps.contracts.epoch import Epoch
from elps.contracts.errors import ProtocolError
from elps.contracts.ids import PartitionId
from elps.contracts.job import JobDocument
from elps.psshard.block import Array, Block, blocks_of
from elps.psshard.core.part import Advance

WaveKey = tuple[Epoch, int]


@dataclass
class _Copy:
    block: Block
    version: int = -1  #: -1: not whole yet
    lacks: set[str] = field(default_factory=set)  #: arrays that have not come


class Following:
    """The copies of one wave on one shard. Each partition is fed by one thread; any thread may ask."""

    def __init__(self, document: JobDocument) -> None:
        self._document = document
        self._changed = threading.Condition()
        self._key: WaveKey | None = None
        self._copies: dict[PartitionId, _Copy] = {}

    def expect(self, key: WaveKey, partitions: list[tuple[int, int, int]], iterations: int) -> None:
        """Make room for the copies of a wave; those of another one are forgotten. A repeat changes nothing."""
        with self._changed:
            if key == self._key:
                return
            self._key = key
            self._copies = {
                p: _Copy(block, lacks=set(block.array_names))
                for p, block in blocks_of(self._document, partitions, iterations).items()
            }
            self._changed.notify_all()

    def forget(self) -> None:
        """No copies are wanted any more."""
        with self._changed:
            self._key, self._copies = None, {}

    def wait_for(self, key: WaveKey, timeout_s: float) -> bool:
        """Wait until the leader has told of a wave."""
        with self._changed:
            return self._changed.wait_for(lambda: self._key == key, timeout_s)

    def array(self, key: WaveKey, partition: PartitionId, name: str, version: int) -> Array | None:
        """Where an array of a copy's state goes; None when the wave is over. `ProtocolError` when it is not wanted."""
        with self._changed:
            if key != self._key:
                return None
            copy = self._copy(partition)
            if name not in copy.lacks or copy.version >= 0:
                raise ProtocolError(f"{name} of partition {partition} came twice")
            return copy.block.array(name, version)

    def came(
        self, key: WaveKey, partition: PartitionId, name: str, version: int, steps: int
    ) -> None:
        """An array of a copy's state is there."""
        with self._changed:
            if key != self._key:
                return
            copy = self._copy(partition)
            copy.lacks.discard(name)
            if not copy.lacks:
                copy.block.at(version, steps)
                copy.version = version

    def block(self, key: WaveKey, partition: PartitionId, iteration: int) -> Block | None:
        """The copy that the sum of an iteration is for; None when the wave is over."""
        with self._changed:
            if key != self._key:
                return None
            copy = self._copy(partition)
            if copy.version != iteration:
                what = f"the sum of iteration {iteration} for a copy at {copy.version}"
                raise ProtocolError(f"partition {partition}: {what}")
            return copy.block

    def advanced(self, key: WaveKey, advance: Advance) -> None:
        """A copy has taken the step of an iteration."""
        with self._changed:
            if key == self._key:
                self._copy(advance.partition).version = advance.iteration + 1

    def progress(self, key: WaveKey) -> tuple[int, int]:
        """Copies that are there, and the version that all of them hold; -1 while some are missing."""
        with self._changed:
            if key != self._key:
                return 0, -1
            versions = [copy.version for copy in self._copies.values()]
            return sum(v >= 0 for v in versions), min(versions, default=-1)

    def at(self, version: int) -> dict[PartitionId, Block]:
        """All copies that hold just this version."""
        with self._changed:
            return {p: copy.block for p, copy in self._copies.items() if copy.version == version}

    @property
    def size_bytes(self) -> int:
        """Memory of the copies."""
        with self._changed:
            return sum(copy.block.size_bytes for copy in self._copies.values())

    def _copy(self, partition: PartitionId) -> _Copy:
        copy = self._copies.get(partition)
        if copy is None:
            raise ProtocolError(f"partition {partition} is not to be followed here")
        return copy
