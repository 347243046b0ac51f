"""Shards die with the parameters that they hold: the job goes back to its newest checkpoint, under a new term."""

from __future__ import annotations

import asyncio
import random

import pytest
from realstack.site import Site
from realstack.training import Operator, Training

from elps.client.http import MonitorHttp
from elps.client.reading import job_of
from elps.contracts.state import JobRecord, JobState

TWO = {"min": 2, "max": 2}
IN_A_BEAT = 10
"""Iterations of 0.03 s that can be done in one heartbeat of 0.3 s."""


def well_after_a_checkpoint(rng: random.Random) -> int:
    """An iteration at which there is something to lose: checkpoints are written every 20."""
    return rng.choice([20, 40]) + rng.randrange(12, 18)


async def parts(training: Training) -> tuple[str, str]:
    """The shard that leads the job, and the other."""
    record = await training.in_state(JobState.RUNNING)
    assert record.allocation is not None
    leader, other = record.allocation.shards
    return leader, other


async def shows_redone(site: Site, training: Training, record: JobRecord) -> None:
    """What was done twice is counted, in the record and for everybody who asks the monitor."""
    done = [row.iteration for row in training.rows]
    twice = len(done) - len(set(done))
    redone = record.progress.redone_iterations
    # A dead leader's last heartbeat tells how far it was, and its last rows may have died with it.
    assert twice - IN_A_BEAT <= redone <= twice + IN_A_BEAT, (twice, redone)
    assert redone > 0
    monitor = MonitorHttp(site.record.monitor_url)
    shown = job_of(await asyncio.to_thread(monitor.job, training.id))
    assert shown.redone_iterations == redone
    assert shown.term == record.terms


@pytest.mark.parametrize("victim", ["leader", pytest.param("other", marks=pytest.mark.long)])
async def test_a_job_goes_on_from_its_checkpoint_on_the_shard_that_is_left(
    site: Site, operator: Operator, rng: random.Random, victim: str
) -> None:
    training = await operator.submit(name=f"{victim}-dies")
    await training.reaches(well_after_a_checkpoint(rng))
    leader, other = await parts(training)
    await site.kill(leader if victim == "leader" else other)
    record = await training.equals_the_plain_loop()
    assert record.terms == (2 if victim == "leader" else 1), "another shard is lost within a term"
    await shows_redone(site, training, record)
    await site.up()


async def test_a_job_whose_shard_dies_goes_on_with_fewer_than_it_asked_for(
    site: Site, operator: Operator, rng: random.Random
) -> None:
    training = await operator.submit(name="other-needed", shards=TWO)
    await training.reaches(well_after_a_checkpoint(rng))
    _, other = await parts(training)
    await site.kill(other)
    record = await training.equals_the_plain_loop()
    assert record.terms == 1
    await shows_redone(site, training, record)
    await site.up()


async def test_a_job_that_needs_the_dead_leader_waits_until_it_is_back(
    site: Site, operator: Operator, rng: random.Random
) -> None:
    training = await operator.submit(name="leader-needed", shards=TWO)
    await training.reaches(well_after_a_checkpoint(rng))
    leader, _ = await parts(training)
    await site.kill(leader)
    waiting = await training.in_state(JobState.QUEUED)
    assert "shard" in waiting.reason
    await site.up()
    record = await training.equals_the_plain_loop()
    assert record.terms == 2
    await shows_redone(site, training, record)


@pytest.mark.long
async def test_a_job_without_a_checkpoint_begins_again_when_its_leader_dies(
    site: Site, operator: Operator, rng: random.Random
) -> None:
    training = await operator.submit(name="from-zero", checkpoint={"every": 0, "every_s": 0})
    await training.reaches(rng.randrange(10, 40))
    leader, _ = await parts(training)
    await site.kill(leader)
    record = await training.equals_the_plain_loop()
    assert record.progress.redone_iterations >= 10
    await shows_redone(site, training, record)
    await site.up()


@pytest.mark.long
async def test_both_shards_die_at_once_and_the_job_comes_back_with_them(
    site: Site, operator: Operator, rng: random.Random
) -> None:
    training = await operator.submit(
        name="both-die", dtype="float32", optimizer={"name": "sgd", "lr": 0.5}
    )
    await training.reaches(well_after_a_checkpoint(rng))
    await site.kill("shard-1", "shard-2")
    await training.in_state(JobState.QUEUED)
    await site.up()
    record = await training.equals_the_plain_loop()
    assert record.progress.redone_iterations > 0
