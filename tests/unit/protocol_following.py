"""Copies that follow as a shard's shell would keep them: what it sends to others, and what others send to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from protocol_job import State, step
from protocol_net import Link

from elps.contracts.epoch import Epoch, Standing, standing
from elps.contracts.ids import PartitionId
from elps.psshard.core.commands import Move
from elps.psshard.core.part import Advance
from elps.stream.interval import Interval

if TYPE_CHECKING:
    from protocol_shard import Shard

Key = tuple[Epoch, int]
"""Epoch and number of a wave."""


@dataclass
class Feed:
    """The connection over which a shard sends copies to another."""

    key: Key
    source: Shard
    target: Shard
    link: Link
    closed: bool = False
    failed: bool = False  #: it broke, which the leader must hear of

    standing: bool = False  #: what it sends are replicas

    @property
    def follower(self) -> Following:
        """The other end."""
        return self.target.copies(self.standing)

    def tell(self, advance: Advance, total: int) -> None:
        """The owner has completed a version."""
        if not self.closed:
            net = self.source.world.net
            net.send(self.link, self.follower.stepped, self, advance, total)


@dataclass
class Copy:
    """A partition that follows: its newest version, and the one before if that has been here."""

    version: int = -1  #: -1: not here yet
    state: State = (0, 0, 0)
    first: int = -1  #: version it came at
    before: int = 0  #: value at the version before
    skips: frozenset[Interval] = frozenset()  #: behind it
    factor: float = 1.0  #: on the gradient of the step to it


@dataclass
class Following:
    """Both ends of the copies of one wave on one shard."""

    shard: Shard
    standing: bool = False  #: the copies are replicas
    key: Key | None = None
    seen: Key | None = None  #: newest wave told of under this epoch
    copies: dict[PartitionId, Copy] = field(default_factory=dict)
    feeds: list[Feed] = field(default_factory=list)
    told: tuple[int, int] = (0, -1)  #: progress last told
    early: list[tuple[Key, Callable[..., None], tuple[Any, ...]]] = field(default_factory=list)

    # --- the leader's word ----------------------------------------------------------------------------------------

    def follow(self, epoch: Epoch, number: int, moves: tuple[Move, ...]) -> None:
        """Make room for copies and send those of what is owned here; a repeat tells again how it stands."""
        shard, name = self.shard, self.shard.name
        if epoch != shard.epoch:
            return
        if (epoch, number) == self.key:
            self._tell_again()
            return
        self.give_up()
        key = self.key = self.seen = (epoch, number)
        self.copies = {m.partition: Copy() for m in moves if m.target == name}
        for target in sorted({m.target for m in moves if m.source == name}):
            other = shard.world.shards[target]
            feed = Feed(key, shard, other, Link(f"{name}~{target}"), standing=self.standing)
            feed.link.slow = shard.world.replicated and shard.world.r.random() < 0.5
            self.feeds.append(feed)
            if other.dead:
                shard.world.net.later(self.broke, feed)
            for m in moves:
                if (m.source, m.target) == (name, target):
                    if "state-early" in shard.world.off:
                        shard.slab[m.partition].feeds.append(feed)
                    shard.world.net.later(self._snapshot, feed, m.partition)
        early, self.early = self.early, []
        for _, call, arguments in early:
            call(*arguments)  # what is of a later wave still waits

    def unfollow(self, epoch: Epoch, number: int) -> None:
        """The copies of this wave, and of those before it, are not wanted any more."""
        if self.key is not None and self.key[0] == epoch and self.key[1] <= number:
            self.give_up()

    def give_up(self) -> None:
        """Another wave begins, or none; a replica is kept for as long as somebody may need it."""
        if self.standing and "no-spare" not in self.shard.world.off:
            self.shard.keep(self.copies)
        self.forget()

    def forget(self) -> None:
        """Another epoch begins."""
        for feed in self.feeds:
            feed.closed = True
            self.shard.world.net.cut(feed.link)
        for block in self.shard.slab.values():
            block.feeds = [feed for feed in block.feeds if feed not in self.feeds]
        self.key, self.copies, self.feeds, self.told = None, {}, [], (0, -1)

    def _tell_again(self) -> None:
        if self.copies:
            self._tell_progress()
        for feed in self.feeds:
            if feed.failed:
                self._tell_failure(feed)

    # --- the owner's end ------------------------------------------------------------------------------------------

    def _snapshot(self, feed: Feed, p: PartitionId) -> None:
        """Send the newest version, and from then on every sum: nothing comes between the two."""
        shard = self.shard
        if feed.closed:
            return
        block = shard.slab[p]
        if block.writing:  # whoever writes has the block's lock
            shard.world.net.later(self._snapshot, feed, p)
            return
        assert shard.part is not None
        version = shard.part.version(p)
        state = (block.values[version % 2], block.momentum, shard.part.steps(p))
        skips = block.skips
        shard.world.net.send(feed.link, feed.follower.came, feed, p, version, state, skips)
        if "state-late" in shard.world.off:
            shard.world.net.later(self._subscribe, feed, p)
        else:
            block.feeds.append(feed)

    def _subscribe(self, feed: Feed, p: PartitionId) -> None:
        if not feed.closed:
            self.shard.slab[p].feeds.append(feed)

    def broke(self, feed: Feed) -> None:
        """The connection ended."""
        if not feed.closed:
            feed.closed = feed.failed = True
            self._tell_failure(feed)

    def _tell_failure(self, feed: Feed) -> None:
        shard = self.shard
        shard.world.net.send(shard.to_leader, shard.leader.unfollowed, shard.name, *feed.key)

    # --- the follower's end ---------------------------------------------------------------------------------------

    def _is_for_now(self, feed: Feed, call: Callable[..., None], *arguments: Any) -> bool:
        """Whether it is of the wave in force; what is of one not told of yet waits for that."""
        if feed.key == self.key:
            return True
        epoch, number = feed.key
        stands = standing(epoch, self.shard.epoch)
        unseen = self.seen is None or self.seen[0] != epoch or self.seen[1] < number
        if stands is Standing.NEWER or (stands is Standing.CURRENT and unseen):
            self.early.append((feed.key, call, (feed, *arguments)))
        return False

    def came(
        self,
        feed: Feed,
        p: PartitionId,
        version: int,
        state: State,
        skips: frozenset[Interval],
    ) -> None:
        """A copy's values and state."""
        if self._is_for_now(feed, self.came, p, version, state, skips):
            copy = self.copies[p]
            copy.version, copy.state, copy.first, copy.skips = version, state, version, skips
            self._tell_progress()

    def stepped(self, feed: Feed, advance: Advance, total: int) -> None:
        """The sum of a version: take the step that the owner took."""
        if not self._is_for_now(feed, self.stepped, advance, total):
            return
        copy, off = self.copies[advance.partition], self.shard.world.off
        assert copy.version == advance.iteration or "any-sum" in off, (copy, advance)
        copy.before, copy.skips = copy.state[0], copy.skips | {*advance.skipped}
        if advance.count and copy.version >= 0:
            copy.state = step(copy.state, total, advance.count, advance.factor)
            copy.factor = advance.factor if "copied-factor" not in off else 1.0
            assert copy.state[2] == advance.step or "any-sum" in off
        copy.version = max(copy.version, advance.iteration + 1)
        self._tell_progress()

    def _tell_progress(self) -> None:
        assert self.key is not None
        versions = [copy.version for copy in self.copies.values()]
        low = min(versions)
        progress = sum(v > low for v in versions), low
        shard, leader = self.shard, self.shard.leader
        shard.world.net.send(shard.to_leader, leader.followed, shard.name, *self.key, *progress)
