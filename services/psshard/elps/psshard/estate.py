"""What a shard keeps of a job when a term is over and the next one goes on from it."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from elps.contracts.epoch import Epoch
from elps.contracts.ids import PartitionId
from elps.psshard.assignment import Assignment, NotHere
from elps.psshard.block import Block
from elps.psshard.core.inheriting import Claim, Stock
from elps.psshard.core.part import Part


class Estate:
    """Blocks of a term that is over, for the next one to take over. Any thread may ask."""

    def __init__(
        self, epoch: Epoch, assignment: Assignment, part: Part, blocks: Mapping[PartitionId, Block]
    ) -> None:
        self._epoch, self._assignment, self._part = epoch, assignment, part
        # From a leader that did not say what its values come from nothing can be inherited.
        self._blocks = dict(blocks) if assignment.history is not None else {}
        self._lock = threading.Lock()
        self._sealed = False

    def stock(self) -> Stock:
        """As the new leader is told."""
        blocks = self._heirlooms()
        if not blocks:
            return Stock()
        bounds = {n: (start, stop) for n, start, stop in self._assignment.partitions}
        claims = tuple(Claim(p, *bounds[p], *blocks[p].newest()) for p in sorted(blocks))
        return Stock(self._assignment.history, self._epoch, claims, tuple(self._part.skips))

    def take(self, assignment: Assignment) -> dict[PartitionId, Block]:
        """The blocks of an assignment; `NotHere` when one is not at its version, or at the next one."""
        blocks, taken = self._heirlooms(), {}
        for number, start, stop in assignment.partitions:
            p = PartitionId(number)
            if p not in blocks or (number, start, stop) not in self._assignment.partitions:
                raise NotHere(f"partition {p} of elements {start} to {stop} was not left here")
            if not assignment.start <= blocks[p].newest()[0] <= assignment.start + 1:
                raise NotHere(f"partition {p} was not left here at version {assignment.start}")
            taken[p] = blocks[p]
        return taken

    def _heirlooms(self) -> dict[PartitionId, Block]:
        """The blocks, sealed when they are asked for first: who adds or writes just now is waited for."""
        with self._lock:
            if not self._sealed:
                self._blocks = {p: block.heirloom() for p, block in self._blocks.items()}
                self._sealed = True
            return self._blocks

    @property
    def size_bytes(self) -> int:
        """Memory of the arrays."""
        return sum(block.size_bytes for block in self._blocks.values())
