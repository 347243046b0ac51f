"""A version copied aside while training goes on."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from elps.contracts.ids import PartitionId
from elps.psshard.slab import Array, Slab


class Aside:
    """Copies of all partitions of a shard at one version.

    A background thread takes them one by one; a partition that is about to leave the version takes its own first.
    """

    def __init__(
        self, version: int, steps: Mapping[PartitionId, int], slab: Slab, *, hurry: bool = False
    ) -> None:
        self.version = version
        self.steps = dict(steps)  #: optimizer steps behind the version
        self.partitions = sorted(steps)
        self._slab = slab
        self._locks = {p: threading.Lock() for p in self.partitions}
        self._copies: dict[PartitionId, dict[str, Array]] = {}
        self._hurry = threading.Event()
        if hurry:
            self.hasten()

    def take(self, partition: PartitionId) -> dict[str, Array]:
        """The copy of a partition, made now if nobody has; the partition must not have left the version."""
        with self._locks[partition]:
            if partition not in self._copies:
                self._copies[partition] = self._slab.copy(partition, self.version)
            return self._copies[partition]

    def hasten(self) -> None:
        """Whoever writes it rests no more: something waits for it, or it is wanted no more."""
        self._hurry.set()

    def rest(self, seconds: float) -> None:
        """Leave the machine to the training for a while, unless there is a hurry."""
        self._hurry.wait(seconds)

    def release(self, partition: PartitionId) -> None:
        """Its copy is written: let the memory go. It stays known as taken."""
        with self._locks[partition]:
            self._copies[partition] = {}
