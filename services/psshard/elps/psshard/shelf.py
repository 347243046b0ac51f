"""The side of a shard's share in a job that pulls use: waiting for versions, and reading them."""

from __future__ import annotations

import threading

from elps.contracts.epoch import NO_EPOCH, Epoch, Standing, standing
from elps.contracts.ids import PartitionId, WorkerId
from elps.psshard.core.part import Part, Reading
from elps.psshard.slab import Array, Slab
from elps.wire.frames import Status


class Shelf:
    """Versions that can be read; any thread may ask. What is on it is `Member`'s to change, under the lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._epoch: Epoch = NO_EPOCH  #: of the newest assignment
        self._part: Part | None = None
        self._slab: Slab | None = None
        self._called_back: dict[WorkerId, int] = {}  #: pulls up to this ticket are not waited for
        self._closed = False

    def wait_for(
        self,
        epoch: Epoch,
        partition: PartitionId,
        version: int,
        worker: WorkerId,
        ticket: int,
        timeout_s: float,
        *,
        newest: bool = False,
    ) -> Status | None:
        """Wait until a version can be read: OK, or why it cannot; None when the time passes.

        `newest`: until the newest values are new enough for iteration `version`.
        """

        def look() -> Status | None:
            return self._look(epoch, partition, version, worker, ticket, newest)

        with self._changed:
            answer = look()
            if answer is None:
                self._changed.wait_for(lambda: look() is not None, timeout_s)
                answer = look()
            return answer

    def _look(
        self,
        epoch: Epoch,
        partition: PartitionId,
        version: int,
        worker: WorkerId,
        ticket: int,
        newest: bool,
    ) -> Status | None:
        if self._closed:
            return Status.STALE
        match standing(epoch, self._epoch):
            case Standing.STALE:
                return Status.STALE
            case Standing.NEWER:
                return None
        if self._part is None:
            return None  # it is being found out what to go on from
        match self._part.reading(partition, version, newest=newest):
            case Reading.READY:
                return Status.OK
            case Reading.GONE:
                return Status.GONE
        return Status.CALLED_BACK if self._called_back.get(worker, 0) >= ticket else None

    def wait_assigned(self, epoch: Epoch, timeout_s: float) -> bool:
        """Wait until this epoch's assignment is here, or is known never to come."""
        with self._changed:
            return self._changed.wait_for(
                lambda: standing(epoch, self._epoch) is not Standing.NEWER or self._closed,
                timeout_s,
            )

    def view(self, epoch: Epoch, partition: PartitionId, version: int) -> memoryview | None:
        """The bytes of a version; they stay as they are until `still_readable` says otherwise.

        None when the epoch is over: another one's arrays lie elsewhere.
        """
        slab = self._slab_of(epoch)
        return slab.readable(partition, version).data.cast("B") if slab is not None else None

    def _slab_of(self, epoch: Epoch) -> Slab | None:
        with self._lock:
            return self._slab if epoch == self._epoch else None

    def still_readable(
        self, epoch: Epoch, partitions: list[PartitionId], version: int, *, newest: bool = False
    ) -> bool:
        """Whether none of what was read of a version has been overwritten meanwhile."""
        with self._lock:
            if epoch != self._epoch or (part := self._part) is None:
                return False
            return all(part.reading(p, version, newest=newest) is Reading.READY for p in partitions)

    def gather(
        self,
        epoch: Epoch,
        partitions: list[PartitionId],
        version: int,
        into: Array,
        *,
        newest: bool = False,
    ) -> bool:
        """Copy several small partitions in one go; False when one has been overwritten meanwhile."""
        slab, at = self._slab_of(epoch), 0
        if slab is None:
            return False
        for p in partitions:
            size = slab.length(p)
            slab.copy_into(p, version, into[at : at + size])
            at += size
        return self.still_readable(epoch, partitions, version, newest=newest)
