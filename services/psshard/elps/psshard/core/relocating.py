"""The side of a clock that sees to where partitions and their replicas lie.

For partitions to move it stands still at a boundary and goes on under the new map; replicas follow meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable

from elps.contracts.ids import ShardId
from elps.psshard.core.commands import Command
from elps.psshard.core.resting import Resting


class Relocating(Resting):
    """What `Moving` and `Replicas` decide, brought in line with what else the clock has under way."""

    plan: int

    def want(self, shards: Iterable[ShardId], now: float) -> list[Command]:
        """The plan names the shards that are to hold the partitions."""
        wanted = list(shards)
        self._out += [*self._moving.want(wanted), *self._replicas.want(wanted)]
        return self._serve(now)

    def followed(
        self, shard: ShardId, wave: int, have: int, version: int, now: float
    ) -> list[Command]:
        """A shard tells how far its copies of a wave are; see `Followed`."""
        self._moving.followed(shard, wave, have, version, now)
        self._replicas.followed(shard, wave, have, version, now)
        return self._serve(now)

    def worked(self, shard: ShardId, s_per_byte: float) -> list[Command]:
        """A shard says what it works for a byte and a version."""
        self._moving.worked(shard, s_per_byte)
        return []

    def follow_failed(self, wave: int, reason: str, now: float) -> list[Command]:
        """A copy cannot go on following."""
        self._out += self._moving.failed(wave, reason, now)
        self._out += self._replicas.failed(wave, reason, now)
        return self._serve(now)

    def _move(self, now: float) -> None:
        """Have copies and moves go on; stand still for an exchange, at a boundary where nothing else is in its way."""
        self._out += self._moving.look(self.t, now)
        if not self._moving.exchanging:
            settling, placed = self._moving.settling, self._moving.placed
            left = max(self.gate, self._least - 1)  #: no newer version has been left anywhere
            self._out += self._replicas.look(self.t, left, placed, now, settling=settling)
        if not self._moving.settling:
            self._goal.halt = None
        elif self._goal.halt is None and self._saving.writing is None:
            self._goal.halt = self._next_boundary()
        else:
            self._out += self._saving.hurry()

    def _stand_still(self) -> None:
        """Nobody was lent anything beyond t, and no evaluation or checkpoint reads it: exchange the map."""
        if not self._replicas.hold(self.t):
            return  # what is here alone would be exchanged
        out = self._moving.still(self.t)
        if out:
            self.held.clear()
            self.held.update(dict.fromkeys(sorted(set(self._moving.placed.values())), self.t))
            self.gate = min(self.gate, self.t - 1)  # those of the new map have not heard of t's
            self.plan += 1
            self._replicas.ended()
        self._out += out
