"""A version copied aside while training goes on."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from elps.contracts.epoch import Epoch
from elps.contracts.ids import PartitionId
from elps.psshard.reports import Missed, Report, Written
from elps.psshard.shelf import Shelf
from elps.psshard.slab import Array, Slab
from elps.psshard.voice import Voice


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


class SettingAside(Shelf, Voice):
    """The side of a shard's share in a job that begins its checkpoints, and tells when one is written."""

    _aside: Aside | None
    _written: Written | None  #: of `_aside`, once it is in the store

    def checkpoint(self, epoch: Epoch, version: int, *, hurry: bool = False) -> Aside | None:
        """Begin to copy a version aside; in a hurry, whoever writes it does not rest.

        None when there is nothing to begin: the epoch is stale, the copy is being written, or the version was left
        before the leader's word came. One that was written already is reported again; as long as the partitions rest
        at its version it is written again, since the store may have lost it.
        """
        again: Report | None = None
        with self._lock:
            if epoch != self._epoch or self._part is None or self._slab is None:
                return None
            known = self._aside is not None and self._aside.version == version
            rests = self._part.rests_at(version)
            if known and not (rests and self._written is not None):
                again = self._written
                if hurry and self._aside is not None:
                    self._aside.hasten()
            elif rests:
                self._drop_aside()
                steps = {p: self._part.steps(p) for p in self._part.partitions}
                self._aside = Aside(version, steps, self._slab, hurry=hurry)
                return self._aside
            else:
                again = Missed(epoch, version)
        if again is not None:
            self.report(again)
        return None

    def wrote(self, aside: Aside, digests: dict[PartitionId, dict[str, int]]) -> None:
        """Every chunk of a copy is in the store."""
        with self._lock:
            if aside is not self._aside:
                return
            self._written = Written(
                self._epoch,
                aside.version,
                {p: (aside.steps[p], digests[p]) for p in aside.partitions},
            )
            report = self._written
        self.report(report)

    def current(self, aside: Aside) -> bool:
        """Whether a copy is still wanted."""
        with self._lock:
            return aside is self._aside and not self._closed

    def _drop_aside(self) -> None:
        """Whoever writes it is not to rest before it sees that it is wanted no more."""
        if self._aside is not None:
            self._aside.hasten()
        self._aside, self._written = None, None
