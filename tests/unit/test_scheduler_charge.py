"""Claims whose answers come late."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from elps.contracts import topology
from elps.contracts.errors import Superseded
from elps.contracts.ids import JobId
from elps.scheduler.archive import Archive
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


class Counting(MemoryStore):
    """Tells what each write was sent with."""

    def __init__(self) -> None:
        super().__init__()
        self.known: list[int] = []

    async def hash_put_under(
        self, key: str, fields: Mapping[str, bytes], lease_key: str, lease: Lease
    ) -> int:
        self.known.append(lease.writes)
        await asyncio.sleep(0)
        return await super().hash_put_under(key, fields, lease_key, lease)


def in_charge_over(store: MemoryStore) -> InCharge:
    clock, bus = SimpleNamespace(monotonic=lambda: 0.0), SimpleNamespace(connected=True)
    return InCharge(store, cast(Any, bus), cast(Any, clock), Past())


async def test_values_are_put_one_after_the_other_whoever_puts_them() -> None:
    """Else one that the store loses is not missed: the next was sent before anybody knew of it."""
    store = Counting()
    in_charge = in_charge_over(store)
    await in_charge.come()
    await asyncio.gather(*(in_charge.put("key", {str(n): b""}) for n in range(3)))
    assert store.known == [0, 1, 2]


async def test_one_that_stood_still_removes_no_chunks_of_a_later_job_of_the_id() -> None:
    store, job = MemoryStore(), JobId("j")
    archive = Archive(store, in_charge := in_charge_over(store), "fifo")
    await in_charge.come()
    key = topology.chunk_key(job, "1.1-5", 0, "values")
    await store.put(key, b"")
    await archive.remove_strays(job)
    assert await store.get(key) is None
    await store.put(key, b"")
    await store.delete([topology.CHARGE])
    await store.claim(topology.CHARGE, "another", 600.0, at_least=7)
    with pytest.raises(Superseded):
        async with asyncio.timeout(20):
            await archive.remove_strays(job)
    assert await store.get(key) == b""
