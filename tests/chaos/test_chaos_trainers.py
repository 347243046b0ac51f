"""Trainers and their agents die or fall asleep in the middle of an iteration."""

from __future__ import annotations

import os
import random
import signal

import psutil
from realstack.site import Site, all_gone
from realstack.training import Hold, Operator

from elps.contracts.state import JobState


async def test_a_trainer_killed_in_the_middle_of_an_iteration_is_replaced(
    operator: Operator, hold: Hold, rng: random.Random
) -> None:
    training = await operator.submit(name="trainer-killed", task_args=hold.args)
    await training.reaches(rng.randrange(5, 30))
    for death in (1, 2):
        os.kill(await hold.catch(), signal.SIGKILL)
        hold.release()
        lost = await training.event("worker_lost", death)
        await training.until(
            lambda lost=lost: any(e.iteration == lost.iteration for e in training.told("released")),
            "interval lent again",
        )
        await training.event("worker_joined", 2 + death)
    record = await training.equals_the_plain_loop()
    assert record.workers_named == 4
    assert record.terms == 1
    assert record.progress.redone_iterations == 0


async def test_trainers_die_with_their_agent_and_the_job_goes_on_with_the_others(
    site: Site, operator: Operator, hold: Hold, rng: random.Random
) -> None:
    training = await operator.submit(
        name="agent-killed", task_args=hold.args, limits={"floor_s": 60.0}
    )
    await training.reaches(rng.randrange(5, 30))
    agent = rng.choice(["agent-1", "agent-2"])
    victims = site.trainers(agent)
    assert victims
    await site.kill(agent)
    await all_gone(victims)
    await training.event("worker_lost")
    await training.rises(5)
    await hold.catch()  # the one that is left stands until there is another
    await site.up()
    await training.event("worker_joined", 3)
    hold.release()
    record = await training.equals_the_plain_loop()
    assert record.terms == 1


async def test_a_job_without_agents_waits_and_goes_on_with_the_first_that_comes(
    site: Site, operator: Operator, rng: random.Random
) -> None:
    training = await operator.submit(name="no-agent")
    await training.reaches(rng.randrange(5, 30))
    victims = site.trainers()
    await site.kill("agent-1", "agent-2")
    await all_gone(victims)
    waiting = await training.in_state(JobState.WAITING)
    assert "agent" in waiting.reason or "worker" in waiting.reason
    await site.up()
    record = await training.equals_the_plain_loop()
    assert record.terms == 1


async def test_a_trainer_that_sleeps_past_its_deadline_is_replaced_and_does_no_harm_when_it_wakes(
    operator: Operator, hold: Hold, rng: random.Random
) -> None:
    training = await operator.submit(
        name="asleep", task_args=hold.args, limits={"floor_s": 1.0}, iterations=150
    )
    await training.reaches(rng.randrange(5, 30))
    sleeper = psutil.Process(await hold.catch())
    sleeper.suspend()
    hold.release()
    released = await training.event("released")
    sleeper.resume()  # it computes to its end and pushes what nobody waits for any more
    assert "hung" in released.reason
    await all_gone([sleeper])
    await training.event("worker_joined", 3)
    record = await training.equals_the_plain_loop()
    assert record.terms == 1
