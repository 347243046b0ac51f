"""The scheduler and the monitor die while jobs train: training needs neither."""

from __future__ import annotations

import asyncio
import random

import pytest
from realstack.site import Site
from realstack.training import Hold, Operator

from elps.client.http import MonitorHttp
from elps.client.reading import job_of, rows_of
from elps.contracts.state import JobState


async def test_training_goes_on_without_the_scheduler_and_a_new_one_takes_the_job_over_untouched(
    site: Site, operator: Operator, hold: Hold, rng: random.Random
) -> None:
    training = await operator.submit(
        name="no-scheduler", task_args=hold.args, iterations=150, limits={"floor_s": 60.0}
    )
    await training.reaches(rng.randrange(5, 30))
    trainers = {t.pid for t in site.trainers()}
    await site.kill("scheduler")
    await training.rises(20)
    await hold.catch()
    await site.up()
    # The new one answers users, and asks nobody to begin anew.
    await operator.ask("resume", training)
    hold.release()
    await training.rises(5)
    assert {t.pid for t in site.trainers()} == trainers
    record = await training.equals_the_plain_loop()
    assert record.terms == 1
    assert record.workers_named == 2
    assert record.progress.redone_iterations == 0
    assert not training.told("worker_lost")
    assert [row.iteration for row in training.rows] == list(range(150))


async def test_a_job_that_ends_while_there_is_no_scheduler_is_finished_by_the_next_one(
    site: Site, operator: Operator, hold: Hold
) -> None:
    training = await operator.submit(name="ends-alone", iterations=40, task_args=hold.args)
    await training.reaches(20)
    await hold.catch()
    await site.kill("scheduler")
    hold.release()
    await training.reaches(40)
    await site.up()
    record = await training.equals_the_plain_loop()
    assert record.terms == 1


@pytest.mark.long
async def test_a_trainer_that_dies_while_there_is_no_scheduler_is_replaced_by_the_next_one(
    site: Site, operator: Operator, hold: Hold, rng: random.Random
) -> None:
    training = await operator.submit(
        name="dies-alone",
        task_args=hold.args,
        workers={"min": 2, "max": 2},
        limits={"floor_s": 60.0},
    )
    await training.reaches(rng.randrange(5, 30))
    await site.kill("scheduler")
    rng.choice(site.trainers()).kill()
    await training.event("worker_lost")
    await training.rises(5)
    await hold.catch()
    await site.up()
    await training.event("worker_joined", 3)
    hold.release()
    record = await training.equals_the_plain_loop()
    assert record.terms == 1
    assert record.workers_named == 3


async def test_training_goes_on_without_the_monitor_and_a_new_one_knows_the_rest(
    site: Site, operator: Operator, hold: Hold, rng: random.Random
) -> None:
    training = await operator.submit(
        name="no-monitor", task_args=hold.args, limits={"floor_s": 60.0}
    )
    await training.reaches(rng.randrange(5, 30))
    await site.kill("monitor")
    await training.rises(10)
    await hold.catch()
    await site.up()
    seen = training.newest
    hold.release()
    record = await training.equals_the_plain_loop()
    assert record.terms == 1
    assert record.state is JobState.FINISHED

    monitor = MonitorHttp(site.record.monitor_url)
    known = rows_of(await asyncio.to_thread(monitor.iterations, training.id))
    assert {row.iteration for row in known} >= set(range(seen + 1, 120))
    shown = job_of(await asyncio.to_thread(monitor.job, training.id))
    assert (shown.state, shown.iteration) == (JobState.FINISHED, 120)
