"""The rules of going on after another leader, one left out at a time. Each must be found within so many schedules."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from protocol_faults import Fault

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


class AnyHistory(Stocktaking):
    """What there is belongs together, whatever it has come from."""

    def verdict(self) -> Inheritance | str:
        stocks = {s: stock for s, stock in self._stocks.items() if stock.history is not None}
        newest = max(
            (stock.history for stock in stocks.values() if stock.history is not None),
            key=lambda h: (h.opened.term.number, h.opened.n),
            default=None,
        )
        self._stocks |= {s: replace(stock, history=newest) for s, stock in stocks.items()}
        return super().verdict()


class OldestHistory(Stocktaking):
    """Of two histories the older one is taken."""

    def verdict(self) -> Inheritance | str:
        found = [(s.history.opened, s.history) for s in self._stocks.values() if s.history]
        if not found:
            return super().verdict()
        oldest = min(found, key=lambda h: (h[0].term.number, h[0].n))[1]
        self._stocks = {s: k for s, k in self._stocks.items() if k.history in (None, oldest)}
        return super().verdict()


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
    "any-history": Fault(
        "blocks of two histories are mixed", 500, _off(taking=AnyHistory), first=5500
    ),
    "oldest-history": Fault(
        "an older history is gone on with", 500, _off(taking=OldestHistory), first=5500
    ),
    "no-skips": Fault("skips that were counted with are lost", 300, _off(taking=NoSkips)),
    "kept-skips": Fault(
        "skips kept for later come into force", 600, _off(taking=KeptSkips), first=1300
    ),
    "one-version": Fault("the version before cannot be read", 300, _off("one-version")),
    "unsealed": Fault("who was adding goes on to add", 300, _off("unsealed")),
    "rests-ahead": Fault("it rests where some have left", 500, _off("rests-ahead"), first=900),
}
"""Found by the world."""
