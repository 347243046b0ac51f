"""What a user's model, gradient and batch can be like: all of it trains, and equals the plain loop."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from cluster import Cluster, agent, running, scheduler, shard, size
from comparing import assert_equal_to_plain_loop

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster() -> AsyncIterator[Cluster]:
    members = [scheduler(), shard(1), shard(2), agent(1), agent(2), agent(3)]
    async with running(*members) as cluster:
        yield cluster


def pulled(model: str = "single", task: str = "Pulled", **task_args: Any) -> dict[str, Any]:
    return {
        "id": task.lower(),
        "task": f"oddities:{task}",
        "task_args": {"model": model, **task_args},
        "optimizer": {"name": "momentum", "lr": 0.1},
        "batch": {"global": 8},
        "iterations": 20,
    }


# --- batches ----------------------------------------------------------------------------------------------------------

BATCHES = {
    "a batch larger than the data": {"samples": 24, "batch": 1000},
    "batches of one": {"samples": 7, "batch": 1},
    "one sample": {"samples": 1, "batch": 1},
    "one sample in a large batch": {"samples": 1, "batch": 50},
    "more workers than samples in a batch": {"samples": 10, "batch": 2},
    "a last batch of one": {"samples": 25, "batch": 8},
    "a prime number of samples": {"samples": 97, "batch": 13},
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", BATCHES)
async def test_any_batch_trains_as_in_the_plain_loop(
    cluster: Cluster, case: str, dtype: str
) -> None:
    samples, batch = BATCHES[case]["samples"], BATCHES[case]["batch"]
    document = {**pulled("odd", samples=samples), "batch": {"global": batch}, "dtype": dtype}
    await assert_equal_to_plain_loop(await cluster.submit(**document, **size(3, 2)), cluster.env)


@pytest.mark.parametrize(
    ("task", "task_args", "granule"),
    [
        ("Coupled", {}, 4),
        ("Coupled", {"drop": True}, 4),
        ("Coupled", {"drop": True}, 12),
        ("Dropping", {}, 1),
        ("Views", {}, 4),
    ],
)
@pytest.mark.parametrize("workers", [1, 3])
async def test_granules_and_random_numbers_do_not_depend_on_the_number_of_workers(
    cluster: Cluster, task: str, task_args: dict[str, Any], granule: int, workers: int
) -> None:
    """50 samples in batches of 12: the last granule is short."""
    job = await cluster.submit(
        id=task.lower(),
        task=f"oddities:{task}",
        task_args=task_args,
        optimizer={"name": "adam", "lr": 0.02},
        batch={"global": 12, "granule": granule},
        passes=6,
        dtype="float64",
        **size(workers, 2),
    )
    await assert_equal_to_plain_loop(job, cluster.env)


# --- models -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("model", ["odd", "named", "uneven", "layouts", "single"])
async def test_parameters_of_any_name_shape_and_layout_train(
    cluster: Cluster, model: str, dtype: str
) -> None:
    job = await cluster.submit(**pulled(model), **size(2, 2), dtype=dtype)
    expected = await assert_equal_to_plain_loop(job, cluster.env)
    values = await job.values()
    assert list(values) == list(expected.params)
    assert {n: v.shape for n, v in values.items()} == {
        n: v.shape for n, v in expected.params.items()
    }
    assert all(v.dtype == np.dtype(dtype) for v in values.values())


@pytest.mark.parametrize("task", ["Pulled", "Streamed"])
async def test_a_model_of_several_partitions_lies_on_both_shards_and_trains(
    cluster: Cluster, task: str
) -> None:
    """3.6 MB of float32, so a streaming task's partitions travel early."""
    job = await cluster.submit(**pulled("large", task), **size(3, 2))
    await assert_equal_to_plain_loop(job, cluster.env)
    manifest = await job.manifest()
    sizes = [4 * (p.stop - p.start) for p in manifest.partitions]
    assert len(sizes) >= 4
    assert max(sizes) <= 1 << 20
    held = cluster.held_bytes[job.id]
    assert sorted(held) == ["shard-1", "shard-2"]
    assert max(held.values()) <= 1.3 * sum(held.values()) / 2


@pytest.mark.parametrize("model", ["odd", "uneven"])
async def test_a_small_streaming_task_trains(cluster: Cluster, model: str) -> None:
    """Either side of 1 MiB is the same to the user."""
    job = await cluster.submit(**pulled(model, "Streamed"), **size(2, 2))
    await assert_equal_to_plain_loop(job, cluster.env)


async def test_a_streaming_task_in_granules_trains(cluster: Cluster) -> None:
    document = {**pulled("large", "Streamed"), "batch": {"global": 8, "granule": 2}}
    job = await cluster.submit(**document, **size(2, 2))
    await assert_equal_to_plain_loop(job, cluster.env)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("gradient", ["float32", "float64", "big endian", "fortran", "list"])
async def test_gradients_of_any_type_are_taken(cluster: Cluster, gradient: str, dtype: str) -> None:
    job = await cluster.submit(**pulled("layouts", gradient=gradient), **size(1, 1), dtype=dtype)
    await assert_equal_to_plain_loop(job, cluster.env)


# --- bit for bit ------------------------------------------------------------------------------------------------------


async def test_a_deterministic_job_gives_the_same_bits_in_every_run_with_the_same_cut(
    cluster: Cluster,
) -> None:
    document = {
        "id": "exact",
        "task": "mlp",
        "task_args": {"hidden": [32]},
        "data": {"source": "digits", "scale": "standard"},
        "optimizer": {"name": "adam", "lr": 0.01},
        "batch": {"global": 60},
        "iterations": 60,
        "deterministic": True,
        **size(3, 2),
    }
    runs = [await cluster.submit(**document) for _ in range(2)]
    for job in runs:
        await job.finished()
        assert {len(row.workers) for row in job.rows} == {3}
    first, second = [(await job.flat()).tobytes() for job in runs]
    assert first == second
    assert runs[0].losses() == runs[1].losses()
