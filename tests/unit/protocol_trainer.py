"""A trainer as its process would be: asks, pulls, computes, pushes; keeps a gradient until it is acknowledged."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from protocol_net import Link

from elps.contracts.epoch import Epoch, Standing, standing
from elps.contracts.ids import PartitionId, ShardId, WorkerId
from elps.psshard.core.commands import Lend, Timing
from elps.stream.interval import Interval

if TYPE_CHECKING:
    from protocol_world import World

Gradient = tuple[Epoch, int, Interval, PartitionId, int]
Map = tuple[Epoch, int, dict[PartitionId, ShardId]]


class Trainer:
    """One trainer process."""

    def __init__(self, world: World, name: WorkerId) -> None:
        self.world, self.name = world, name
        self.leader = world.leader  #: it is of one term
        self.to_leader, self.from_leader = Link(f"{name}>L"), Link(f"L>{name}")
        self.out = {s: Link(f"{name}>{s}") for s in world.shards}
        self.back = {s: Link(f"{s}>{name}") for s in world.shards}
        for s in (s for s in world.shards if world.shards[s].dead):
            self.out[s].up = self.back[s].up = False
        self.epoch: Epoch | None = None
        self.lease: Lend | None = None
        self.next: Lend | None = None  #: lent while the gradient before is still being pushed
        self.owner: dict[PartitionId, ShardId] = {}
        self.asking = False  #: it has asked and was lent nothing since
        self.got: dict[ShardId, dict[PartitionId, int]] = {}
        self.held: tuple[int, list[int]] | None = (
            None  #: version pulled last, whole, and its values
        )
        self.map: Map | None = None  #: a new one, to be read when the computation under way is done
        self.unacked: dict[PartitionId, tuple[ShardId, Gradient]] = {}
        self.whole = False  #: everything is pulled, but the gradient's memory is in use
        self.retiring = False  #: it is to end what it has in hand, and go
        self.dead = False
        self.hung = False
        self.stalled: list[tuple[int]] = []  #: computations that began before it hung

    def tell(self, call: Callable[..., None], *arguments: object) -> None:
        self.world.net.send(self.to_leader, call, self, self.epoch, *arguments)

    # --- the leader's word ----------------------------------------------------------------------------------------

    def begin(self, epoch: Epoch, since: int, owner: dict[PartitionId, ShardId]) -> None:
        """An epoch began. If only the map has changed since, go on; else drop everything. What was lent is void."""
        if self.epoch is not None and standing(epoch, self.epoch) is not Standing.NEWER:
            return
        known = self.epoch
        goes_on = known is not None and known.term == epoch.term and since <= known.n
        off = self.world.off
        goes_on |= known is not None and "always-on" in off
        if goes_on and self.whole and self.lease is not None and self.world.r.random() < 0.5:
            self.map = epoch, since, owner
            return
        self.map = None
        self.epoch, self.owner = epoch, owner
        self.lease, self.next, self.whole = None, None, False
        if not goes_on:
            self.unacked, self.held = {}, None
        asks = not self.asking and "never-ask" not in off
        if not goes_on or asks or "double-ask" in off:
            self.ask()

    def retire(self) -> None:
        self.retiring = True
        self.tell(self.leader.retires)
        self._go_if_done()

    def _go_if_done(self) -> bool:
        if self.retiring and not self.dead and not self.unacked and self.lease is None:
            self.dead = True
            self.tell(self.leader.left)
        return self.dead

    def ask(self) -> None:
        if self._go_if_done():
            return
        self.asking = True
        self.tell(self.leader.asked)

    def lend(self, epoch: Epoch, lease: Lend) -> None:
        if epoch != self.epoch:
            return
        self.asking = False
        if self.unacked and not self.world.pipelined:
            self.next = lease
            return
        self.lease, self.got, self.whole, self.next = lease, {}, False, None
        if self.world.job.unbarred:
            self.held = None  # more may have come
        if self.held is not None and self.held[0] == lease.version:
            self._has_pulled()
            return
        for s in self._sources:
            self._pull(s)

    # --- values ---------------------------------------------------------------------------------------------------

    @property
    def _sources(self) -> list[ShardId]:
        return sorted(set(self.owner.values()))

    def _pull(self, s: ShardId) -> None:
        assert self.lease is not None
        shard = self.world.shards[s]
        version, ticket = self.lease.version, self.lease.ticket
        newest = self.world.job.unbarred and self.lease.kind == "train"
        self.world.net.send(self.out[s], shard.pull, self, self.epoch, version, ticket, newest)

    def _has_pulled(self) -> None:
        assert self.lease is not None
        self.whole = True
        self.world.net.later(self._compute, self.lease.ticket)

    def pulled(self, s: ShardId, epoch: Epoch, ticket: int, values: dict[PartitionId, int]) -> None:
        lease = self.lease
        if self.dead or lease is None or epoch != self.epoch or ticket != lease.ticket:
            return
        self.got[s] = values
        if len(self.got) == len(self._sources):
            found = {p: v for values in self.got.values() for p, v in values.items()}
            self.held = lease.version, [found[p] for p in self.world.job.partitions]
            self._has_pulled()

    def refused(self, epoch: Epoch, ticket: int, stale: bool) -> None:
        """Gone or called back: ask for a lease. Stale: the leader's word about a new epoch is on its way."""
        lease = self.lease
        if self.dead or lease is None or epoch != self.epoch or ticket != lease.ticket:
            return
        self.lease, self.whole = None, False
        if not stale:
            self.ask()

    # --- computing ------------------------------------------------------------------------------------------------

    def _compute(self, ticket: int) -> None:
        if self.hung:
            self.stalled.append((ticket,))
            return
        lease = self.lease
        if self.dead or lease is None or ticket != lease.ticket or not self.whole or self.unacked:
            return
        assert self.held is not None
        values = self.held[1]
        self.lease, self.whole = None, False
        self._do(lease, values)
        if self.map is not None:
            self.begin(*self.map)
        self._go_if_done()

    def _do(self, lease: Lend, values: list[int]) -> None:
        job, leader = self.world.job, self.leader
        self.asking = True  # with what is told
        if lease.kind == "evaluate":
            self.tell(
                leader.evaluation, lease.version, lease.interval, job.sums(lease.interval, values)
            )
            return
        if job.is_bad(lease.interval) or self.world.r.random() < job.flaky * self.world.failing:
            self.tell(leader.bad, lease.version, lease.interval)
            self.ask()
            return
        self.world.see_computed(values)
        loss, timing = job.loss(lease.interval, values), Timing(samples=lease.interval.size)
        self.tell(leader.computed, lease.version, lease.interval, loss, timing)
        assert self.epoch is not None
        for p, g in zip(job.partitions, job.gradient(lease.interval, values), strict=True):
            gradient = (self.epoch, lease.version, lease.interval, p, g)
            self.unacked[p] = self.owner[p], gradient
        self.push()

    def push(self, only: ShardId | None = None) -> None:
        """Push what is not acknowledged, in any order, some of it twice."""
        r = self.world.r
        gradients = [(s, g) for s, g in self.unacked.values() if only in (None, s)]
        if len(gradients) > 1:
            r.shuffle(gradients)
        for s, g in gradients:
            for _ in range(2 if r.random() < 0.1 * self.world.failing else 1):
                self.world.net.send(self.out[s], self.world.shards[s].push, self, *g)

    def acknowledged(self, epoch: Epoch, t: int, interval: Interval, p: PartitionId) -> None:
        waiting = self.unacked.get(p)
        if self.dead or waiting is None or waiting[1][:3] != (epoch, t, interval):
            return
        del self.unacked[p]
        if not self.unacked:
            self.tell(self.leader.pushed, t)
            if self.next is not None and self.epoch is not None:
                self.lend(self.epoch, self.next)
            elif self.whole and self.lease is not None:
                self.world.net.later(self._compute, self.lease.ticket)
            self._go_if_done()

    # --- connections ----------------------------------------------------------------------------------------------

    def reconnect(self, s: ShardId) -> None:
        """A connection to a shard is there again: pull and push what went with the one before."""
        if self.hung or self.world.shards[s].dead:
            return
        self.out[s].up = self.back[s].up = True
        if self.dead:
            return
        if self.lease is not None and not self.whole and s in self._sources and s not in self.got:
            self._pull(s)
        self.push(s)

    def wake(self) -> None:
        self.hung = False
        for link in (self.from_leader, *self.back.values()):
            self.world.net.sleep(link, False)
        for (ticket,) in self.stalled:
            self.world.net.later(self._compute, ticket)
        self.stalled = []
        for s, link in self.back.items():
            if not link.up:
                self.reconnect(s)

    def hang(self) -> None:
        self.hung = True
        for link in (self.from_leader, *self.back.values()):
            self.world.net.sleep(link, True)
