"""The rules of clipping, one left out at a time. Each must be found by the world within so many schedules."""

from __future__ import annotations

from typing import Any

from protocol_fault import Fault

from elps.contracts.ids import ShardId
from elps.psshard.core.clipping import Clipping, Norms
from elps.psshard.core.clock import Clock
from elps.psshard.core.commands import Command
from elps.psshard.core.part import Advance, Part


class _OwnNorm(Clipping):
    def measured(self, shard: ShardId, iteration: int, norms: Norms) -> list[Command]:
        self._shards = {shard}
        return super().measured(shard, iteration, norms)


class OwnNorm(Clock):
    """The first shard's vote decides."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._clipping.__class__ = _OwnNorm


class StepsAtOnce(Part):
    """A partition does not wait for the factor."""

    def due(self, partition: Any) -> Advance | None:
        clips, self.clips = self.clips, False
        step = super().due(partition)
        self.clips = clips
        return step


def _off(what: str = "", **how: Any) -> dict[str, Any]:
    return {"clips": True, "off": frozenset(what.split()), **how}


CLIPPING_FAULTS = {
    "own-norm": Fault("a shard's norm is taken for that of all", 100, _off(clock=OwnNorm)),
    "steps-at-once": Fault("no step waits for the factor", 100, _off(part=StepsAtOnce)),
    "no-second-norms": Fault(
        "norms that were lost are not told again", 200, _off("no-second-norms")
    ),
    "new-factor": Fault(
        "what is missing of a step is clipped otherwise",
        100,
        _off("new-factor", focus="heirs"),
        first=480,
    ),
    "copied-factor": Fault("a copy forgets its factor", 100, _off("copied-factor", focus="copies")),
}
"""Found by the world."""
