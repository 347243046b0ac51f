"""Redis goes away and comes back with its data: training goes on, checkpoints lag and catch up, nothing is made up."""

from __future__ import annotations

import asyncio
import random
import signal

import pytest
from realstack.site import Site
from realstack.training import Hold, Operator

from elps.client.http import MonitorHttp
from elps.client.reading import job_of
from elps.contracts.state import JobState

ENDS = {"restarted": signal.SIGTERM, "killed": signal.SIGKILL}


@pytest.mark.parametrize("how", ["restarted", pytest.param("killed", marks=pytest.mark.long)])
async def test_training_goes_on_without_the_store_and_checkpoints_catch_up(
    site: Site, operator: Operator, rng: random.Random, how: str
) -> None:
    training = await operator.submit(
        name=f"store-{how}", iterations=300, checkpoint={"every": 10, "every_s": 0}
    )
    await training.reaches(rng.randrange(15, 40))
    await site.kill("redis", number=ENDS[how])
    gone_at = training.newest
    await training.rises(40)
    written = [e.iteration or 0 for e in training.told("checkpointed")]
    assert max(written, default=0) <= gone_at + 11, "a checkpoint without a store"
    await site.up()
    back_at = training.newest
    await training.until(
        lambda: any((e.iteration or 0) >= back_at for e in training.told("checkpointed")),
        "checkpoint after the store is back",
    )
    record = await training.equals_the_plain_loop()
    assert record.terms == 1
    assert record.progress.redone_iterations == 0
    assert not training.told("worker_lost")


async def test_a_job_that_ends_without_the_store_waits_and_says_so(
    site: Site, operator: Operator, hold: Hold
) -> None:
    training = await operator.submit(
        name="no-end", iterations=60, task_args=hold.args, limits={"floor_s": 60.0}
    )
    await training.reaches(30)
    await hold.catch()
    await site.kill("redis")
    hold.release()
    await training.reaches(60)
    monitor = MonitorHttp(site.record.monitor_url)
    async with asyncio.timeout(20):
        while True:
            shown = job_of(await asyncio.to_thread(monitor.job, training.id))
            assert not shown.state.ended
            if "store" in shown.reason or "checkpoint" in shown.reason:
                break
            await asyncio.sleep(0.2)
    await site.up()
    record = await training.equals_the_plain_loop()
    assert record.terms == 1
    assert record.state is JobState.FINISHED


@pytest.mark.long
async def test_a_shard_that_dies_while_the_store_is_away_brings_the_job_back_when_both_are_there(
    site: Site, operator: Operator, rng: random.Random
) -> None:
    training = await operator.submit(name="store-and-shard", iterations=150)
    await training.reaches(rng.randrange(22, 30))
    await site.kill("redis")
    await training.rises(5)
    await site.kill(rng.choice(["shard-1", "shard-2"]))
    await site.up()
    record = await training.equals_the_plain_loop()
    assert record.terms >= 2
    assert record.progress.redone_iterations > 0
