"""A chaos run: short jobs on one stack, each through what was planned for it and then held against the plain loop."""

from __future__ import annotations

import asyncio
import contextlib
import time

from realstack.checking import assert_rows_fit
from realstack.inflicting import ASK_S, Enemy
from realstack.planning import Act, PlannedJob, Step, Victim
from realstack.training import Operator, Training

from elps.contracts.errors import RetryLater
from elps.contracts.job import JobDocument
from elps.contracts.state import JobRecord, JobState

END_S = 120.0
"""From the last failure in a job to its end, at most."""
MOVES_S = 90.0
"""A job that is hit goes on within this: whoever was hit is back after some seconds."""
LOOK_S = 0.3
SOON_S = 0.01


async def train_through(planned: PlannedJob, enemy: Enemy, operator: Operator) -> None:
    """One job, and its neighbour, through what is planned; the first thing that is not as it must be is raised."""
    documents = [operator.document("chaos", **planned.fields)]
    if planned.neighbour is not None:
        documents.append(operator.document("beside", **planned.neighbour))
    for document in documents:
        enemy.tell(f"{document.id}: {_outline(document)}")
    whole = enemy.shards_are_whole
    trainings = [await _followed(operator, document) for document in documents]
    async with asyncio.TaskGroup() as group:
        for training in trainings:
            group.create_task(_hand_in(training, enemy, operator))
        for step in planned.steps:
            await _reach(trainings[0], step.at)
            await asyncio.sleep(step.after_s)
            await enemy.carry_out(step, trainings[0])
    enemy.assert_nobody_else_died()
    for training in trainings:
        record = await training.equals_the_plain_loop(END_S)
        enemy.tell(f"{training.id} is right: {_account(record)}")
        await assert_rows_fit(training, record)
        if whole and not any(map(_takes_parameters, planned.steps)):
            assert record.terms == 1, f"begun anew without need; {await training.story()}"
            assert not record.progress.redone_iterations, await training.story()
    enemy.assert_nobody_else_died()


async def _followed(operator: Operator, document: JobDocument) -> Training:
    """Rows are told from now on, as far as there is a broker."""
    async with asyncio.timeout(MOVES_S):
        while True:
            try:
                return await operator.following(document)
            except RetryLater:
                await asyncio.sleep(LOOK_S)


async def _hand_in(training: Training, enemy: Enemy, operator: Operator) -> None:
    """Until it is taken; an answer that does not come says nothing, and the same id can be handed in again."""
    async with asyncio.timeout(MOVES_S):
        while True:
            try:
                reply = await operator.client.submit(training.document)
            except RetryLater as error:
                enemy.tell(f"handing in {training.id} was not answered: {error}")
                await asyncio.sleep(LOOK_S)
                continue
            assert reply.ok, reply
            return


async def _reach(training: Training, iteration: int) -> None:
    """Wait until so many iterations are done, as rows tell or, while there is no broker, the store."""
    if iteration == 0:
        return
    looked_at = time.monotonic()
    try:
        async with asyncio.timeout(MOVES_S):
            while training.newest + 1 < iteration:
                if time.monotonic() > looked_at + LOOK_S:
                    if await _stored(training) >= iteration:
                        return
                    looked_at = time.monotonic()
                await asyncio.sleep(SOON_S)
    except TimeoutError:
        raise AssertionError(
            f"not at iteration {iteration} within {MOVES_S:g} s; {await training.story()}"
        ) from None


async def _stored(training: Training) -> int:
    """How far the store knows the job to be; -1 while it does not say."""
    with contextlib.suppress(RetryLater, TimeoutError):
        async with asyncio.timeout(ASK_S):
            record, newest = await training.find(), await training.manifest()
            if record is None:
                return -1
            assert record.state is not JobState.FAILED, await training.story()
            return max(record.progress.iteration, newest.iteration if newest else -1)
    return -1


def _takes_parameters(step: Step) -> bool:
    """Only a shard that goes makes a job begin anew, or another one lead it."""
    return step.act is not Act.SCALE and step.victim in (Victim.SHARD, Victim.LEADER)


def _outline(document: JobDocument) -> str:
    workers, shards = document.workers, document.shards
    return (
        f"{document.iterations} iterations, {document.optimizer.name} in {document.dtype},"
        f" workers {workers.min}-{workers.max}, shards {shards.min}-{shards.max},"
        f" a checkpoint every {document.checkpoint.every}"
    )


def _account(record: JobRecord) -> str:
    return (
        f"term {record.terms}, {record.progress.redone_iterations} iterations done twice,"
        f" {record.workers_named} trainers"
    )
