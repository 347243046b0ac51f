"""All shards of a job as their leader speaks to them: its own by call, the others by link."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator

from elps.contracts.epoch import Epoch
from elps.contracts.ids import ShardId
from elps.contracts.messages import Address, HostJob
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
        lost: Callable[[], None],
        failed: Callable[[str], None],
    ) -> None:
        self._me, self._secret = me, host.secret
        self._hello = Hello(job=host.job, purpose="link", sender=me, term=host.term.number)
        self._told = reported, restored, lost, failed
        self._own = orders
        self._remote: dict[ShardId, RemotePeer] = {}  #: replaced, never changed
        self._started = self._closed = False
        self._lock = threading.Lock()  #: of who is known
        orders.member.report_always_to(lambda report: reported(me, report))
        self.know(host.shards)

    def __iter__(self) -> Iterator[ShardId]:
        return iter((*sorted(self._remote), self._me))  # the others first: their way is longer

    def know(self, addresses: Iterable[Address]) -> None:
        """Dial shards that were not known yet, or that listen elsewhere now: another process took up their name."""
        with self._lock:
            known = {shard: peer.address for shard, peer in self._remote.items()}
            new = {
                a.shard: RemotePeer(a, self._hello, self._secret, *self._told)
                for a in addresses
                if a.shard != self._me and known.get(a.shard) != a and not self._closed
            }
            old = [self._remote[shard] for shard in new if shard in known]
            self._remote = {**self._remote, **new}
            if self._started:
                for peer in new.values():
                    peer.start()
        for peer in old:
            peer.close()

    def keep(self, shards: Collection[ShardId]) -> None:
        """Hang up on all others."""
        with self._lock:
            gone = [peer for shard, peer in self._remote.items() if shard not in shards]
            if gone:
                self._remote = {s: p for s, p in self._remote.items() if s in shards}
        for peer in gone:
            peer.close()

    def start(self) -> None:
        """Begin to dial."""
        with self._lock:
            self._started = True
            for peer in self._remote.values():
                peer.start()

    def tell(self, shard: ShardId, epoch: Epoch, order: Order) -> None:
        """Say it to one shard."""
        peer: Peer | None = self._own if shard == self._me else self._remote.get(shard)
        if peer is not None:
            peer.carry_out(epoch, order)

    def tell_all(self, epoch: Epoch, order: Order) -> None:
        """Say it to every shard."""
        for shard in self:
            self.tell(shard, epoch, order)

    def beat(self) -> None:
        """Keep the links from falling silent; the shards tell what they work."""
        for peer in self._remote.values():
            peer.beat()
        if (worked := self._own.member.worked()) is not None:
            self._told[0](self._me, worked)

    def out_of_reach(self, now: float, among: Collection[ShardId]) -> str:
        """Which of these shards cannot be reached, and why; empty when all can. `now` is monotonic seconds."""
        down = [
            f"{shard}: {peer.trouble}"
            for shard, peer in sorted(self._remote.items())
            if shard in among and peer.reach.down_s(now) > UNREACHABLE_S
        ]
        return "; ".join(down)

    def down(self, now: float) -> list[ShardId]:
        """Those to which the link is down just now, in order; before the first was up, too."""
        return [s for s, peer in sorted(self._remote.items()) if peer.reach.down_s(now) > 0]

    def close(self) -> None:
        """The job ends here."""
        with self._lock:
            self._closed = True
        for peer in self._remote.values():
            peer.close()
        self._own.close()
