"""The arrays behind a shard's partitions: two versions of the values, optimizer state, and the sum being collected.

All arrays of one kind lie in one flat, preallocated buffer, cut by partition, so that shared memory can take its
place. Version *v* is in buffer ``v % 2``: writing *v+1* overwrites *v-1* and nothing else.

Threads: for each partition at most one adds or writes at a time, under the partition's lock. Who may read which buffer
is decided by `elps.psshard.core.part`.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elps import optim
from elps.contracts.ids import PartitionId
from elps.contracts.job import JobDocument
from elps.optim.schedule import factor
from elps.psshard.core.part import Advance
from elps.stream.interval import Interval

Array = NDArray[Any]
VALUES = "values"


class Slab:
    """Arrays of some partitions of one job."""

    def __init__(
        self, document: JobDocument, partitions: Sequence[tuple[int, int, int]], iterations: int
    ) -> None:
        self.document = document
        self.dtype = np.dtype(document.dtype)
        self._iterations = iterations
        self._state_names = optim.state_names(document.optimizer)
        self._slices: dict[PartitionId, slice] = {}
        size = 0
        for number, start, stop in partitions:
            self._slices[PartitionId(number)] = slice(size, size + stop - start)
            size += stop - start
        self._values = [np.zeros(size, self.dtype) for _ in range(2)]
        self._sum = np.zeros(size, self.dtype)
        self._state = {name: np.zeros(size, self.dtype) for name in self._state_names}
        self._locks = {p: threading.Lock() for p in self._slices}
        self._filled = dict.fromkeys(
            self._slices, False
        )  #: whether the sum holds anything of this iteration
        self._slots: dict[PartitionId, list[tuple[Interval, Array]]] = {p: [] for p in self._slices}

    @property
    def size_bytes(self) -> int:
        """Bytes of all arrays."""
        return self._sum.nbytes * (3 + len(self._state))

    def __contains__(self, partition: PartitionId) -> bool:
        return partition in self._slices

    def length(self, partition: PartitionId) -> int:
        """Elements of a partition."""
        part = self._slices[partition]
        return int(part.stop - part.start)

    def values(self, partition: PartitionId, version: int) -> Array:
        """A view of a version's values."""
        return self._values[version % 2][self._slices[partition]]

    def load(self, partition: PartitionId, version: int, arrays: Mapping[str, Array]) -> None:
        """Take a partition's values and state as they were at `version`; absent state stays zero."""
        with self._locks[partition]:
            np.copyto(self.values(partition, version), arrays[VALUES])
            for name in self._state_names:
                if name in arrays:
                    np.copyto(self._state[name][self._slices[partition]], arrays[name])

    def add(self, partition: PartitionId, interval: Interval, gradient: Array) -> None:
        """Add an accepted gradient sum; under `deterministic` keep it until its iteration is complete."""
        with self._locks[partition]:
            if self.document.deterministic:
                self._slots[partition].append((interval, gradient.copy()))
                return
            self._add(partition, gradient)

    def _add(self, partition: PartitionId, gradient: Array) -> None:
        into = self._sum[self._slices[partition]]
        if self._filled[partition]:
            optim.add_into(into, gradient)
        else:
            optim.copy_into(into, gradient)
            self._filled[partition] = True

    def write(self, advance: Advance) -> float:
        """Write the next version from the sum and return the learning rate used; 0 when no step was taken."""
        p, part = advance.partition, self._slices[advance.partition]
        spec = self.document.optimizer
        with self._locks[p]:
            for _, gradient in sorted(self._slots[p], key=lambda slot: slot[0]):
                self._add(p, gradient)
            self._slots[p].clear()
            old, new = self.values(p, advance.iteration), self.values(p, advance.iteration + 1)
            if not advance.count:
                np.copyto(new, old)
                self._filled[p] = False
                return 0.0
            if not self._filled[p]:
                self._sum[part] = 0
            lr = spec.lr * factor(self.document.schedule, advance.step, self._iterations)
            state = {name: array[part] for name, array in self._state.items()}
            optim.apply(
                spec, self._sum[part], 1.0 / advance.count, old, new, state, lr, advance.step
            )
            self._filled[p] = False
            return lr

    def copy(self, partition: PartitionId, version: int) -> dict[str, Array]:
        """Copies of a partition's values at `version` and of its state, which must be of the same version."""
        with self._locks[partition]:
            arrays = {
                name: array[self._slices[partition]].copy() for name, array in self._state.items()
            }
            return {VALUES: self.values(partition, version).copy(), **arrays}
