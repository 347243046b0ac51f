"""The rules of going on after another leader, one left out at a time. Each must be found within so many schedules."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from protocol_fault import Fault

from elps.psshard.core.inheriting import Inheritance, Stock, Stocktaking
from elps.stream.geometry import Geometry
from elps.stream.interval import Interval


class Newest(Stocktaking):
    """The newest version is gone on from, although some partition does not have it."""

    def verdict(self) -> Inheritance | str:
        found = super().verdict()
        if isinstance(found, Inheritance) and found.ahead:
            return replace(found, version=found.version + 1, ahead=False)
        return found


class NoSkips(Stocktaking):
    """The skips that partitions count with are forgotten, if the store does not know them."""

    def took(self, shard: Any, stock: Stock) -> None:
        super().took(shard, replace(stock, skips=()))


class _AllInForce(Inheritance):
    def in_force(self, kept: Iterable[Interval], geometry: Geometry) -> list[Interval]:
        return sorted({*self.skips, *kept})


class KeptSkips(Stocktaking):
    """All skips in the store come into force, also one that was kept for after a rollback."""

    def verdict(self) -> Inheritance | str:
        found = super().verdict()
        return _AllInForce(**vars(found)) if isinstance(found, Inheritance) else found


def _off(what: str = "", **how: Any) -> dict[str, Any]:
    return {"focus": "heirs", "off": frozenset(what.split()), **how}


INHERITING_FAULTS = {
    "newest": Fault("the newest version is gone on from", 300, _off(taking=Newest)),
    "no-skips": Fault("skips that were counted with are lost", 300, _off(taking=NoSkips)),
    "kept-skips": Fault(
        "skips kept for later come into force", 600, _off(taking=KeptSkips), first=4_500
    ),
    "one-version": Fault("the version before cannot be read", 300, _off("one-version")),
    "unsealed": Fault("who was adding goes on to add", 300, _off("unsealed")),
    "rests-ahead": Fault("it rests where some have left", 500, _off("rests-ahead"), first=1200),
}
"""Found by the world."""
