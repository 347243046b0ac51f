"""The side of a shard's share in a job that sees to the clipping of gradients: it measures, tells, and is told."""

from __future__ import annotations

from elps.contracts.epoch import Epoch
from elps.contracts.ids import PartitionId
from elps.psshard.core.part import Part
from elps.psshard.reports import Measured
from elps.psshard.shelf import Shelf
from elps.psshard.slab import Slab
from elps.psshard.voice import Voice


class Measuring(Shelf, Voice):
    """Norms go to the leader, and what the gradient is to be multiplied by comes back."""

    def clip(self, epoch: Epoch, iteration: int, factor: float) -> None:
        """The leader says what the gradient of an iteration is to be multiplied by."""
        with self._lock:
            if self._part is not None:
                self._part.clip(epoch, iteration, factor)
        self._advance_all(epoch)

    def _advance_all(self, epoch: Epoch) -> None:
        """Take every step that is due."""
        raise NotImplementedError

    def _measure(self, part: Part, slab: Slab, partition: PartitionId) -> None:
        """Measure a complete iteration, if that is wanted; the last partition of the shard has the norms told."""
        if not part.clips:
            return  # most jobs do not: no lock is taken for it with every step
        with self._lock:
            step = part.unmeasured(partition)
        if step is None:
            return
        norm = slab.norm(step)
        with self._lock:
            part.measured(step, norm)
            norms = part.norms()
        if norms is not None:
            self.report(Measured(part.epoch, *norms))

    def _tell_norms(self) -> None:
        """Tell the leader once more what is measured: what it has answered may have been lost."""
        with self._lock:
            part = self._part
            norms = part.norms() if part is not None else None
        if part is not None and norms is not None:
            self.report(Measured(part.epoch, *norms))
