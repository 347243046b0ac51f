"""A term that goes on from the one before: what shards keep of that, and how the new leader takes it over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from protocol_job import PlainLoop
from protocol_net import Link

from elps.contracts.epoch import NO_EPOCH, Epoch, Term
from elps.contracts.ids import PartitionId, ShardId, WorkerId
from elps.psshard.core.inheriting import Claim, History, Inheritance, Stock, Stocktaking
from elps.psshard.core.part import Advance, Part
from elps.stream.interval import Interval

if TYPE_CHECKING:
    from protocol_following import Following
    from protocol_leader import Leader
    from protocol_shard import Aside, Block, Shard, Slab
    from protocol_world import World


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


class Heir:
    """The side of a shard that a new term begins with."""

    world: World
    name: ShardId
    leader: Leader
    estate: Estate
    following: Following
    epoch: Epoch
    part: Part | None
    slab: Slab
    aside: Aside | None
    called: dict[WorkerId, int]
    low: int
    to_leader: Link
    writes: list[tuple[Part, Slab, Advance, tuple[int, int]]]
    _write: Callable[..., None]
    _look_at_pulls: Callable[[], None]

    def take_stock(self, _: Epoch) -> None:
        """Say what there is of the term before."""
        stock = self.estate.stock(len(self.world.job.partitions))
        self.world.net.send(self.to_leader, self.leader.stocked, self.name, stock)

    def turn_to(self, epoch: Epoch) -> None:
        """Nothing of an earlier term is served any more."""
        self.following.forget()
        self.epoch, self.part, self.slab, self.aside = epoch, None, {}, None
        self.called, self.low = {}, -1
        self._look_at_pulls()

    def finish_writing(self) -> None:
        """What is being written of versions is written; nothing new is begun."""
        writes, self.writes = self.writes, []
        for write in writes:
            self._write(*write)


class Successor:
    """The side of a leader that goes on after another one."""

    world: World
    epoch: Epoch
    opened: Epoch
    history: Epoch
    skips: list[Interval]
    links: dict[ShardId, tuple[Link, Link]]
    taking: Stocktaking | None
    heir: Inheritance | None
    stopped: bool
    open: Callable[..., None]
    _begin: Callable[..., None]

    def _succeed(self, before: Leader) -> None:
        """The scheduler names it: it knows the plan, what is in the store, and the newest opening it was told of."""
        world, term = self.world, before.epoch.term
        self.epoch = self.opened = Epoch(Term(term.number + 1, 9), 0)
        self.checkpoints = before.checkpoints
        heard = world.r.random() < 0.8
        if heard:  # else it was told only just now, and the scheduler knows nothing of it
            self.evaluated, self.metrics = before.evaluated, before.metrics
        self.wanted, self.wanted_at = before.wanted, before.wanted_at
        self.skips = list(world.kept)
        self.links = {s: (Link(f"L{term.number + 1}>{s}"), Link(f"{s}>L")) for s in world.shards}
        for link in (link for pair in self.links.values() for link in pair):
            link.up = False
        since = world.history if world.r.random() < 0.5 else NO_EPOCH
        self.taking = world.taking(world.shards, since, max(self.checkpoints, default=None))
        for shard in world.shards.values():
            world.net.later(host, shard, self)

    def stocked(self, s: ShardId, stock: Stock) -> None:
        """A shard has said what it has."""
        if self.taking is None or self.stopped:
            return
        self.taking.took(s, stock)
        if self.taking.awaited:
            return
        found, self.taking = self.taking.verdict(), None
        if isinstance(found, Inheritance):
            self.world.inherited += 1
            self._inherit(found)
        else:
            self.world.bereft += 1
            self.open(new_term=False)

    def _inherit(self, found: Inheritance) -> None:
        world, self.heir = self.world, found
        self.epoch = self.opened = Epoch(self.epoch.term, self.epoch.n + 1)
        self.history, self.placed = found.history.opened, found.placed
        self.skips = found.in_force(self.skips, world.job.geometry)
        self._plain = PlainLoop(world.job, self.skips)
        self._begin(found.version, ahead=found.ahead)

    def links_lost(self, shard: Shard) -> None:
        """A shard follows another leader now: what is on the links to it is lost."""
        for link in self.links[shard.name]:
            self.world.net.cut(link)
