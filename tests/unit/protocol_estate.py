"""What a shard keeps of a term that is over, for the leader of the next one to go on from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from elps.contracts.epoch import NO_EPOCH, Epoch
from elps.contracts.ids import PartitionId
from elps.psshard.core.inheriting import Claim, History, Stock
from elps.psshard.core.part import Part
from elps.stream.interval import Interval

if TYPE_CHECKING:
    from protocol_leader import Leader
    from protocol_shard import Block, Shard, Slab


@dataclass
class Estate:
    """Blocks with the version and the steps that each is at."""

    opened: Epoch = NO_EPOCH
    epoch: Epoch = NO_EPOCH
    blocks: dict[PartitionId, tuple[Block, int, int]] = field(default_factory=dict)
    skips: tuple[Interval, ...] = ()

    def stock(self, elements: int) -> Stock:
        """As the new leader is told."""
        if not self.blocks:
            return Stock()
        claims = [Claim(p, p, p + 1, at, n) for p, (_, at, n) in sorted(self.blocks.items())]
        history = History(self.opened, "", elements)
        return Stock(history, self.epoch, tuple(claims), self.skips)


def host(shard: Shard, leader: Leader) -> None:
    """The scheduler tells a shard of a new term: it stops serving the one before, and keeps what it has."""
    if leader.epoch.term.number <= shard.epoch.term.number or leader.stopped:
        return
    shard.estate = _bequeathed(shard)
    shard.leader.links_lost(shard)
    shard.leader = leader
    shard.from_leader, shard.to_leader = leader.links[shard.name]
    shard.turn_to(Epoch(leader.epoch.term, 0))
    leader.link_restored(shard)


def _bequeathed(shard: Shard) -> Estate:
    shard.finish_writing()
    if shard.part is None:  # the term that ends was never opened here
        return shard.estate
    part, sealed = shard.part, "unsealed" not in shard.world.off
    blocks = {
        p: (
            _heirloom(shard.slab[p]) if sealed else shard.slab[p],
            part.version(p),
            part.steps(p),
        )
        for p in part.partitions
    }
    skips = tuple(part.skips) if "skips-lost" not in shard.world.off else ()
    return Estate(shard.opened, shard.epoch, blocks, skips)


def _heirloom(block: Block) -> Block:
    """Its values and state; what was collected of the open iteration stays with those who may still add to it."""
    return type(block)(list(block.values), block.momentum)


def inherit(shard: Shard, part: Part, slab: Slab, mine: list[PartitionId], start: int) -> bool:
    """Go on with what was kept; False when something is not here at this version or the next."""
    for p in mine:
        block, version, steps = shard.estate.blocks.get(p, (None, -1, 0))
        if block is None or not start <= version <= start + 1:
            return False
        first = version if "one-version" in shard.world.off else start
        slab[p] = block
        part.hold(p, version, steps, first)
    return True
