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


class Trainer:
    """One trainer process."""

    def __init__(self, world: World, name: WorkerId) -> None:
        self.world, self.name = world, name
        self.to_leader, self.from_leader = Link(f"{name}>L"), Link(f"L>{name}")
        self.out = {s: Link(f"{name}>{s}") for s in world.shards}
        self.back = {s: Link(f"{s}>{name}") for s in world.shards}
        self.epoch: Epoch | None = None
        self.lease: Lend | None = None
        self.next: Lend | None = None  #: lent while the gradient before is still being pushed
        self.got: dict[ShardId, dict[PartitionId, int]] = {}
        self.unacked: dict[PartitionId, Gradient] = {}
        self.whole = False  #: everything is pulled, but the gradient's memory is in use
        self.dead = False
        self.hung = False
        self.stalled: list[tuple[int]] = []  #: computations that began before it hung

    def tell(self, call: Callable[..., None], *arguments: object) -> None:
        self.world.net.send(self.to_leader, call, self, self.epoch, *arguments)

    # --- the leader's word ----------------------------------------------------------------------------------------

    def begin(self, epoch: Epoch) -> None:
        """An epoch began: drop everything and ask."""
        if self.epoch is not None and standing(epoch, self.epoch) is not Standing.NEWER:
            return
        self.epoch, self.lease, self.next, self.whole = epoch, None, None, False
        self.unacked = {}
        self.tell(self.world.leader.asked)

    def lend(self, epoch: Epoch, lease: Lend) -> None:
        if epoch != self.epoch:
            return
        if self.unacked and not self.world.pipelined:
            self.next = lease
            return
        self.lease, self.got, self.whole, self.next = lease, {}, False, None
        for s in self.world.shards:
            self._pull(s)

    # --- values ---------------------------------------------------------------------------------------------------

    def _pull(self, s: ShardId) -> None:
        assert self.lease is not None
        shard = self.world.shards[s]
        version, ticket = self.lease.version, self.lease.ticket
        self.world.net.send(self.out[s], shard.pull, self, self.epoch, version, ticket)

    def pulled(self, s: ShardId, epoch: Epoch, ticket: int, values: dict[PartitionId, int]) -> None:
        lease = self.lease
        if self.dead or lease is None or epoch != self.epoch or ticket != lease.ticket:
            return
        self.got[s] = values
        if len(self.got) == len(self.world.shards):
            self.whole = True
            self.world.net.later(self._compute, ticket)

    def refused(self, epoch: Epoch, ticket: int, stale: bool) -> None:
        """Gone or called back: ask for a lease. Stale: the leader's word about a new epoch is on its way."""
        lease = self.lease
        if self.dead or lease is None or epoch != self.epoch or ticket != lease.ticket:
            return
        self.lease, self.whole = None, False
        if not stale:
            self.tell(self.world.leader.asked)

    # --- computing ------------------------------------------------------------------------------------------------

    def _compute(self, ticket: int) -> None:
        if self.hung:
            self.stalled.append((ticket,))
            return
        lease = self.lease
        if self.dead or lease is None or ticket != lease.ticket or not self.whole or self.unacked:
            return
        job, leader = self.world.job, self.world.leader
        found = {p: v for values in self.got.values() for p, v in values.items()}
        values = [found[p] for p in job.partitions]
        self.lease, self.whole = None, False
        if lease.kind == "evaluate":
            self.tell(
                leader.evaluation, lease.version, lease.interval, job.sums(lease.interval, values)
            )
            return
        if job.is_bad(lease.interval) or self.world.r.random() < job.flaky * self.world.failing:
            self.tell(leader.bad, lease.version, lease.interval)
            self.tell(leader.asked)
            return
        self.world.see_computed(values)
        loss, timing = job.loss(lease.interval, values), Timing(samples=lease.interval.size)
        self.tell(leader.computed, lease.version, lease.interval, loss, timing)
        assert self.epoch is not None
        for p, g in zip(job.partitions, job.gradient(lease.interval, values), strict=True):
            self.unacked[p] = (self.epoch, lease.version, lease.interval, p, g)
        self.push()

    def push(self, only: ShardId | None = None) -> None:
        """Push what is not acknowledged, in any order, some of it twice."""
        r = self.world.r
        gradients = [g for g in self.unacked.values() if only in (None, self.world.owner[g[3]])]
        if len(gradients) > 1:
            r.shuffle(gradients)
        for g in gradients:
            s = self.world.owner[g[3]]
            for _ in range(2 if r.random() < 0.1 * self.world.failing else 1):
                self.world.net.send(self.out[s], self.world.shards[s].push, self, *g)

    def acknowledged(self, epoch: Epoch, t: int, interval: Interval, p: PartitionId) -> None:
        gradient = self.unacked.get(p)
        if self.dead or gradient is None or gradient[:3] != (epoch, t, interval):
            return
        del self.unacked[p]
        if not self.unacked:
            self.tell(self.world.leader.pushed, t)
            if self.next is not None:
                self.lend(epoch, self.next)
            elif self.whole and self.lease is not None:
                self.world.net.later(self._compute, self.lease.ticket)

    # --- connections ----------------------------------------------------------------------------------------------

    def reconnect(self, s: ShardId) -> None:
        """A connection to a shard is there again: pull and push what went with the one before."""
        if self.hung:
            return
        self.out[s].up = self.back[s].up = True
        if self.dead:
            return
        if self.lease is not None and s not in self.got:
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
