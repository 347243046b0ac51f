"""A leading shard that is asked to end: its job goes on under another leader, from where it is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from cluster import Cluster, agent, running, scheduler, shard, size
from comparing import assert_trained_as_plain_loop
from jobs import Job

from elps.contracts.state import JobState

pytestmark = pytest.mark.asyncio(loop_scope="module")

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
        "passes": 400,
        "dtype": "float64",
        "evaluate": {"every": 50},
        "checkpoint": {"every_s": 0},
        **size(2, 2),
        **fields,
    }


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
    assert sorted(set(counted)) == list(range(max(counted) + 1))
    assert len(counted) - len(set(counted)) <= 1, "at most the open iteration is told twice"


async def test_leaders_end_one_after_the_other_while_others_come(cluster: Cluster) -> None:
    job = await cluster.submit(**long())
    for number, at in enumerate((200, 500, 900)):
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
