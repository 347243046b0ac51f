"""A shard that is slow gives partitions away while the job trains, and no sample is lost or counted twice by it."""

from __future__ import annotations

from statistics import quantiles

import numpy as np
import pytest
from cluster import agent, running, scheduler, shard, size

BATCH = 8
ELEMENTS = 1 << 20
"""Of 8 bytes: eight partitions."""
FIRST, AFTER = 5, 60
LONG_S = 120.0


def undisturbed(durations: list[float]) -> float:
    """Of iterations, the lower quartile: others are at work on this machine as well."""
    return quantiles(durations, n=4)[0]


@pytest.mark.thorough
@pytest.mark.timeout(180)
@pytest.mark.parametrize("sync", ["bsp", "asp"])
async def test_a_slowed_shard_gives_partitions_away_and_iterations_get_shorter(sync: str) -> None:
    slow = {"ELPS_SHARD_SLOWDOWN": "shard-2=factor:30"}
    async with running(scheduler(), shard(1), shard(2), agent(1), agent(2), **slow) as cluster:
        job = await cluster.submit(
            id="weighed",
            sync=sync,
            task="jumpy:Jumpy",
            task_args={"call_ms": 1.0, "sample_ms": 0.0, "jump": 0.0, "elements": ELEMENTS},
            dtype="float64",
            iterations=100_000,
            optimizer={"name": "sgd", "lr": float(BATCH)},
            batch={"global": BATCH, "policy": "fixed"},
            checkpoint={"every_s": 0},
            **size(2, 2),
        )
        weighed = await job.event("shards_weighed", timeout_s=LONG_S)
        assert "shard-2 takes" in weighed.reason
        moved = await job.event("partitions_moved", timeout_s=LONG_S)
        assert weighed.iteration is not None
        assert moved.iteration is not None
        settled = moved.iteration + FIRST
        await job.iteration(settled + AFTER, LONG_S)
        await cluster.ask("pause", job)
        await job.paused()
        before = [r.duration_s for r in job.rows if FIRST <= r.iteration < weighed.iteration]
        after = [r.duration_s for r in job.rows if r.iteration > settled]
        assert undisturbed(after) < 0.8 * undisturbed(before)
        done = (await job.manifest()).iteration
        count = (await job.values())["count"]
        np.testing.assert_array_equal(count, np.full(ELEMENTS, float(BATCH * done)))
        assert (await job.record()).progress.redone_iterations == 0
        await cluster.ask("kill", job)
