"""Shards that are killed are found by the refusal of their system; their silence would show far later here."""

from __future__ import annotations

import pytest
from cluster import Cluster, Real, agent, running, scheduler, shard, size, without
from comparing import assert_trained_as_plain_loop
from gates import gate

from elps.contracts.state import JobState

SILENCE_S = "600"


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "place", [0, pytest.param(1, marks=pytest.mark.thorough)], ids=["the leader", "another"]
)
async def test_a_killed_shard_is_found_by_its_refusal(
    amqp_url: str, redis_url: str, place: int
) -> None:
    backend = Real(amqp_url, redis_url)
    async with running(scheduler(), backend=backend, ELPS_LOST_S=SILENCE_S) as cluster:
        for member in (shard(1), shard(2), agent(1), agent(2)):
            await cluster.start_process(member)
        await kill_one(cluster, place)


async def kill_one(cluster: Cluster, place: int) -> None:
    async with gate() as it:
        job = await cluster.submit(
            id=f"noticed-{place}",
            task="directed:Directed",
            task_args={"gate": it.path, "at": {"compute": [7]}, "samples": 60, "wide": 300_000},
            optimizer={"name": "adam", "lr": 0.02},
            batch={"global": 12},
            passes=4,
            dtype="float64",
            limits={"first_iteration_s": 60.0, "floor_s": 60.0},
            **size(2, 2),
        )
        await it.asked()
        allocation = (await job.record()).allocation
        assert allocation is not None
        killed = allocation.shards[place]
        await cluster.kill_process(killed)
        noticed = f"shard {killed} has ended: connections to it are refused"
        await job.until(lambda: any(noticed in e.reason for e in job.events), "notice of it")
        await it.open()
        await cluster.start_process(shard(int(killed[-1])))
        document = without(job.document, gate="")
        await assert_trained_as_plain_loop(job, cluster.env, document=document, timeout_s=90.0)
        assert job.told("rolled_back") or place == 0, "without replicas it goes back"
        assert (job.states.count(JobState.QUEUED) == 1) == (place == 1), "its leader goes on"
