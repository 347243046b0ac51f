"""All shards of a job as their leader speaks to them: its own by call, the others by link."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from elps.contracts.epoch import Epoch
from elps.contracts.ids import ShardId
from elps.contracts.messages import HostJob
from elps.psshard.link import RemotePeer
from elps.psshard.orders import Order, Orders, Peer
from elps.psshard.reports import Report
from elps.wire.handshake import Hello

UNREACHABLE_S = 1.0
"""A link that is down for longer makes the job `waiting`."""


class Peers:
    """The shards of one job."""

    def __init__(
        self,
        host: HostJob,
        me: ShardId,
        orders: Orders,
        reported: Callable[[ShardId, Report], None],
        restored: Callable[[ShardId], None],
        failed: Callable[[str], None],
    ) -> None:
        hello = Hello(job=host.job, purpose="link", sender=me, term=host.term.number)
        self._remote = [
            RemotePeer(a, hello, host.secret, reported, restored, failed)
            for a in host.shards
            if a.shard != me
        ]
        self._all: dict[ShardId, Peer] = {p.address.shard: p for p in self._remote}
        self._all[me] = orders
        orders.member.report_always_to(lambda report: reported(me, report))
        #: the others first: their way is longer
        self._order = sorted(self._all, key=lambda shard: (shard == me, shard))

    def __iter__(self) -> Iterator[ShardId]:
        return iter(self._order)

    def start(self) -> None:
        """Begin to dial."""
        for peer in self._remote:
            peer.start()

    def tell(self, shard: ShardId, epoch: Epoch, order: Order) -> None:
        """Say it to one shard."""
        self._all[shard].carry_out(epoch, order)

    def tell_all(self, epoch: Epoch, order: Order) -> None:
        """Say it to every shard."""
        for shard in self._order:
            self._all[shard].carry_out(epoch, order)

    def beat(self) -> None:
        """Keep the links from falling silent."""
        for peer in self._remote:
            peer.beat()

    def out_of_reach(self, now: float) -> str:
        """Which shards cannot be reached, and why; empty when all can. `now` is monotonic seconds."""
        down = [
            f"{p.address.shard}: {p.trouble}"
            for p in self._remote
            if p.down_since is not None and now - p.down_since > UNREACHABLE_S
        ]
        return "; ".join(down)

    def close(self) -> None:
        """The job ends here."""
        for peer in self._all.values():
            peer.close()
