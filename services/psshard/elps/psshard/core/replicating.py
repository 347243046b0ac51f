"""Replicas: copies of all partitions that follow for as long as the job trains, each on another shard than its owner.

They are made as copies that move are (`moving`), in the background, and take every step that the owners take. When
they have come close, the gate of a version begins to wait until they hold it. Once they have held one they *count*: no
partition leaves a version that is not on its replica, so that whichever shard is lost, what it had is there at that
version or the next (`inheriting`).

A replica that makes no progress holds the gate up, so it is waited for only so long; then training goes on without,
and replicas are made again, later each time. Where the way to one breaks they are made again at once, and the gate
waits for the new ones as it did for the old: the shard at the other end may have died with a version that is nowhere
else, which must not become the one that all the others have left behind. That it has died is heard meanwhile.

An exchange of the map and an opening end them as well; they are made anew for the new map. What is given up is kept on
its shard until a gate has made it useless (`Member`), since it may be all that is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count

from elps.contracts.ids import PartitionId, ShardId
from elps.placement import place_replicas
from elps.psshard.core import commands as do
from elps.psshard.core.commands import Command, Move
from elps.psshard.core.copying import Wave

STALLED_S = 15.0
"""Replicas that have neither come nor advanced for this long are given up: longer than it takes to hear of a death."""
FIRST_RETRY_S, LAST_RETRY_S = 0.2, 30.0


@dataclass
class _Wave(Wave):
    awaited: bool = False  #: the gate waits for it
    counts: bool = False  #: and it has held a version that the gate waited for


@dataclass
class Replicas:
    """The replicas of one job under one term, from one opening to the next.

    `sizes` is bytes of each partition; empty for a job that wants no replicas. `hosts` may grow.
    """

    sizes: Mapping[PartitionId, int] = field(default_factory=dict)
    hosts: Mapping[ShardId, str] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=count)
    _shards: tuple[ShardId, ...] = ()  #: those that may hold any
    _wave: _Wave | None = None
    _number: int = 0  #: of the newest wave
    _idle: bool = True  #: there is nothing to be made
    _retry_at: float = 0.0
    _retry_s: float = FIRST_RETRY_S
    #: since when the gate waits for new ones in place of some that counted
    _broken_at: float | None = None
    _obstacle: str = ""  #: why they were given up last
    _over: bool = False

    def want(self, shards: Iterable[ShardId]) -> list[Command]:
        """Replicas may lie on these shards, and on no others."""
        wanted = tuple(sorted(set(shards)))
        if wanted == self._shards or self._over:
            return []
        self._shards, self._retry_at, self._retry_s = wanted, 0.0, FIRST_RETRY_S
        self._idle, self._obstacle = not self.sizes, ""
        if self._wave is None or all(move.target in wanted for move in self._wave.moves):
            return []
        return [*self._give_up()]

    def look(
        self,
        version: int,
        gate: int,
        placed: Mapping[PartitionId, ShardId],
        now: float,
        *,
        settling: bool = False,
    ) -> list[Command]:
        """Make replicas where there are none, have them count, give them up when they stall.

        `version` is the oldest that some partition holds, `gate` the newest that some may have left. `settling`: the
        map is about to be exchanged, so nothing is begun but what that waits for.
        """
        wave = self._wave
        if self._over:
            return []
        if self._broken_at is not None and now - self._broken_at > STALLED_S:
            self._broken_at = None
        if wave is None:
            idle = self._idle or now < self._retry_at or (settling and self._broken_at is None)
            return [] if idle else self._begin(placed, now)
        out: list[Command] = []
        # Before the gate of a version nobody has left it: so a copy that holds it can give it.
        wave.awaited |= gate < version and wave.holds(max(version - 1, 0))
        if wave.awaited and not wave.counts and wave.holds(version):
            wave.counts, self._retry_s = True, FIRST_RETRY_S
            self._obstacle, self._broken_at = "", None
            size = sum(self.sizes[move.partition] for move in wave.moves)
            out.append(do.Remark("replicated", f"{len(wave.moves)} partitions, {size} bytes"))
        if wave.stalled_s(version, now) <= STALLED_S:
            return out
        why = f"the replicas on {wave.lacking(version)} make no progress"
        return [*out, *self._give_up(), self._failed(why, now)]

    def hold(self, version: int) -> bool:
        """Whether all replicas that the gate of a version waits for hold it."""
        if self._wave is not None and self._wave.awaited:
            return self._wave.holds(version)
        return self._broken_at is None or self._idle

    def followed(self, shard: ShardId, wave: int, have: int, version: int, now: float) -> None:
        """See `Wave.followed`."""
        if self._wave is not None and self._wave.number == wave:
            self._wave.followed(shard, have, version, now)

    def failed(self, wave: int, reason: str, now: float) -> list[Command]:
        """The way to a copy has broken."""
        if self._wave is None or self._wave.number != wave:
            return []
        if self._wave.counts:
            self._broken_at = now
        remark, self._wave = self._failed(reason, now), None
        return [remark]

    def _failed(self, reason: str, now: float) -> do.Remark:
        self._retry_at = now + self._retry_s
        self._retry_s = min(self._retry_s * 2, LAST_RETRY_S)
        self._obstacle = reason
        return do.Remark("replicas_given_up", reason)

    def ended(self) -> None:
        """The map is exchanged: the epoch of these copies is over."""
        self._wave, self._idle, self._broken_at = None, not self.sizes, None

    def again(self) -> list[Command]:
        """What to say again when a link comes back."""
        if self._wave is None:
            return [do.Unfollow(self._number, standing=True)] if self._number else []
        return [do.Follow(self._wave.number, self._wave.moves, standing=True)]

    def close(self) -> list[do.Unfollow]:
        """The job ends or rests here."""
        self._over = True
        self._broken_at = None
        return self._give_up() if self._wave is not None else []

    # --- how it stands ------------------------------------------------------------------------------------------------

    @property
    def counts(self) -> bool:
        """Whether every partition has a replica that the gate waits for."""
        return self._wave is not None and self._wave.counts

    def waiting_for(self, version: int) -> str:
        """Which replicas the gate of a version waits for, for people; empty when it waits for none."""
        if self.hold(version):
            return ""
        wave = self._wave
        new = f"new ones, since {self._obstacle}"
        who = f"the replicas on {wave.lacking(version)}" if wave is not None else new
        return f"version {version} is to be replicated: waiting for {who}"

    def state(self) -> str:
        """How it stands, for people; empty for a job without replicas."""
        if not self.sizes:
            return ""
        if self._wave is not None:
            return "every partition has one" if self._wave.counts else "being made"
        if self._obstacle:
            return f"none: {self._obstacle}"
        return "none: there is no second shard" if self._idle else "none yet"

    # --- waves --------------------------------------------------------------------------------------------------------

    def _begin(self, placed: Mapping[PartitionId, ShardId], now: float) -> list[Command]:
        targets = place_replicas(self.sizes, placed, self._shards, self.hosts)
        if not targets:
            self._idle = True
            return []
        self._number = next(self.numbers)
        moves = tuple(Move(p, placed[p], targets[p]) for p in sorted(targets))
        self._wave = _Wave(self._number, moves, now)
        return [do.Follow(self._number, moves, standing=True)]

    def _give_up(self) -> list[do.Unfollow]:
        wave, self._wave = self._wave, None
        assert wave is not None
        return [do.Unfollow(wave.number, standing=True)]
