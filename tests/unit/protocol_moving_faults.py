"""The rules of moving partitions, one left out at a time. Each must be found by the world within so many schedules."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from protocol_fault import Fault

from elps.contracts.ids import ShardId
from elps.psshard.core import commands as do
from elps.psshard.core.clock import Clock
from elps.psshard.core.commands import Command
from elps.psshard.core.moving import Moving, Phase, _Wave

# --- the leader's rules -----------------------------------------------------------------------------------------------


class SwapBehind(Moving):
    """The map is exchanged although a copy has not caught up."""

    def still(self, version: int) -> list[Command]:
        if self._wave is not None:
            self._wave.at = dict.fromkeys(self._wave.at, (version, 0))
        return super().still(version)


class HalfMap(Moving):
    """Work goes on when the first shard has taken the new map."""

    def took_map(self, shard: ShardId, exchange: int) -> list[Command]:
        if self.exchanging and self._wave is not None and exchange == self.exchanges:
            self._wave.awaited &= {shard}
        return super().took_map(shard, exchange)


class OldMapTaken(Clock):
    """What a shard says under the map before counts as having taken the new one."""

    def progressed(
        self, shard: ShardId, version: int, now: float, exchange: int = 0
    ) -> list[Command]:
        if exchange != self._moving.exchanges:
            self._out += self._moving.took_map(shard, self._moving.exchanges)
            return self._serve(now)
        return super().progressed(shard, version, now, exchange)


class OldMapCounts(Clock):
    """Progress under an earlier map counts, also that of a shard that held nothing then."""

    def progressed(
        self, shard: ShardId, version: int, now: float, exchange: int = 0
    ) -> list[Command]:
        if exchange == self._moving.exchanges:
            return super().progressed(shard, version, now, exchange)
        took, self._moving.took_map = self._moving.took_map, lambda *_: []  # type: ignore[method-assign]
        out = super().progressed(shard, version, now, self._moving.exchanges)
        self._moving.took_map = took  # type: ignore[method-assign]
        return out


class NoHalt(Clock):
    """The map is exchanged although something is lent beyond the version."""

    def _move(self, now: float) -> None:
        super()._move(now)
        if self._moving.settling and self._saving.writing is None:
            self._goal.halt = self.t
            self._stand_still()


class GateOnce(Clock):
    """What was announced under the map before is not announced again."""

    def _stand_still(self) -> None:
        gate = self.gate
        super()._stand_still()
        self.gate = gate


class EarlyWave(Clock):
    """Copies are asked for before there are values."""

    def _serve(self, now: float) -> list[Command]:
        if self._begun is not None and not self.over and not self._complete_everywhere:
            self._move(now)
        return super()._serve(now)


class CheckpointAcross(Clock):
    """A checkpoint that is being written does not hold an exchange back."""

    def _move(self, now: float) -> None:
        writing, self._saving.writing = self._saving.writing, None
        super()._move(now)
        self._saving.writing = writing

    def _settle(self, now: float) -> None:
        if self._goal.halts(self.t) and not self.needs_workers:
            self._stand_still()
        super()._settle(now)


class OldWave(Moving):
    """What is said of an earlier wave counts for this one."""

    def _current(self, number: int) -> _Wave | None:
        return self._wave


class WantInExchange(Moving):
    """Another wish gives up a wave whose map is being exchanged."""

    def want(self, shards: Iterable[ShardId]) -> list[Command]:
        wave = self._wave
        exchanging = wave is not None and wave.phase is Phase.EXCHANGING
        if wave is not None and exchanging:
            wave.phase = Phase.SETTLING
        out = super().want(shards)
        if self._wave is not None and exchanging:
            self._wave.phase = Phase.EXCHANGING
        return out


class NoSecondFollow(Moving):
    """That copies are to follow is not said again when a link comes back."""

    def again(self) -> list[Command]:
        return [c for c in super().again() if not isinstance(c, do.Follow)]


class NoSecondUnfollow(Moving):
    """That copies are not wanted any more is not said again when a link comes back."""

    def again(self) -> list[Command]:
        return [c for c in super().again() if not isinstance(c, do.Unfollow)]


def _off(what: str, **how: Any) -> dict[str, Any]:
    return {"off": frozenset(what.split()), "focus": "moves", **how}


def _leader(**how: Any) -> dict[str, Any]:
    return {"focus": "moves", **how}


MOVING_FAULTS = {
    "swap-behind": Fault(
        "the map is exchanged while a copy is behind", 500, _leader(moving=SwapBehind)
    ),
    "any-version": Fault(
        "a copy is taken over at whatever version it is",
        500,
        _off("any-version", moving=SwapBehind),
    ),
    "half-map": Fault(
        "work goes on before all have the new map",
        5_000,
        _off("half-map", moving=HalfMap),
        first=1300,
    ),
    "old-map-taken": Fault(
        "what is said under the map before counts as having taken the new one",
        1_000,
        _leader(clock=OldMapTaken),
    ),
    "old-map-counts": Fault(
        "progress under an earlier map counts", 2_000, _leader(clock=OldMapCounts), first=550
    ),
    "no-halt": Fault(
        "the map is exchanged while something is lent beyond", 500, _leader(clock=NoHalt)
    ),
    "gate-once": Fault(
        "a gate is not announced again under a new map", 500, _leader(clock=GateOnce)
    ),
    "early-wave": Fault(
        "copies are asked for before there are values", 500, _leader(clock=EarlyWave)
    ),
    "checkpoint-across": Fault(
        "a checkpoint is written across an exchange", 500, _leader(clock=CheckpointAcross)
    ),
    "old-wave": Fault(
        "what is said of an earlier wave counts", 2_000, _leader(moving=OldWave), first=7800
    ),
    "want-in-exchange": Fault(
        "another wish gives up an exchange", 1_000, _leader(moving=WantInExchange)
    ),
    "no-second-follow": Fault(
        "copies are not asked for again", 1_000, _leader(moving=NoSecondFollow)
    ),
    "no-second-unfollow": Fault("copies are left behind", 1_000, _leader(moving=NoSecondUnfollow)),
    "state-late": Fault(
        "a sum is lost between a copy and the first that is sent", 500, _off("state-late any-sum")
    ),
    "state-early": Fault(
        "a sum that a copy holds is sent as well", 2_000, _off("state-early any-sum"), first=220
    ),
    "no-lineage": Fault("who asks under the map before is not heard", 500, _off("no-lineage")),
    "double-ask": Fault("who has asked asks again under a new map", 1_000, _off("double-ask")),
    "always-on": Fault("who is from before a rollback goes on", 1_000, _off("always-on")),
    "never-ask": Fault(
        "who has lost a lease to a new map does not ask", 2_000, _off("never-ask"), first=400
    ),
}
"""Found by the world."""

MOVING_SPARE = {
    "swap-behind-seen": Fault(
        "a copy that is behind when the map is exchanged is seen, and costs going back to the checkpoint",
        300,
        _off("troubles", moving=SwapBehind),
    ),
    "no-second-follow-seen": Fault(
        "copies that are not asked for again are given up, and asked for under a new number",
        300,
        _off("stalls", moving=NoSecondFollow),
    ),
    "old-reading": Fault(
        "what is read of arrays that a new epoch writes counts; nobody is lent anything that needs it",
        300,
        _off("old-reading"),
    ),
}
"""What another rule makes good, or no schedule has met."""
