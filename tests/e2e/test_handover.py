"""A leading shard that is asked to end: its job goes on under another leader, from where it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from cluster import Cluster, agent, running, scheduler, shard, size
from comparing import assert_trained_as_plain_loop
from jobs import Job

from elps.contracts.state import JobState

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]

MEMBERS = [scheduler(), shard(1), shard(2), shard(3), agent(1, 2), agent(2, 2)]


@pytest_asyncio.fixture(loop_scope="module")
async def cluster() -> AsyncIterator[Cluster]:
    async with running(*MEMBERS) as it:
        yield it


def long(**fields: Any) -> dict[str, Any]:
    """Some seconds of training that never comes to a checkpoint before its end."""
    return {
        "id": "long",
        "task": "directed:Directed",
        "task_args": {"samples": 60, "wide": 40},
        "optimizer": {"name": "adam", "lr": 0.02},
        "schedule": {"name": "cosine", "warmup": 5},
        "batch": {"global": 12},
        "passes": 240,
        "dtype": "float64",
        "evaluate": {"every": 50},
        "checkpoint": {"every_s": 0},
        **size(2, 2),
        **fields,
    }


SOME = {"workers": {"min": 2, "max": 2}, "shards": {"min": 1, "max": 3}}


async def leader_of(job: Job) -> str:
    allocation = (await job.record()).allocation
    assert allocation is not None
    return allocation.shards[0]


async def test_a_leader_that_ends_hands_over_and_nothing_is_computed_again(
    cluster: Cluster,
) -> None:
    job = await cluster.submit(**long())
    await job.iteration(100)
    first = await leader_of(job)
    await cluster.stop(first)
    second = await leader_of(job)
    assert second != first
    await assert_trained_as_plain_loop(job, cluster.env)
    record = await job.record()
    assert record.progress.redone_iterations == 0
    assert job.told("rolled_back") == []
    assert JobState.QUEUED not in job.states[1:]
    assert record.terms == 2
    counted = [row.iteration for row in job.rows]
    assert len(counted) - len(set(counted)) <= 1, "at most the open iteration is told twice"
    assert len(set(range(1200)) - set(counted)) <= 1, "and at most one is told by nobody"


async def test_leaders_end_one_after_the_other_while_others_come(cluster: Cluster) -> None:
    job = await cluster.submit(**long())
    for number, at in enumerate((150, 400, 700)):
        await job.iteration(at)
        await cluster.stop(await leader_of(job))
        await cluster.start(shard(4 + number))
    await assert_trained_as_plain_loop(job, cluster.env)
    record = await job.record()
    assert record.progress.redone_iterations == 0
    assert job.told("rolled_back") == []
    assert record.terms >= 3, "two of them led at least"


async def test_the_only_shard_hands_over_to_one_that_is_free(cluster: Cluster) -> None:
    job = await cluster.submit(**long(**size(2, 1)))
    await job.iteration(100)
    first = await leader_of(job)
    await cluster.stop(first)
    await assert_trained_as_plain_loop(job, cluster.env)
    record = await job.record()
    assert record.progress.redone_iterations == 0
    assert record.terms == 2


@pytest.mark.thorough
async def test_whatever_is_asked_for_right_after_the_handover_loses_nothing(
    cluster: Cluster,
) -> None:
    await cluster.start(*(m for m in MEMBERS if m.name not in cluster.names))
    job = await cluster.submit(**long(**SOME, passes=700))
    for at, then in ((100, "shards"), (400, "drain"), (800, "pause")):
        await job.iteration(at)
        first = await leader_of(job)
        told = succeeded(job)
        leaving = asyncio.create_task(cluster.stop(first))
        await job.until(lambda n=told: succeeded(job) > n, "another leader")  # type: ignore[misc]
        match then:
            case "shards":
                await cluster.client.scale(job.id, shards=1)
            case "drain":
                allocation = (await job.record()).allocation
                assert allocation is not None
                await cluster.stop(allocation.shards[-1])
            case "pause":
                await cluster.ask("pause", job)
                await job.paused()
                record = await job.record()
                assert record.progress.checkpoint == record.progress.iteration >= at
                await cluster.ask("resume", job)
        await leaving
        await cluster.start(*(m for m in MEMBERS if m.name not in cluster.names))
        await cluster.client.scale(job.id, shards=3)
    await assert_trained_as_plain_loop(job, cluster.env, timeout_s=90.0)
    assert (await job.record()).progress.redone_iterations == 0
    assert job.told("rolled_back") == []


def succeeded(job: Job) -> int:
    """How often another shard was named to lead it."""
    return sum(" leads now" in event.reason for event in job.events)
