"""What a shard keeps of a job when an epoch is over and the next one goes on from what its shards have."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from elps.contracts.epoch import Epoch
from elps.contracts.ids import PartitionId
from elps.psshard.assignment import Assignment, NotHere
from elps.psshard.block import Block
from elps.psshard.core.inheriting import Claim, Stock
from elps.psshard.core.part import Part
from elps.psshard.following import Copy


class Estate:
    """Blocks of an epoch that is over, for the next one to take over. Any thread may ask."""

    def __init__(
        self,
        epoch: Epoch,
        assignment: Assignment,
        part: Part,
        blocks: Mapping[PartitionId, Block],
        copies: Mapping[PartitionId, Copy],
    ) -> None:
        """`blocks` were owned here; `copies` were not, or not any more."""
        self._epoch, self._assignment, self._part = epoch, assignment, part
        # From a leader that did not say what its values come from nothing can be inherited.
        known = assignment.history is not None
        self._blocks = dict(blocks) if known else {}
        bounds = {PartitionId(n): (start, stop) for n, start, stop in assignment.partitions}
        self._bounds = {p: bounds[p] for p in self._blocks}
        self._copied = {p for p in copies if p not in self._blocks} if known else set()
        self._blocks |= {p: copies[p].block for p in self._copied}
        self._bounds |= {p: copies[p].bounds for p in self._copied}
        self._lock = threading.Lock()
        self._sealed = False

    def stock(self) -> Stock:
        """As the new leader is told."""
        blocks = self._heirlooms()
        if not blocks:
            return Stock()
        claims = tuple(
            Claim(
                p,
                *self._bounds[p],
                *b.newest(),
                oldest=b.oldest,
                copy=p in self._copied,
                applied=b.applied(),
                factor=b.factor,
            )
            for p, b in sorted(blocks.items())
        )
        # What the owner of a copied partition was told of skips may not have come here, but with the sums of it.
        skips = {*self._part.skips, *(skip for p in self._copied for skip in blocks[p].skips)}
        return Stock(self._assignment.history, self._epoch, claims, tuple(sorted(skips)))

    def take(self, assignment: Assignment) -> dict[PartitionId, Block]:
        """The blocks of an assignment; `NotHere` when one is not at its version, or at the next one.

        Without a barrier they may be at any later one.
        """
        blocks, taken = self._heirlooms(), {}
        for number, start, stop in assignment.partitions:
            p = PartitionId(number)
            if p not in blocks or (start, stop) != self._bounds[p]:
                raise NotHere(f"partition {p} of elements {start} to {stop} was not left here")
            (newest, _), one = blocks[p].newest(), blocks[p].applied() is None
            if newest < assignment.start or (one and newest > assignment.start + 1):
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
