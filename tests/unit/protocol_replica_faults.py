"""The rules of replicas, one left out at a time. Each must be found by the world within so many schedules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
from protocol_fault import Fault

from elps.contracts.ids import PartitionId, ShardId
from elps.psshard.core.commands import Command
from elps.psshard.core.inheriting import Stock, Stocktaking
from elps.psshard.core.replicating import Replicas


class NoHold(Replicas):
    """No gate waits for replicas."""

    def hold(self, version: int) -> bool:
        return True


class AfterTheGate(Replicas):
    """Replicas count although they may have come at a version that others have not left."""

    def look(
        self,
        version: int,
        gate: int,
        placed: Mapping[PartitionId, ShardId],
        now: float,
        *,
        settling: bool = False,
    ) -> list[Command]:
        return super().look(version, version - 1, placed, now, settling=settling)


class AnyVersion(Stocktaking):
    """A copy is taken that cannot give the version to go on from."""

    def took(self, shard: ShardId, stock: Stock) -> None:
        claims = tuple(msgspec.structs.replace(claim, oldest=None) for claim in stock.claims)
        super().took(shard, replace(stock, claims=claims))


def _off(what: str = "", **how: Any) -> dict[str, Any]:
    return {"focus": "copies", "off": frozenset(what.split()), **how}


REPLICA_FAULTS = {
    "no-hold": Fault("no gate waits for replicas", 500, _off(replicas=NoHold)),
    "after-the-gate": Fault("they count too early", 200, _off(replicas=AfterTheGate), first=2_650),
    "any-version": Fault("a copy lacks the version", 200, _off(taking=AnyVersion), first=1_950),
    "no-spare": Fault("what is given up is gone at once", 500, _off("no-spare")),
    "no-copies": Fault("copies are not claimed", 200, _off("no-copies")),
    "copied-skips": Fault("skips do not come with the sums", 900, _off("copied-skips")),
}
