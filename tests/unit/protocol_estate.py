"""A term that goes on from the one before: what shards keep of that, and how the new leader takes it over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from protocol_job import PlainLoop
from protocol_net import Link
from protocol_shelf import Shelf

from elps.contracts.epoch import NO_EPOCH, Epoch, Standing, Term, standing
from elps.contracts.ids import PartitionId, ShardId
from elps.psshard.core.clock import Clock
from elps.psshard.core.inheriting import Claim, History, Inheritance, Stock, Stocktaking
from elps.psshard.core.part import Advance, Part
from elps.stream.interval import Interval

if TYPE_CHECKING:
    from protocol_block import Aside, Block, Slab
    from protocol_following import Copy, Following
    from protocol_leader import Leader
    from protocol_shard import Shard
    from protocol_world import World


@dataclass
class Left:
    """A block, with the version and the steps that it is at; whether it was owned here."""

    block: Block
    version: int
    steps: int
    copy: bool = False
    applied: tuple[Interval, ...] | None = None  #: without a barrier: beyond the version

    def claim(self, p: PartitionId) -> Claim:
        oldest, applied = self.block.oldest(self.version), self.applied
        factor = self.block.factor
        return Claim(p, p, p + 1, self.version, self.steps, oldest, self.copy, applied, factor)


@dataclass
class Estate:
    """What there is of each partition."""

    opened: Epoch = NO_EPOCH
    epoch: Epoch = NO_EPOCH
    blocks: dict[PartitionId, Left] = field(default_factory=dict)
    skips: tuple[Interval, ...] = ()

    def stock(self, elements: int) -> Stock:
        """As the new leader is told."""
        if not self.blocks:
            return Stock()
        claims = [left.claim(p) for p, left in sorted(self.blocks.items())]
        history = History(self.opened, "", elements)
        return Stock(history, self.epoch, tuple(claims), self.skips)


def host(shard: Shard, leader: Leader) -> None:
    """The scheduler tells a shard of a new term: it stops serving the one before, and keeps what it has."""
    if leader.epoch.term.number <= shard.epoch.term.number or leader.stopped:
        return
    shard.estate = bequeathed(shard)
    shard.leader.links_lost(shard)
    shard.leader = leader
    shard.from_leader, shard.to_leader = leader.links[shard.name]
    shard.turn_to(Epoch(leader.epoch.term, 0))
    leader.link_restored(shard)


def bequeathed(shard: Shard) -> Estate:
    """What is left of an epoch that is over: what was owned, else what followed or was kept."""
    shard.finish_writing()
    if shard.part is None:  # the term that ends was never opened here
        return shard.estate
    part, sealed = shard.part, "unsealed" not in shard.world.off
    blocks = {
        p: Left(
            shard.slab[p].heirloom() if sealed else shard.slab[p],
            part.version(p),
            part.steps(p),
            applied=shard.applied(shard.slab[p], part.version(p)),
        )
        for p in part.partitions
    }
    skips = set(part.skips)
    if "no-copies" not in shard.world.off:
        shard.keep(shard.following.copies | shard.standing.copies)
        for p, copy in shard.spare.items():
            if p not in blocks:
                block, applied = shard.block_of(copy), None
                if shard.world.job.unbarred:
                    applied = ()
                blocks[p] = Left(block, copy.version, copy.state[2], copy=True, applied=applied)
                skips |= set(copy.skips) if "copied-skips" not in shard.world.off else set()
    return Estate(shard.opened, shard.epoch, blocks, tuple(sorted(skips)))


def inherit(shard: Shard, part: Part, slab: Slab, mine: list[PartitionId], start: int) -> bool:
    """Go on with what was kept; False when something is not here at this version or the next."""
    for p in mine:
        left = shard.estate.blocks.get(p)
        if left is None or left.version < start:
            return False
        if left.applied is None and left.version > start + 1:
            return False
        first = left.version if "one-version" in shard.world.off else start
        slab[p] = left.block
        part.hold(p, left.version, left.steps, first, left.applied or ())
    return True


class Heir(Shelf):
    """The side of a shard that a new term begins with."""

    leader: Leader
    estate: Estate
    following: Following
    standing: Following
    spare: dict[PartitionId, Copy]
    aside: Aside | None
    low: int
    to_leader: Link
    writes: list[tuple[Part, Slab, Advance, tuple[int, int]]]
    _write: Callable[..., None]

    def take_stock(self, epoch: Epoch) -> None:
        """Say what there is of what went before; nothing of that is served any more."""
        match standing(epoch, self.epoch):
            case Standing.STALE:
                return
            case Standing.NEWER:
                self.estate = bequeathed(self)  # type: ignore[arg-type]  # a Shard
                self.turn_to(epoch)
        stock = self.estate.stock(len(self.world.job.partitions))
        self.world.net.send(self.to_leader, self.leader.stocked, self.name, epoch, stock)

    def turn_to(self, epoch: Epoch) -> None:
        """Nothing of an earlier term is served any more."""
        self.following.forget()
        self.standing.forget()
        self.spare = {}
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
    without: set[ShardId]  #: shards that it was told are gone
    must_recover: bool  #: what is being recovered from had replicas of everything
    placed: dict[PartitionId, ShardId]
    wanted: list[ShardId]
    clock: Clock | None
    stopped: bool
    want: Callable[[list[ShardId]], None]
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
        # One that was cut off may be of the job again, whatever it has; another is dead, and nobody knows it yet.
        self.without = {s for s in before.without if world.shards[s].dead or world.r.random() < 0.5}
        self.taking = world.taking(self._left, since, max(self.checkpoints, default=None))
        for s in self._left:
            if not world.shards[s].dead:
                world.net.later(host, world.shards[s], self)

    def recover(self, shard: Shard) -> None:
        """The scheduler says that a shard is gone, with what it had."""
        world, s = self.world, shard.name
        if self.stopped or s in self.without or len(self.without) + 1 == len(world.shards):
            return
        self.without.add(s)
        for link in self.links[s]:
            world.net.cut(link)
        self.wanted = [w for w in self.wanted if w not in self.without] or self._left
        if self.taking is not None:
            self.must_recover = False
            self.taking.lost(s)
            self._decide()
        elif self.clock is None:
            return
        elif s not in self.clock.holders:
            self.want(self.wanted)
        else:
            self.epoch = self.opened = Epoch(self.epoch.term, self.epoch.n + 1)
            guarded = self.clock._replicas.counts or self.clock._replicas._broken_at is not None
            self.must_recover = world.must_recover == s and guarded
            self.clock, self.heir = None, None
            self.taking = world.taking(
                self._left, self.history, max(self.checkpoints, default=None)
            )
            for name in self._left:
                link, _ = self.links[name]
                world.net.send(link, world.shards[name].take_stock, self.epoch)

    @property
    def _left(self) -> list[ShardId]:
        return [s for s in self.world.shards if s not in self.without]

    def stocked(self, s: ShardId, epoch: Epoch, stock: Stock) -> None:
        """A shard has said what it has."""
        if self.taking is None or self.stopped or epoch != self.epoch:
            return
        self.taking.took(s, stock)
        self._decide()

    def _decide(self) -> None:
        assert self.taking is not None
        if self.taking.awaited:
            return
        found, self.taking = self.taking.verdict(), None
        if isinstance(found, Inheritance):
            self.world.inherited += 1
            self._inherit(found)
        else:
            self.world.bereft += 1
            saved = "a checkpoint has" in found  # which is newer than what is there
            assert saved or not self.must_recover, f"replicas are of no use: {found}"
            self.open(new_term=False)
        self.must_recover = False

    def _inherit(self, found: Inheritance) -> None:
        world, self.heir = self.world, found
        self.epoch = self.opened = Epoch(self.epoch.term, self.epoch.n + 1)
        self.history, self.placed = found.history.opened, found.placed
        if found.promoted and "old-history" not in world.off:
            self.history = self.epoch
        world.promoted += found.promoted
        self.skips = found.in_force(self.skips, world.job.geometry)
        self._plain = PlainLoop(world.job, self.skips)
        factor = found.factor if "new-factor" not in world.off else 1.0
        self._begin(found.version, ahead=found.ahead, applied=found.applied, factor=factor)

    def links_lost(self, shard: Shard) -> None:
        """A shard follows another leader now: what is on the links to it is lost."""
        for link in self.links[shard.name]:
            self.world.net.cut(link)
