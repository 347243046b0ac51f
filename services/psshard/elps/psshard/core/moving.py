"""How partitions come to lie on other shards while the job trains.

The partitions that are to move go in *waves* of bounded size, one wave at a time:

1. *Following*: each target gets a copy of the values and the optimizer's state in the background, then the sum of every
   version that the owner completes, and takes the same steps itself. Nothing waits for this.
2. *Settling*: the copies have caught up. The clock lends nothing beyond the next boundary, so that at this version
   no partition has accepted anything and everything that a partition is lies in its block.
3. *Exchanging*: at that boundary the map is exchanged under the next epoch. It counts once every shard of the old map
   and of the new one has taken it; then work is lent again.

What is to lie where follows from the shards that are wanted and from how fast they are (`Weighing`).

A wave that makes no progress is given up and begun again later. Only while the map is being exchanged there is no way
back but the checkpoint: a shard may have taken the new map and let its old partitions go.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import count

from elps.contracts.ids import PartitionId, ShardId
from elps.psshard.core import commands as do
from elps.psshard.core.commands import Command, Move
from elps.psshard.core.copying import Wave
from elps.psshard.core.weighing import Weighing

WAVE_BYTES = 64 << 20
"""Values that move at a time: the copies cost memory and bandwidth while they follow."""
STALLED_S = 15.0
"""A wave whose copies have neither come nor advanced for this long is given up; a new map is taken within this."""
FIRST_RETRY_S, LAST_RETRY_S = 1.0, 30.0


class Phase(Enum):
    """What a wave is at."""

    FOLLOWING = "following"
    SETTLING = "settling"
    EXCHANGING = "exchanging"


@dataclass
class _Wave(Wave):
    phase: Phase = Phase.FOLLOWING
    awaited: set[ShardId] = field(default_factory=set)  #: have not taken the new map
    awaited_at: float | None = None  #: since when, monotonic s


class Moving:
    """The moves of one job under one term, from one opening to the next."""

    def __init__(
        self,
        sizes: Mapping[PartitionId, int],
        placed: Mapping[PartitionId, ShardId],
        wave_bytes: int = WAVE_BYTES,
        numbers: Iterator[int] | None = None,
        weighing: Weighing | None = None,
    ) -> None:
        """`numbers` of waves are not given out twice under one epoch, whoever follows for whatever reason.

        `weighing` is what is known of the shards, by whoever led these moves before.
        """
        self.placed = dict(placed)  #: the map in force, or being exchanged
        self._sizes, self._wave_bytes = dict(sizes), wave_bytes
        self._wanted: tuple[ShardId, ...] | None = None  #: None: where everything is, is right
        self._wave: _Wave | None = None
        self._idle = True  #: nothing is to be moved: `place`, which takes its time, said so
        self._numbers = numbers or count(1)
        self._number = 0  #: of the newest wave
        self.exchanges = 0  #: how often the map was exchanged, the exchange under way included
        self._retry_at, self._retry_s = 0.0, FIRST_RETRY_S
        self._obstacle = ""  #: why the last wave was given up
        self._over = False
        self._weighing = weighing or Weighing()

    # --- what happens -------------------------------------------------------------------------------------------------

    def want(self, shards: Iterable[ShardId]) -> list[Command]:
        """Partitions are to lie on these shards, and on no others."""
        wanted = tuple(sorted(set(shards)))
        if wanted == self._wanted or not wanted or self._over:
            return []
        self._wanted, self._retry_at, self._retry_s = wanted, 0.0, FIRST_RETRY_S
        self._idle, self._obstacle = False, ""
        wave = self._wave
        if wave is None or wave.phase is Phase.EXCHANGING:
            return []  # a map that some have taken is taken by all: the next wave goes on from there
        if any(move.target not in wanted for move in wave.moves):
            return self._give_up("another set of shards is wanted", count=False)
        return []

    def look(self, version: int, now: float) -> list[Command]:
        """Begin a wave if one is needed, settle when its copies have caught up, give it up when it stalls.

        `version` is the oldest that some partition holds.
        """
        if self._over:
            return []
        self._weighing.reached(version, now)
        wave = self._wave
        if wave is None:
            out = self.weigh(version, now)
            return out + self._begin(now) if now >= self._retry_at and not self._idle else out
        if wave.phase is Phase.FOLLOWING and wave.holds(max(version - 1, 0)):
            wave.phase = Phase.SETTLING
        if wave.phase is Phase.EXCHANGING and wave.awaited_at is None:
            wave.awaited_at = now
        if wave.stalled_s(version, now) <= STALLED_S or wave.phase is Phase.EXCHANGING:
            return []
        why = f"the copies on {wave.lacking(version)} make no progress"
        return self.failed(wave.number, why, now)

    def worked(self, shard: ShardId, s_per_byte: float) -> None:
        """A shard says what it works for a byte and a version."""
        self._weighing.told(shard, s_per_byte)

    def followed(self, shard: ShardId, wave: int, have: int, version: int, now: float) -> None:
        """See `Wave.followed`."""
        if (current := self._current(wave)) is not None:
            current.followed(shard, have, version, now)

    def failed(self, wave: int, reason: str, now: float) -> list[Command]:
        """A copy cannot go on following."""
        current = self._current(wave)
        if current is None or current.phase is Phase.EXCHANGING:
            return []
        self._retry_at = now + self._retry_s
        self._retry_s = min(self._retry_s * 2, LAST_RETRY_S)
        return self._give_up(reason)

    def still(self, version: int) -> list[Command]:
        """Every partition holds this version, and nobody was lent anything beyond it."""
        wave = self._wave
        if wave is None or wave.phase is not Phase.SETTLING or not wave.holds(version):
            return []
        before = set(self.placed.values())
        self.placed |= {move.partition: move.target for move in wave.moves}
        wave.phase, wave.awaited = Phase.EXCHANGING, before | set(self.placed.values())
        self.exchanges += 1
        return [do.Exchange(wave.number, dict(self.placed), version)]

    def took_map(self, shard: ShardId, exchange: int) -> list[Command]:
        """A shard has taken the map of an exchange; the first one is number 1."""
        wave = self._wave
        if wave is None or wave.phase is not Phase.EXCHANGING or exchange != self.exchanges:
            return []
        wave.awaited.discard(shard)
        if wave.awaited:
            return []
        self._wave, self._retry_s, self._obstacle = None, FIRST_RETRY_S, ""
        moved = sum(self._sizes[move.partition] for move in wave.moves)
        what = f"{len(wave.moves)} partitions, {moved} bytes"
        return [do.Exchanged(), do.Remark("partitions_moved", what)]

    def again(self) -> list[Command]:
        """What to say again when a link comes back."""
        wave = self._wave
        if wave is None:
            return [do.Unfollow(self._number)] if self._number else []
        return [do.Follow(wave.number, wave.moves)] if wave.phase is not Phase.EXCHANGING else []

    def close(self) -> list[do.Unfollow]:
        """The job ends or rests here."""
        self._over = True
        wave, self._wave = self._wave, None
        return [do.Unfollow(wave.number)] if wave is not None else []

    def wants(self, now: float) -> bool:
        """Whether there is something to move now: a job without a barrier stands still for it, and for nothing else."""
        if self._wave is not None:
            return True
        if self._over or self._idle or now < self._retry_at:
            return False
        self._idle = not self._moves()
        return not self._idle

    def weigh(self, version: int, now: float) -> list[Command]:
        """What `look` does while nothing moves, for a job that does not stand still yet. `wants` may have changed."""
        if self._over or self._wave is not None:
            return []
        self._weighing.reached(version, now)
        return self._weigh(now) if self._idle else []

    # --- how it stands ------------------------------------------------------------------------------------------------

    @property
    def settling(self) -> bool:
        """Whether the clock is to come to rest at the next boundary and to stay there."""
        return self._wave is not None and self._wave.phase is not Phase.FOLLOWING

    @property
    def exchanging(self) -> bool:
        """Whether a new map is being taken; no partition may be worked on."""
        return self._wave is not None and self._wave.phase is Phase.EXCHANGING

    @property
    def holders(self) -> set[ShardId]:
        """Shards that hold partitions, or are to say that they have let them go. One with copies only is expendable."""
        awaited = self._wave.awaited if self._wave is not None else set()
        return {*self.placed.values(), *awaited}

    def stuck(self, now: float) -> list[ShardId]:
        """Shards that have not taken the new map in time, in order: nothing goes on without them."""
        wave = self._wave
        if wave is None or wave.awaited_at is None or now - wave.awaited_at <= STALLED_S:
            return []
        return sorted(wave.awaited)

    @property
    def done(self) -> bool:
        """Whether everything lies where it is wanted."""
        return self._wave is None and not self._moves()

    def waiting_for(self) -> str:
        """What the moves wait for, for people; empty while they wait for nothing."""
        wave = self._wave
        if wave is None:
            return f"moving partitions: {self._obstacle}" if self._obstacle else ""
        if wave.phase is Phase.EXCHANGING:
            return f"the new map: waiting for {', '.join(sorted(wave.awaited))}"
        targets = ", ".join(sorted(wave.at))
        return f"moving {len(wave.moves)} partitions to {targets}"

    # --- waves --------------------------------------------------------------------------------------------------------

    def _current(self, number: int) -> _Wave | None:
        return self._wave if self._wave is not None and self._wave.number == number else None

    def _moves(self) -> list[Move]:
        if self._wanted is None:
            return []
        target = self._weighing.target(self._sizes, self._wanted, self.placed)
        moves = [
            Move(p, self.placed[p], target[p])
            for p in sorted(target)
            if target[p] != self.placed[p]
        ]
        return sorted(moves, key=lambda m: (m.source in self._wanted, m.partition))  # type: ignore[operator]

    def _weigh(self, now: float) -> list[Command]:
        """Look whether another share would be better for shards that are not equally fast."""
        reason = self._weighing.look(self._sizes, self._wanted or (), self.placed, now)
        if not reason:
            return []
        self._idle = False
        return [do.Remark("shards_weighed", reason)]

    def _begin(self, now: float) -> list[Command]:
        moves: list[Move] = []
        size = 0
        for move in self._moves():
            size += self._sizes[move.partition]
            if moves and size > self._wave_bytes:
                break
            moves.append(move)
        if not moves:
            self._idle = True
            return []
        self._number = next(self._numbers)
        self._wave = _Wave(self._number, tuple(moves), now)
        return [do.Follow(self._number, self._wave.moves)]

    def _give_up(self, reason: str, *, count: bool = True) -> list[Command]:
        wave, self._wave = self._wave, None
        assert wave is not None
        self._obstacle = reason if count else ""
        remark = do.Remark("move_given_up", f"{len(wave.moves)} partitions: {reason}")
        return [do.Unfollow(wave.number), remark]
