"""All blocks of one job on a shard, under one epoch."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from elps.contracts.ids import PartitionId
from elps.contracts.job import JobDocument
from elps.psshard.block import VALUES, Array, Block
from elps.psshard.core.part import Advance
from elps.stream.interval import Interval

__all__ = ["VALUES", "Array", "Slab"]


class Slab:
    """Blocks by partition; which ones there are never changes."""

    def __init__(self, document: JobDocument, blocks: Mapping[PartitionId, Block]) -> None:
        self.dtype = np.dtype(document.dtype)
        self._blocks = dict(blocks)

    @property
    def size_bytes(self) -> int:
        """Bytes of all arrays."""
        return sum(block.size_bytes for block in self._blocks.values())

    def __contains__(self, partition: PartitionId) -> bool:
        return partition in self._blocks

    def __getitem__(self, partition: PartitionId) -> Block:
        return self._blocks[partition]

    def blocks(self, without: Collection[PartitionId] = ()) -> dict[PartitionId, Block]:
        """All of them but some."""
        return {p: block for p, block in self._blocks.items() if p not in without}

    def length(self, partition: PartitionId) -> int:
        """Elements of a partition."""
        return self._blocks[partition].size

    def values(self, partition: PartitionId, version: int) -> Array:
        """A view of a version's values."""
        return self._blocks[partition].values(version)

    def readable(self, partition: PartitionId, version: int) -> Array:
        """A version's values to be sent; see `Block.readable`."""
        return self._blocks[partition].readable(version)

    def copy_into(self, partition: PartitionId, version: int, into: Array) -> None:
        """Copy a version's values out."""
        self._blocks[partition].copy_into(version, into)

    def load(
        self, partition: PartitionId, version: int, steps: int, arrays: Mapping[str, Array]
    ) -> None:
        """Take a partition's values and state as they were at `version`."""
        self._blocks[partition].load(version, steps, arrays)

    def add(
        self, partition: PartitionId, iteration: int, interval: Interval, gradient: Array | None
    ) -> float:
        """Add an accepted gradient sum; None adds nothing. Seconds that it took, see `Block.add`."""
        return self._blocks[partition].add(iteration, interval, gradient)

    def write(self, advance: Advance) -> float:
        """Write a partition's next version; see `Block.write`."""
        return self._blocks[advance.partition].write(advance)

    def norm(self, advance: Advance) -> float:
        """Norm of a partition's part of the mean gradient; see `Block.norm`."""
        return self._blocks[advance.partition].norm(advance)

    def copy(self, partition: PartitionId, version: int) -> dict[str, Array]:
        """Copies of a partition's values at `version` and of its state."""
        return self._blocks[partition].copy(version)
