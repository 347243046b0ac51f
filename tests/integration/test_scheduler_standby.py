"""Two schedulers on one bus and one store, and what outlives the one in charge."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest
from scheduler_stack import BOUND_S, Stack, another, running_stack

from elps.contracts import topology
from elps.contracts.codec import encode
from elps.contracts.epoch import Charge
from elps.contracts.errors import Superseded
from elps.contracts.ids import JobId
from elps.contracts.state import JobState
from elps.messaging.memory import MemoryBroker, MemoryBus
from elps.runtime.service import SystemClock
from elps.scheduler.charge import InCharge
from elps.scheduler.core import tenure
from elps.storage.memory import MemoryStore


@pytest.fixture
async def stack() -> AsyncIterator[Stack]:
    async with running_stack() as stack:
        yield stack


def numbers(stack: Stack) -> set[int]:
    """Of the charges that were told."""
    return {beat.charge.number for beat in stack.beats if beat.charge is not None}


async def test_a_standby_takes_over_at_once_from_one_that_ends_in_order(stack: Stack) -> None:
    await stack.submit("one")
    await stack.reached("one", JobState.RUNNING)
    async with another(stack) as standby:
        assert standby.serving is None
        await stack.stop_scheduler()
        await stack.until(lambda: 2 in numbers(stack))
        assert numbers(stack) == {1, 2}
        assert (await stack.submit("two")).ok
        assert (await stack.ask("kill", job="one")).ok
        await stack.reached("two", JobState.RUNNING)
        orders = {order.by.number for order in stack.shard.orders}
        assert orders == {1, 2}
    await stack.start_scheduler()
    await stack.until(lambda: 3 in numbers(stack))


async def test_one_that_members_do_not_obey_gives_up_and_comes_back_above_them(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store has forgotten a later scheduler, which members have heard. It does not come, either."""
    monkeypatch.setattr(tenure, "PATIENCE", 0.1)
    stack.shard.obeys = Charge(7, 99)
    await stack.until(lambda: 8 in numbers(stack))
    stack.shard.obeys = Charge(8, 1)
    await stack.until(lambda: 9 in numbers(stack))
    assert (await stack.submit("one")).ok


async def test_a_record_that_another_scheduler_may_have_written_is_not_written(
    stack: Stack,
) -> None:
    await stack.submit("one")
    await stack.reached("one", JobState.RUNNING)
    other = msgspec.structs.replace(await stack.record("one"), workers_named=77)
    await stack.store.claim(topology.CHARGE, "somebody", 0.1, over=stack.holder())
    await stack.store.hash_put(topology.JOB_INDEX, "one", encode(other))
    assert (await stack.ask("pause", job="one")).ok, "by the next scheduler"
    await stack.until(lambda: max(numbers(stack)) >= 3)
    assert (await stack.record("one")).workers_named == 77, "nothing was written over it"
    assert (await stack.submit("two")).ok, "by the same process, in charge again"


async def test_a_chosen_policy_outlives_the_scheduler_and_jobs_are_explained(stack: Stack) -> None:
    assert (await stack.ask("policy", policy="eps")).reason == "fifo before, eps from now on"
    assert not (await stack.ask("policy", policy="best")).ok
    await stack.stop_scheduler()
    await stack.start_scheduler()
    assert (await stack.ask("policy", policy="eps")).reason == "eps before, eps from now on"
    await stack.submit("one", workers={"min": 1, "max": 3})
    await stack.reached("one", JobState.RUNNING)
    lines = (await stack.ask("explain", job="one")).lines
    assert "1 worker (1 on a1)" in " ".join(lines)
    assert not (await stack.ask("explain", job="two")).ok


async def test_one_that_was_followed_removes_no_keys_and_no_record() -> None:
    store, broker = MemoryStore(), MemoryBroker()
    old, new = (InCharge(store, MemoryBus(broker), SystemClock(), tenure.Past()) for _ in range(2))
    job = JobId("again")  # it was deleted, and its id has been used again since
    keys = [topology.term_key(job), topology.manifests_key(job)]
    async with asyncio.timeout(BOUND_S):
        await old.come()
        await old.leave()
        await new.come()
    await store.hash_put(topology.JOB_INDEX, job, b"record")
    for key in keys:
        await store.hash_put(key, "f", b"x")
    with pytest.raises(Superseded):
        await old.remove(keys)
    with pytest.raises(Superseded):
        await old.remove_fields(topology.JOB_INDEX, [job])
    assert len([key async for key in store.scan("elps:job")]) == 3
    await new.remove(keys)
    await new.remove_fields(topology.JOB_INDEX, [job])
    assert not [key async for key in store.scan("elps:job")]
