"""Claims whose answers come late."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from elps.contracts import topology
from elps.contracts.errors import Superseded
from elps.scheduler.charge import TTL_S, InCharge
from elps.scheduler.core.tenure import Past
from elps.storage.memory import MemoryStore
from elps.storage.port import Lease


class Late(MemoryStore):
    """Grants the lease, and is heard only once it is over and another one has it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    async def claim(self, key: str, holder: str, ttl_s: float, **terms: Any) -> Lease:
        lease = await super().claim(key, holder, ttl_s, **terms)
        if self.now == 0.0:
            self.now += TTL_S
            await super().claim(key, "another", 600.0, over=holder)
        return lease


async def test_one_that_hears_too_late_that_it_was_in_charge_does_not_wait_for_ever() -> None:
    store, past = Late(), Past()
    clock, bus = SimpleNamespace(monotonic=lambda: store.now), SimpleNamespace(connected=True)
    in_charge = InCharge(store, cast(Any, bus), cast(Any, clock), past)
    with pytest.raises(Superseded):
        async with asyncio.timeout(20):
            await in_charge.come()
    assert (await store.claim(topology.CHARGE, "", 1.0)).holder == "another"
    assert past.seen == 2
