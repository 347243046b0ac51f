"""A shard's part in what is copied: the copies it makes of others' partitions, and those it sends of its own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial

from elps.contracts.errors import ProtocolError
from elps.contracts.ids import PartitionId, ShardId
from elps.contracts.job import JobDocument
from elps.psshard.assignment import Assignment
from elps.psshard.block import Block
from elps.psshard.feeding import Feeder
from elps.psshard.following import Copy, Following, WaveKey
from elps.psshard.reports import Followed, Report, Unfollowed
from elps.psshard.wave import Wave
from elps.wire.connection import Connection

Connect = Callable[[ShardId], Connection]
"""Makes a connection that feeds the copies on a shard."""


@dataclass(frozen=True)
class _Part:
    """What this shard does for a wave."""

    key: WaveKey
    feeders: list[Feeder]


class Copies:
    """At most one wave of partitions that move, and one of replicas. Plain state; the member guards it."""

    def __init__(self, document: JobDocument) -> None:
        self.following = Following(document)
        self.spare: dict[PartitionId, Copy] = {}
        """Given up, but as long as no gate is announced that is newer they may be all that is left of a partition.

        Replaced, never changed: who sums up the memory asks no lock.
        """
        self._parts: dict[bool, _Part] = {}  #: whether it is of replicas to what is done

    def begin(
        self,
        key: WaveKey,
        wave: Wave,
        me: ShardId,
        here: Mapping[PartitionId, Block],
        assignment: Assignment,
        connect: Connect,
        report: Callable[[Report], None],
    ) -> list[Feeder]:
        """Take part in a wave, in place of the one of its kind before; returns what is to be started.

        A repeat changes nothing; see `standing`. `ProtocolError` for a partition that is not here to be copied.
        """
        before = self._parts.get(wave.standing)
        if before is not None and before.key == key:
            return []
        feeders = []
        for target, partitions in wave.to_feed(me).items():
            if missing := [p for p in partitions if p not in here]:
                raise ProtocolError(f"partition {missing[0]} is not here to be copied")
            blocks = {p: here[p] for p in partitions}
            feeders.append(Feeder(key, blocks, partial(connect, target), report))
        self._end(wave.standing)
        self._parts[wave.standing] = _Part(key, feeders)
        untrained = assignment.untrained
        self.following.expect(key, wave.to_follow(me), assignment.iterations, untrained)
        return feeders

    def standing(self, *, replicas: bool) -> list[Report]:
        """How a wave stands here: told again when the leader repeats itself, since its answers may be lost, too."""
        part = self._parts.get(replicas)
        if part is None:
            return []
        version, have = self.following.progress(part.key)
        out: list[Report] = [Followed(*part.key, have, version)] if have or version >= 0 else []
        failures = [f.failure for f in part.feeders]
        return out + [Unfollowed(*part.key, failure) for failure in failures if failure]

    def unfollow(self, key: WaveKey, *, replicas: bool) -> None:
        """A wave is given up, and those of its kind before it."""
        part = self._parts.get(replicas)
        if part is not None and part.key[0] == key[0] and part.key[1] <= key[1]:
            self._end(replicas)

    def end(self) -> None:
        """The epoch is over: what is here is spare."""
        self._end(replicas=False, keep=True)
        self._end(replicas=True)

    def turn(self, owned: Mapping[PartitionId, Copy] | None, mine: Collection[PartitionId]) -> None:
        """Another epoch begins, which owns some of what is here or was owned; None: it begins with other values."""
        self.end()
        if owned is None:
            self.spare = {}
            return
        self.keep(owned)
        self.spare = {p: copy for p, copy in self.spare.items() if p not in mine}

    def keep(self, copies: Mapping[PartitionId, Copy]) -> None:
        """These are not needed any more, as it seems."""
        spare = dict(self.spare)
        for p, copy in copies.items():
            if p not in spare or spare[p].version < copy.version:
                spare[p] = copy
        self.spare = spare

    def left_behind(self, version: int) -> None:
        """Every partition has this version, where it survives: no older one is gone back to."""
        self.spare = {p: copy for p, copy in self.spare.items() if copy.version >= version}

    @property
    def size_bytes(self) -> int:
        """Memory of all copies."""
        spare = sum(copy.block.size_bytes for copy in self.spare.values())
        return self.following.size_bytes + spare

    def _end(self, replicas: bool, *, keep: bool | None = None) -> None:
        part = self._parts.pop(replicas, None)
        if part is None:
            return
        for feeder in part.feeders:
            feeder.close()
        copies = self.following.forget(part.key)
        if replicas if keep is None else keep:
            self.keep(copies)
