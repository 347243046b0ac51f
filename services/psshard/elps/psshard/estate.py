"""What a shard keeps of a job when a term is over and the next one goes on from it."""

from __future__ import annotations

from dataclasses import dataclass, field

from elps.contracts.epoch import Epoch
from elps.contracts.ids import PartitionId
from elps.psshard.assignment import Assignment, NotHere
from elps.psshard.block import Block
from elps.psshard.core.inheriting import Claim, History, Stock
from elps.psshard.core.part import Part
from elps.stream.interval import Interval


@dataclass(frozen=True)
class Estate:
    """Blocks that nobody else adds to or writes any more, with what they have come from."""

    history: History | None = None  #: None: there is nothing
    epoch: Epoch | None = None
    blocks: dict[PartitionId, tuple[int, int, Block]] = field(default_factory=dict)
    """First element and end in the job's vector, and the block."""
    skips: tuple[Interval, ...] = ()

    def stock(self) -> Stock:
        """As the new leader is told."""
        claims = (
            Claim(p, start, stop, *block.newest())
            for p, (start, stop, block) in sorted(self.blocks.items())
        )
        return Stock(self.history, self.epoch, tuple(claims), self.skips)

    def take(self, assignment: Assignment) -> dict[PartitionId, Block]:
        """The blocks of an assignment; `NotHere` when one is not at its version, or at the next one."""
        taken = {}
        for number, start, stop in assignment.partitions:
            p = PartitionId(number)
            bounds_and_block = self.blocks.get(p)
            if bounds_and_block is None or bounds_and_block[:2] != (start, stop):
                raise NotHere(f"partition {p} of elements {start} to {stop} was not left here")
            block = bounds_and_block[2]
            if not assignment.start <= block.newest()[0] <= assignment.start + 1:
                raise NotHere(f"partition {p} was not left here at version {assignment.start}")
            taken[p] = block
        return taken

    @property
    def size_bytes(self) -> int:
        """Memory of the arrays."""
        return sum(block.size_bytes for _, _, block in self.blocks.values())


def left_by(
    epoch: Epoch, assignment: Assignment, part: Part, blocks: dict[PartitionId, Block]
) -> Estate:
    """Seal the blocks of a term that is over."""
    bounds = {PartitionId(n): (start, stop) for n, start, stop in assignment.partitions}
    return Estate(
        assignment.history if blocks else None,
        epoch,
        {p: (*bounds[p], block.heirloom()) for p, block in blocks.items()}
        if assignment.history is not None
        else {},
        tuple(part.skips),
    )
