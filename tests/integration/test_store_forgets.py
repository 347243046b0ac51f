"""Redis is back within a moment, without its newest second or without anything: no call fails, and nothing is lost."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from scheduler_stack import Stack, another, running_stack
from store_losses import copied, emptied, set_back

from elps.contracts import topology
from elps.contracts.codec import decode
from elps.contracts.ids import JobId
from elps.contracts.messages import DropJob, StopTrainer
from elps.contracts.state import JobRecord, JobState
from elps.local.store import PrivateStore
from elps.storage.port import Store
from elps.storage.redis import RedisStore
from elps.storage.scripts import HELD

ROUNDS = 6
"""A standby that did not hold back would get the lease in about every other one."""


@pytest.fixture
async def stack(private_store: PrivateStore) -> AsyncIterator[Stack]:
    store = await RedisStore.connect(private_store.url)
    async with running_stack(store=store) as stack:
        yield stack
    await store.close()


async def states(store: Store) -> dict[str, JobState]:
    found = await store.hash_all(topology.JOB_INDEX)
    return {job: decode(value, JobRecord).state for job, value in found.items()}


async def test_queued_paused_and_ended_jobs_outlive_a_store_that_comes_back_empty(
    stack: Stack, private_store: PrivateStore
) -> None:
    for job in ("runs", "killed", "paused", "queued"):
        assert (await stack.submit(job)).ok
    await stack.reached("runs", JobState.RUNNING)
    assert (await stack.ask("kill", job="killed")).ok
    assert (await stack.ask("pause", job="paused")).ok
    before = await states(stack.kept)
    await emptied(private_store)
    await stack.until_stored(states, lambda found: found == before)
    await stack.stop_scheduler()
    await stack.start_scheduler()
    assert (await stack.ask("resume", job="paused")).ok
    assert (await stack.record("runs")).terms == 1
    assert before == {
        "runs": JobState.RUNNING,
        "killed": JobState.KILLED,
        "paused": JobState.PAUSED,
        "queued": JobState.QUEUED,
    }


async def test_what_a_user_was_told_in_the_second_that_the_store_loses_stays_true(
    stack: Stack, private_store: PrivateStore, tmp_path: Path
) -> None:
    assert (await stack.submit("one")).ok
    await stack.reached("one", JobState.RUNNING)
    copy = await copied(private_store, tmp_path / "copy")
    assert (await stack.ask("kill", job="one")).ok
    assert (await stack.submit("two")).ok
    await stack.reached("two", JobState.RUNNING)
    await set_back(private_store, copy)
    wanted = {"one": JobState.KILLED, "two": JobState.RUNNING}
    await stack.until_stored(states, lambda found: found == wanted)
    await stack.until_stored(_keys_of_one, lambda found: not found)


async def _keys_of_one(store: Store) -> list[str]:
    """It was killed, and they were removed, before the store forgot that."""
    return [key async for key in store.scan(topology.job_prefix(JobId("one")))]


async def test_a_standby_does_not_take_over_from_an_empty_store_and_drops_no_job(
    stack: Stack, private_store: PrivateStore
) -> None:
    """Both claim as soon as they reach it, one of them first: each time it must be the one that knows the jobs."""
    for job in ("one", "two"):
        assert (await stack.submit(job)).ok
    await stack.reached("one", JobState.RUNNING)
    before = await states(stack.kept)
    other = await RedisStore.connect(private_store.url)
    async with another(stack, other):
        for _ in range(ROUNDS):
            await emptied(private_store)
            await stack.until_stored(states, lambda found: found == before)
        told = {beat.charge for beat in stack.beats if beat.charge is not None}
        orders = [*stack.shard.orders, *stack.agent.orders]
        assert not [order for order in orders if isinstance(order, DropJob | StopTrainer)]
        assert len(told) == 1
        assert (await stack.record("one")).terms == 1
    await other.close()


async def test_one_that_starts_while_the_store_is_empty_gives_the_jobs_back(stack: Stack) -> None:
    """It knows of nobody, and is in charge until the other one finds it there."""
    for job in ("one", "two"):
        assert (await stack.submit(job)).ok
    await stack.reached("one", JobState.RUNNING)
    before = await states(stack.kept)
    number = (await stack.kept.claim(topology.CHARGE, "", 1.0)).number
    lost = [topology.JOB_INDEX, topology.CHARGE, topology.CHARGE + HELD]
    holder = ""
    while holder != "a newcomer":  # else the other one was there first
        await stack.kept.delete(lost)
        holder = (await stack.kept.claim(topology.CHARGE, "a newcomer", 60.0)).holder
    await stack.until(lambda: any(b.charge and b.charge.number > number for b in stack.beats))
    await stack.until_stored(states, lambda found: found == before)
    orders = [*stack.shard.orders, *stack.agent.orders]
    assert not [order for order in orders if isinstance(order, DropJob | StopTrainer)]
    assert (await stack.record("one")).terms == 1
