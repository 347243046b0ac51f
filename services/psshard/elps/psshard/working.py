"""A shard's work on one job, timed: so slow machines are known, and others can be emulated."""

from __future__ import annotations

import time

from elps.contracts.ids import PartitionId
from elps.psshard.core.labour import Labour
from elps.psshard.core.part import Advance
from elps.psshard.reports import Worked
from elps.psshard.shelf import Shelf
from elps.psshard.slab import Array, Slab
from elps.runtime.emulating import Machine
from elps.stream.interval import Interval


class Working(Shelf):
    """Adds gradients up and writes versions, in as much time as the machine takes that this one is to be like."""

    _machine: Machine
    _labour: Labour

    def worked(self) -> Worked | None:
        """What is worked here for a byte and a version; None while that is not known."""
        with self._lock:
            s_per_byte = self._labour.s_per_byte
            return Worked(self._epoch, s_per_byte) if s_per_byte is not None else None

    def _add(
        self,
        slab: Slab,
        partition: PartitionId,
        iteration: int,
        interval: Interval,
        gradient: Array | None,
    ) -> None:
        took_s = self._machine.drawn_out(slab.add(partition, iteration, interval, gradient))
        with self._lock:
            self._labour.added(took_s)

    def _write(self, slab: Slab, advance: Advance) -> None:
        began = time.monotonic()
        slab.write(advance)
        took_s = self._machine.drawn_out(time.monotonic() - began)
        size_bytes = slab.length(advance.partition) * slab.dtype.itemsize
        with self._lock:
            self._labour.wrote(took_s, size_bytes, time.monotonic())
