"""The side of a shard's share in a job that ends what is served: for good, or for another epoch to go on from."""

from __future__ import annotations

from elps.contracts.epoch import Epoch, Standing, standing
from elps.contracts.ids import PartitionId
from elps.psshard.aside import SettingAside
from elps.psshard.assignment import Assignment
from elps.psshard.copies import Copies
from elps.psshard.core.inheriting import Stock
from elps.psshard.estate import Estate


class Ending(SettingAside):
    """What is here when it is not served any more is kept in an estate, until it is assigned or the job is dropped."""

    _assignment: Assignment | None
    _awaited: set[PartitionId]  #: partitions whose first values have not come
    _copies: Copies
    _estate: Estate | None

    def stock(self, epoch: Epoch) -> Stock | None:
        """What there is, under a new epoch: nothing of the one before is served any more. None if it is not new."""
        with self._changed:
            if self._closed or standing(epoch, self._epoch) is Standing.STALE:
                return None
            if epoch != self._epoch:
                self._estate = self._left()
                self._stop()
                self._epoch = epoch
            elif self._part is not None:
                return None  # it was opened already: the answer was heard
            estate = self._estate
        return estate.stock() if estate is not None else Stock()

    def bequeath(self) -> Estate | None:
        """The term is over and the next one goes on from what is here."""
        with self._changed:
            estate = self._left()
            self._close()
        return estate

    def close(self) -> None:
        """The job is dropped: whoever waits is told."""
        with self._changed:
            self._close()

    def _left(self) -> Estate | None:
        if self._part is None or self._slab is None or self._assignment is None:
            return self._estate  # it was not opened here since
        self._copies.end()
        blocks = self._slab.blocks(without=self._awaited)
        return Estate(self._epoch, self._assignment, self._part, blocks, self._copies.spare)

    def _close(self) -> None:
        self._closed, self._estate = True, None
        self._stop()

    def _stop(self) -> None:
        self._copies.end()
        self._copies.spare = {}
        self._drop_aside()
        # The arrays go now; whoever is at work on them holds them until it is through.
        self._part = self._slab = None
        self._changed.notify_all()
