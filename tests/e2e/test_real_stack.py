"""The same jobs over a real RabbitMQ and Redis, with shards and agents as processes of their own."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from cluster import Cluster, Real, agent, running, scheduler, shard, size, without
from comparing import assert_equal_to_plain_loop, assert_trained_as_plain_loop
from gates import gate

from elps.contracts.state import JobState
from elps.messaging.port import EXCHANGES, Delivery, Queue

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(amqp_url: str, redis_url: str) -> AsyncIterator[Cluster]:
    async with running(scheduler(), backend=Real(amqp_url, redis_url)) as cluster:
        for member in (shard(1), shard(2), agent(1), agent(2)):
            await cluster.start_process(member)
        yield cluster


@pytest.mark.parametrize("dtype", ["float32", "float64"])
async def test_a_perceptron_trained_by_processes_equals_the_plain_loop(
    cluster: Cluster, dtype: str
) -> None:
    job = await cluster.submit(
        id="processes",
        task="mlp",
        task_args={"hidden": [32], "activation": "tanh"},
        data={"source": "digits", "test_fraction": 0.2, "scale": "standard"},
        optimizer={"name": "adam", "lr": 0.003},
        batch={"global": 64},
        iterations=200,
        evaluate={"every": 50},
        dtype=dtype,
        **size(2, 2),
    )
    await assert_equal_to_plain_loop(job, cluster.env)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "mode",
    [{"sync": "ssp", "staleness": 2}, pytest.param({"sync": "asp"}, marks=pytest.mark.thorough)],
)
async def test_a_job_without_a_barrier_counts_every_sample_once_whoever_is_killed(
    cluster: Cluster, mode: dict[str, Any]
) -> None:
    """First a trainer, then the shard that leads: it goes back to a checkpoint, with all that is applied since."""
    passes, samples, batch = 300, 160, 16
    job = await cluster.submit(
        id="unbarred",
        task="counting:Counting",
        task_args={"samples": samples},
        optimizer={"name": "sgd", "lr": float(batch)},
        batch={"global": batch},
        passes=passes,
        dtype="float64",
        checkpoint={"every": 100, "every_s": 0},
        workers={"min": 3, "max": 3},
        shards={"min": 1, "max": 2},
        **mode,
    )
    await job.iteration(300)
    os.kill(sorted(cluster.trainers(job).values())[0], signal.SIGKILL)
    await job.event("worker_lost")
    await job.event("checkpointed", 6)
    allocation = (await job.record()).allocation
    assert allocation is not None
    leader = allocation.shards[0]
    await cluster.kill_process(leader)
    await cluster.start_process(shard(int(leader[-1])))
    record = await job.finished(timeout_s=120.0)
    np.testing.assert_allclose((await job.values())["count"], passes, rtol=0, atol=1e-6)
    assert record.progress.samples == passes * samples
    assert record.terms >= 2


@pytest.mark.thorough
@pytest.mark.timeout(180)
async def test_a_tensor_larger_than_any_message_may_be_is_trained_and_kept_in_parts(
    cluster: Cluster,
) -> None:
    """20 MB: above the 16 MiB of current brokers. It goes by other ways, and the broker sees none of it."""
    elements, largest = 5_000_000, 0

    async def hear(delivery: Delivery) -> None:
        nonlocal largest
        largest = max(largest, len(delivery.body))

    topics = tuple((name, "#") for name, kind in EXCHANGES.items() if kind == "topic")
    tap = await cluster.bus.subscribe(Queue("test.tap", topics), hear)
    job = await cluster.submit(
        id="large",
        task="jumpy:Jumpy",
        task_args={"call_ms": 0, "sample_ms": 0, "jump": 0, "elements": elements},
        optimizer={"name": "sgd", "lr": 1.0},
        batch={"global": 4},
        iterations=6,
        dtype="float32",
        checkpoint={"every": 2, "every_s": 0},
        **size(2, 2),
    )
    await job.finished(timeout_s=120.0)
    values = (await job.values())["count"]
    assert values.shape == (elements,)
    assert (values == 6.0).all()
    assert 0 < largest < 256 * 1024
    await tap.cancel()


async def test_a_job_outlives_its_leading_shard_and_a_restart_of_the_scheduler(
    cluster: Cluster,
) -> None:
    async with gate() as it:
        task_args: dict[str, Any] = {
            "gate": it.path,
            "at": {"compute": [7]},
            "samples": 60,
            "wide": 300_000,
        }
        job = await cluster.submit(
            id="outlives",
            task="directed:Directed",
            task_args=task_args,
            optimizer={"name": "adam", "lr": 0.02},
            batch={"global": 12},
            passes=8,
            dtype="float64",
            checkpoint={"every": 5, "every_s": 0},
            evaluate={"every": 10},
            limits={"first_iteration_s": 60.0, "floor_s": 60.0},
            **size(2, 2),
        )
        for number in range(1, 4):
            await it.asked(number)
            await it.let_through()
        await it.asked(4)
        await cluster.stop("scheduler")
        await it.let_through()
        await it.asked(5)
        await cluster.start(scheduler())
        await job.event("checkpointed", 3)
        record = await job.record()
        assert record.allocation is not None
        leader = record.allocation.shards[0]
        await cluster.kill_process(leader)
        await it.open()
        await job.until(lambda: job.states.count(JobState.QUEUED) == 2, "queueing")
        await cluster.until_reason(job, "needs 2 shards")
        await cluster.start_process(shard(int(leader[-1])))
        document = without(job.document, gate="")
        await assert_trained_as_plain_loop(job, cluster.env, document=document)
        assert {row.term for row in job.rows} == {1, 2}
