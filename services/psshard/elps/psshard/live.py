"""The arrays behind one partition under ``ssp`` and ``asp``: one copy of the values, changed by each gradient.

A gradient sum over an interval is applied as the mean over it, at the rate times |interval| / X: for plain SGD an
iteration in pieces comes to what it does at once, if the gradients are the same. Optimizers with a memory take one step
for each piece; Adam counts these, the schedule goes by the iteration.

Whoever reads copies under the block's lock, so nobody sees half a step.
"""

from __future__ import annotations

import time
from collections import defaultdict
from copy import deepcopy
from typing import Any

import numpy as np

from elps import optim
from elps.contracts.ids import PartitionId
from elps.contracts.job import JobDocument
from elps.optim.schedule import factor
from elps.psshard.block import Array, Block, Sealed
from elps.psshard.core.holes import merged
from elps.psshard.core.part import Advance
from elps.psshard.untrained import Segment, Untrained
from elps.stream.interval import Interval


class LiveBlock(Block):
    """One partition of `size` elements; see `Block`, of which it keeps the interface.

    A version is what the values are while the job stands still at it; they are asked for by number only then.
    """

    def __init__(self, document: JobDocument, size: int, iterations: int) -> None:
        super().__init__(document, size, iterations)
        names = list(self._state)
        arrays = self._arrays(1 + len(names))
        self._values = (arrays[0], arrays[0])
        self._sum = np.zeros(0, self.dtype)
        self._state = dict(zip(names, arrays[1:], strict=True))
        #: iteration, from the version on, to what of it is in the values
        self._applied: defaultdict[int, list[Interval]] = defaultdict(list)

    def heirloom(self) -> Block:
        """A block for the epoch to come, with the values and all that is known of them; this one is sealed."""
        heir = super().heirloom()
        assert isinstance(heir, LiveBlock)
        heir._applied = deepcopy(self._applied)
        return heir

    def applied(self) -> tuple[Interval, ...]:
        """What is in the values of the iterations from the newest version on, in order."""
        with self._lock:
            return tuple(i for t in sorted(self._applied) for i in merged(self._applied[t]))

    @property
    def size_bytes(self) -> int:
        """Bytes of all arrays."""
        return self.size * self.dtype.itemsize * (1 + len(self._state))

    def readable(self, version: int) -> Array:
        """A copy of the values."""
        with self._lock:
            return self.values(version).copy()

    def copy_into(self, version: int, into: Array) -> None:
        """Copy the values out."""
        with self._lock:
            np.copyto(into, self.values(version))

    def add(self, iteration: int, interval: Interval, gradient: Array | None) -> float:
        """Apply an accepted gradient sum; None is one of zeros, which counts as a step all the same."""
        document, spec = self._document, self._document.optimizer
        total: np.ndarray[Any, Any] = (
            np.zeros(self.size, self.dtype) if gradient is None else gradient
        )
        share = interval.size / document.batch.global_
        lr = spec.lr * factor(document.schedule, iteration + 1, self._iterations) * share
        with self._lock:
            if self._sealed:
                raise Sealed
            began = time.monotonic()
            self._steps += 1
            now, mean = self.values(0), 1.0 / interval.size
            optim.apply(spec, total, mean, now, now, self._state, lr, self._steps)
            self._applied[iteration].append(interval)
            return time.monotonic() - began

    def write(self, advance: Advance) -> float:
        """All of an iteration is applied: only the number changes."""
        with self._lock:
            if self._sealed:
                raise Sealed
            self._version = advance.iteration + 1
            self._applied.pop(advance.iteration, None)
            self._skips.update(advance.skipped)
            return 0.0

    @property
    def oldest(self) -> int:
        """The oldest version that can be read: the newest."""
        with self._lock:
            return self._version


def blocks_of(
    document: JobDocument,
    partitions: list[tuple[int, int, int]],
    iterations: int,
    untrained: tuple[Segment, ...] = (),
) -> dict[PartitionId, Block]:
    """Empty blocks for partitions given by number, first element and end."""
    return {
        PartitionId(n): (
            Block(document, stop - start, iterations, Untrained(untrained, start, stop))
            if document.bound is None
            else LiveBlock(document, stop - start, iterations)
        )
        for n, start, stop in partitions
    }
