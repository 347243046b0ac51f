"""Jobs without a barrier, ``ssp`` and ``asp``: every sample counts once in every parameter, whatever dies or moves."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from cluster import Cluster, agent, running, scheduler, shard, size
from gates import Ask, Gate, gate
from jobs import Job

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]

MODES: dict[str, dict[str, Any]] = {
    "ssp-0": {"sync": "ssp", "staleness": 0},
    "ssp-2": {"sync": "ssp", "staleness": 2},
    "asp": {"sync": "asp"},
}
SAMPLES, BATCH = 160, 16
MORE = ["ssp-2", pytest.param("asp", marks=pytest.mark.thorough)]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def cluster() -> AsyncIterator[Cluster]:
    members = [scheduler(), shard(1), shard(2), shard(3), agent(1), agent(2)]
    async with running(*members) as it:
        yield it


def counting(passes: int = 150, **fields: Any) -> dict[str, Any]:
    """A job whose parameter *i* is how often sample *i* was used."""
    return {
        "id": "count",
        "task": "counting:Counting",
        "task_args": {"samples": SAMPLES},
        "optimizer": {"name": "sgd", "lr": float(BATCH)},
        "batch": {"global": BATCH},
        "passes": passes,
        "dtype": "float64",
        **fields,
    }


async def assert_counted(job: Job) -> None:
    """Every sample was used once a pass."""
    record = await job.finished(timeout_s=120.0)
    passes = job.document.passes
    assert passes is not None
    # Means over three or five samples are rounded, so whole numbers come about but for the last digits.
    np.testing.assert_allclose((await job.values())["count"], passes, rtol=0, atol=1e-6)
    assert record.progress.samples == passes * SAMPLES


@pytest.mark.parametrize("mode", [*MORE, pytest.param("ssp-0", marks=pytest.mark.thorough)])
async def test_a_killed_worker_loses_nothing_and_doubles_nothing(
    cluster: Cluster, mode: str
) -> None:
    job = await cluster.submit(**counting(**MODES[mode], **size(3, 2)))
    await job.iteration(200)
    worker, pid = sorted(cluster.trainers(job).items())[0]
    os.kill(pid, signal.SIGKILL)
    lost = await job.event("worker_lost")
    assert lost.worker == worker
    await assert_counted(job)
    rows = [row.iteration for row in job.rows]
    assert rows == list(range(1500)), "every iteration is told once, in order"
    assert all(row.samples == BATCH for row in job.rows)
    assert all(row.loss == 1.0 for row in job.rows if row.loss is not None)
    assert job.told("rolled_back") == []


def held_up(gate: Gate, **fields: Any) -> dict[str, Any]:
    """A job whose workers ask at a gate before each piece of 6 samples."""
    return {
        "id": "held",
        "task": "directed:Directed",
        "task_args": {"gate": gate.path, "at": {"compute": list(range(60))}, "samples": 60},
        "optimizer": {"name": "sgd", "lr": 0.01},
        "batch": {"global": 12},
        "passes": 40,
        "evaluate": {"every": 1000},
        "limits": {"first_iteration_s": 100.0, "floor_s": 100.0},
        **size(2, 2),
        **fields,
    }


def hold_first(ask: Ask) -> str | None:
    return None if ask.number == 1 else "go"


async def test_under_asp_the_others_go_on_while_one_worker_stands(cluster: Cluster) -> None:
    async with gate(hold_first) as it:
        job = await cluster.submit(**held_up(it, **MODES["asp"]))
        await it.asked(100)
        assert {ask.pid for ask in it.asks[2:]} == {it.asks[1].pid}
        await it.open()
        await job.finished()


async def test_under_ssp_the_others_go_on_up_to_the_bound(cluster: Cluster) -> None:
    async with gate(hold_first) as it:
        job = await cluster.submit(**held_up(it, **MODES["ssp-2"]))
        await it.asked(6)
        await cluster.until_reason(job, "lent to")  # it is told that the job stands
        # Half of iteration 0 is missing: the other half is done, and both halves of 1 and of 2.
        assert len(it.asks) == 6
        await it.open()
        await job.finished()


@pytest.mark.thorough
@pytest.mark.parametrize("mode", MORE)
async def test_partitions_move_and_workers_come_and_go_meanwhile(
    cluster: Cluster, mode: str
) -> None:
    sizes = {"workers": {"min": 1, "max": 4}, "shards": {"min": 1, "max": 3}}
    job = await cluster.submit(**counting(passes=400, **MODES[mode], **sizes))
    for at, workers, shards in ((300, 2, 1), (800, 4, 3), (1300, 1, 2), (1800, 3, 2)):
        await job.iteration(at)
        await cluster.client.scale(job.id, workers=workers, shards=shards)
    await assert_counted(job)
    assert job.told("partitions_moved")
    assert job.told("rolled_back") == []


@pytest.mark.thorough
@pytest.mark.parametrize("mode", MORE)
async def test_a_leader_that_ends_hands_over_what_is_applied(cluster: Cluster, mode: str) -> None:
    sizes = {"workers": {"min": 3, "max": 3}, "shards": {"min": 1, "max": 3}}
    job = await cluster.submit(
        **counting(passes=200, **MODES[mode], **sizes, checkpoint={"every_s": 0})
    )
    for at in (300, 900):
        await job.iteration(at)
        allocation = (await job.record()).allocation
        assert allocation is not None
        leader = allocation.shards[0]
        await cluster.stop(leader)
        await cluster.start(shard(int(leader[-1])))
    await assert_counted(job)
    record = await job.record()
    assert record.terms >= 2
    assert record.progress.redone_iterations == 0
    assert job.told("rolled_back") == []


@pytest.mark.parametrize("mode", MORE)
async def test_a_paused_job_rests_where_nothing_is_applied_beyond_and_goes_on(
    cluster: Cluster, mode: str
) -> None:
    job = await cluster.submit(**counting(**MODES[mode], **size(3, 2)))
    await job.iteration(200)
    await cluster.ask("pause", job)
    await job.paused()
    at = (await job.record()).progress.iteration
    assert (await job.values())["count"].sum() == pytest.approx(at * BATCH)
    await cluster.ask("resume", job)
    await assert_counted(job)


async def test_checkpoints_on_the_way_are_versions(cluster: Cluster) -> None:
    job = await cluster.submit(
        **counting(**MODES["asp"], **size(3, 2), checkpoint={"every": 100, "every_s": 0})
    )
    seen = set()
    for number in range(1, 6):
        await job.event("checkpointed", number)
        manifest = await job.manifest()
        counted = (await job.values())["count"].sum()
        if (await job.manifest()).name == manifest.name:  # else it is of another one
            assert counted == pytest.approx(manifest.iteration * BATCH)
            seen.add(manifest.iteration)
    assert seen
    await assert_counted(job)


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
@pytest.mark.parametrize("mode", MORE)
async def test_a_perceptron_learns_the_digits(cluster: Cluster, mode: str, optimizer: str) -> None:
    rate = {"momentum": 0.05, "adam": 0.003}[optimizer]
    job = await cluster.submit(
        id="digits",
        task="mlp",
        task_args={"hidden": [32]},
        data={"source": "digits", "test_fraction": 0.2, "scale": "standard"},
        optimizer={"name": optimizer, "lr": rate},
        batch={"global": 64},
        evaluate={"every": 100},
        iterations=400,
        **MODES[mode],
        **size(3, 2),
    )
    record = await job.finished(timeout_s=120.0)
    assert record.progress.metrics["accuracy"] is not None
    assert record.progress.metrics["accuracy"] > 0.93
    evaluated = [event.iteration for event in job.told("evaluated")]
    assert evaluated in ([], [100, 200, 300, 400])
    losses = [loss for loss in job.losses() if loss is not None]
    assert np.mean(losses[-20:]) < 0.2 * np.mean(losses[:5])
