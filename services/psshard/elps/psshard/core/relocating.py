"""The side of a clock that moves partitions: it stands still at a boundary and goes on under the new map."""

from __future__ import annotations

from collections.abc import Iterable

from elps.contracts.ids import ShardId
from elps.psshard.core.commands import Command
from elps.psshard.core.readable import Readable


class Relocating(Readable):
    """What `Moving` decides, brought in line with what else the clock has under way."""

    plan: int
    _out: list[Command]

    def _serve(self, now: float) -> list[Command]:
        """Lend what can be lent, announce what can be announced, rest or end when it is time."""
        raise NotImplementedError

    def _next_boundary(self) -> int:
        """The first version that no partition has left or is about to leave."""
        raise NotImplementedError

    def want(self, shards: Iterable[ShardId], now: float) -> list[Command]:
        """The plan names the shards that are to hold the partitions."""
        self._out += self._moving.want(shards)
        return self._serve(now)

    def followed(
        self, shard: ShardId, wave: int, have: int, version: int, now: float
    ) -> list[Command]:
        """A shard tells how far its copies of a wave are; see `Moving.followed`."""
        self._moving.followed(shard, wave, have, version, now)
        return self._serve(now)

    def follow_failed(self, wave: int, reason: str, now: float) -> list[Command]:
        """A copy cannot go on following."""
        self._out += self._moving.failed(wave, reason, now)
        return self._serve(now)

    def _move(self, now: float) -> None:
        """Have the moves go on; stand still for an exchange, at a boundary where nothing else is in its way."""
        self._out += self._moving.look(self.t, now)
        if not self._moving.settling:
            self._goal.halt = None
        elif self._goal.halt is None and self._saving.writing is None:
            self._goal.halt = self._next_boundary()

    def _stand_still(self) -> None:
        """Nobody was lent anything beyond t, and no evaluation or checkpoint reads it: exchange the map."""
        out = self._moving.still(self.t)
        if out:
            self.held.clear()
            self.held.update(dict.fromkeys(sorted(set(self._moving.placed.values())), self.t))
            self.gate = min(self.gate, self.t - 1)  # those of the new map have not heard of t's
            self.plan += 1
        self._out += out
