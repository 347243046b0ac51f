"""Jobs with replicas lose a shard, and nothing that it had."""

from __future__ import annotations

import pytest
from cluster import Cluster, Real, agent, running, scheduler, shard, size, without
from comparing import assert_trained_as_plain_loop
from gates import gate
from jobs import Job

from elps.contracts.state import JobState

SILENCE_S = "600"
"""Deaths are told by refused connections; were one waited for in silence, the tests would end first."""


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "place", [0, pytest.param(1, marks=pytest.mark.thorough)], ids=["the leader", "another"]
)
async def test_a_shard_that_is_killed_takes_nothing_with_it(
    amqp_url: str, redis_url: str, place: int
) -> None:
    backend = Real(amqp_url, redis_url)
    async with running(scheduler(), backend=backend, ELPS_LOST_S=SILENCE_S) as cluster:
        for member in (shard(1), shard(2), shard(3), agent(1), agent(2)):
            await cluster.start_process(member)
        await lose_one(cluster, place)


async def lose_one(cluster: Cluster, place: int) -> None:
    holds: list[bool] = []
    async with gate(lambda _: None if holds else "go") as it:  # asked once a pass
        job = await cluster.submit(
            id=f"replicated-{place}",
            task="directed:Directed",
            task_args={"gate": it.path, "at": {"compute": [12]}, "samples": 60, "wide": 300_000},
            optimizer={"name": "adam", "lr": 0.02},
            batch={"global": 12},
            passes=60,
            dtype="float64",
            replicas=1,
            checkpoint={"every_s": 0},
            limits={"first_iteration_s": 60.0, "floor_s": 60.0},
            **size(2, 3),
        )
        await job.event("replicated")
        holds.append(True)
        await it.asked(len(it.asks) + 1)
        allocation = (await job.record()).allocation
        assert allocation is not None
        killed = allocation.shards[place]
        await cluster.kill_process(killed)
        recovered = await job.event("recovered", timeout_s=40.0)
        assert "go on from their replicas" in recovered.reason
        await it.open()
        document = without(job.document, gate="")
        await assert_trained_as_plain_loop(job, cluster.env, document=document, timeout_s=90.0)
        await assert_nothing_lost(job)


async def assert_nothing_lost(job: Job) -> None:
    record = await job.record()
    assert job.told("rolled_back") == []
    assert record.progress.redone_iterations <= 1
    assert job.states.count(JobState.QUEUED) == 1, "it never had to wait for its place"
