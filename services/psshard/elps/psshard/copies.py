"""A shard's part in a wave of moves: the copies it makes of others' partitions, and those it sends of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from elps.contracts.errors import ProtocolError
from elps.contracts.ids import PartitionId, ShardId
from elps.contracts.job import JobDocument
from elps.psshard.block import Block
from elps.psshard.feeding import Feeder
from elps.psshard.following import Following, WaveKey
from elps.psshard.reports import Followed, Report, Unfollowed
from elps.psshard.wave import Wave
from elps.wire.connection import Connection

Connect = Callable[[ShardId], Connection]
"""Makes a connection that feeds the copies on a shard."""


class Copies:
    """At most one wave at a time. Plain state; the member guards it."""

    def __init__(self, document: JobDocument) -> None:
        self.following = Following(document)
        self._feeders: list[Feeder] = []
        self._key: WaveKey | None = None

    def begin(
        self,
        key: WaveKey,
        wave: Wave,
        me: ShardId,
        here: Mapping[PartitionId, Block],
        iterations: int,
        connect: Connect,
        report: Callable[[Report], None],
    ) -> list[Feeder]:
        """Take part in a wave, in place of the one before; returns what is to be started.

        A repeat changes nothing; see `standing`. `ProtocolError` for a partition that is not here to be copied.
        """
        if key == self._key:
            return []
        feeders = []
        for target, partitions in wave.to_feed(me).items():
            if missing := [p for p in partitions if p not in here]:
                raise ProtocolError(f"partition {missing[0]} is not here to be copied")
            blocks = {p: here[p] for p in partitions}
            feeders.append(Feeder(key, blocks, partial(connect, target), report))
        self.end()
        self._key, self._feeders = key, feeders
        self.following.expect(key, wave.to_follow(me), iterations)
        return feeders

    def standing(self) -> list[Report]:
        """How the wave stands here: told again when the leader repeats itself, since its answers may be lost, too."""
        if self._key is None:
            return []
        have, version = self.following.progress(self._key)
        out: list[Report] = [Followed(*self._key, have, version)] if have else []
        failures = [f.failure for f in self._feeders]
        return out + [Unfollowed(*self._key, failure) for failure in failures if failure]

    def end(self, key: WaveKey | None = None) -> None:
        """Let go of everything; where a wave is named, only if it is of this one or of one before it."""
        if key is not None and (
            self._key is None or self._key[0] != key[0] or self._key[1] > key[1]
        ):
            return
        for feeder in self._feeders:
            feeder.close()
        self._feeders, self._key = [], None
        self.following.forget()
