"""The broker goes away, in order or not, while jobs train: training goes on, and commands work once it is back."""

from __future__ import annotations

import asyncio
import random
import signal

import pytest
from realstack.site import Site
from realstack.training import Hold, Operator

from elps.contracts import topology
from elps.contracts.codec import decode
from elps.contracts.errors import RetryLater
from elps.contracts.requests import Reply
from elps.contracts.state import JobRecord, JobState

ENDS = {"restarted": signal.SIGTERM, "killed": signal.SIGKILL}
WITHOUT_S = 20.0


@pytest.mark.parametrize("how", ["restarted", pytest.param("killed", marks=pytest.mark.long)])
async def test_training_goes_on_without_the_broker_and_commands_work_when_it_is_back(
    site: Site, operator: Operator, hold: Hold, rng: random.Random, how: str
) -> None:
    training = await operator.submit(
        name=f"broker-{how}",
        task_args=hold.args,
        iterations=300,
        checkpoint={"every": 10, "every_s": 0},
        limits={"floor_s": 60.0},
    )
    await training.reaches(rng.randrange(5, 30))
    trainers = {t.pid for t in site.trainers()}
    await site.kill("rabbitmq", number=ENDS[how])
    # Without a broker only the checkpoints tell of progress.
    await training.saved(training.newest + 30, WITHOUT_S)
    await hold.catch()
    await site.up()

    assert {t.pid for t in site.trainers()} == trainers
    await operator.ask("pause", training)
    hold.release()
    paused = await training.in_state(JobState.PAUSED)
    assert paused.terms == 1
    assert not training.told("worker_lost")
    await operator.ask("resume", training)
    record = await training.equals_the_plain_loop()
    assert record.progress.redone_iterations == 0


@pytest.mark.parametrize("how", ["killed", pytest.param("restarted", marks=pytest.mark.long)])
async def test_no_job_is_lost_or_doubled_by_the_end_of_the_broker(
    site: Site, operator: Operator, rng: random.Random, how: str
) -> None:
    """Handed in until the broker is gone: each that was accepted runs, each that was refused can come again."""
    running = await operator.submit(name=f"before-{how}", iterations=250)
    await running.reaches(5)
    documents = [operator.document(f"one-of-{how}", iterations=10) for _ in range(6)]
    stop_at = rng.randrange(2, 5)
    sent = []
    for n, document in enumerate(documents):
        sent.append(asyncio.create_task(operator.client.submit(document)))
        if n == stop_at:
            await asyncio.sleep(rng.uniform(0, 0.01))
            await site.kill("rabbitmq", number=ENDS[how])
    await site.up()
    answers = await asyncio.gather(*sent, return_exceptions=True)
    for document, answer in zip(documents, answers, strict=True):
        assert isinstance(answer, Reply | RetryLater), answer
        if isinstance(answer, RetryLater):  # as its text says: try again, with the same id
            again = await operator.client.submit(document)
            assert again.ok, again
        else:
            assert answer.ok, answer
    await running.equals_the_plain_loop()
    for document in documents:
        record = await operator.again(document).equals_the_plain_loop()
        assert record.terms == 1

    found = await operator.store.hash_all(topology.JOB_INDEX)
    mine = [decode(v, JobRecord) for k, v in found.items() if k.startswith(f"one-of-{how}")]
    assert len(mine) == len(documents)
    assert len({r.seq for r in mine}) == len(documents)


@pytest.mark.long
async def test_a_job_that_ends_while_the_broker_is_away_is_finished_when_it_is_back(
    site: Site, operator: Operator, hold: Hold
) -> None:
    training = await operator.submit(
        name="ends-unheard", iterations=60, task_args=hold.args, limits={"floor_s": 60.0}
    )
    await training.reaches(20)
    await hold.catch()
    await site.kill("rabbitmq")
    hold.release()
    await training.saved(60, WITHOUT_S)
    await site.up()
    record = await training.equals_the_plain_loop()
    assert record.terms == 1
