"""What services, shards and trainers make together is what the plain loop makes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from cluster import Cluster, agent, running, scheduler, shard, size
from comparing import assert_equal_to_plain_loop

from elps.stream.geometry import Geometry
from elps.stream.order import permutation

pytestmark = pytest.mark.asyncio(loop_scope="module")

SIZES = [(1, 1), (2, 1), (2, 2), (3, 2)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    folder = tmp_path_factory.mktemp("data")
    (folder / "sparse.svm").write_text(sparse_samples(858, 40))
    members = [scheduler(), shard(1), shard(2), agent(1), agent(2), agent(3)]
    async with running(*members, ELPS_DATA_PATH=str(folder)) as cluster:
        yield cluster


def sparse_samples(samples: int, features: int) -> str:
    """A text in the libsvm format: an eighth of the features of each sample, labels that depend on them."""
    rng = np.random.default_rng(3)
    truth = rng.standard_normal(features)
    lines = []
    for _ in range(samples):
        chosen = np.flatnonzero(rng.random(features) < 0.125)
        values = rng.standard_normal(chosen.size)
        label = 1 if values @ truth[chosen] + 0.3 * rng.standard_normal() > 0 else -1
        columns = zip(chosen + 1, values, strict=True)
        lines.append(f"{label} " + " ".join(f"{i}:{value:.5f}" for i, value in columns))
    return "\n".join(lines) + "\n"


PERCEPTRON: dict[str, Any] = {
    "id": "digits",
    "task": "mlp",
    # Not relu: in float32 a unit within rounding of its kink goes either way, which is no fault.
    "task_args": {"hidden": [32], "activation": "tanh"},
    "data": {"source": "digits", "test_fraction": 0.2, "scale": "standard"},
    "optimizer": {"name": "adam", "lr": 0.003},
    "batch": {"global": 64},
    "evaluate": {"every": 50},
    "iterations": 200,
}
LOGISTIC: dict[str, Any] = {
    "id": "sparse",
    "task": "logistic",
    "task_args": {"l2": 0.001},
    "data": {"source": "libsvm", "path": "sparse.svm"},
    "optimizer": {"name": "sgd", "lr": 0.5},
    "batch": {"global": 8},
    "iterations": 200,
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("workers", "shards"), SIZES)
async def test_digits_perceptron_with_adam_equals_the_plain_loop(
    cluster: Cluster, workers: int, shards: int, dtype: str
) -> None:
    job = await cluster.submit(**PERCEPTRON, **size(workers, shards), dtype=dtype)
    expected = await assert_equal_to_plain_loop(job, cluster.env)
    assert sorted(expected.evaluations) == [50, 100, 150, 200]
    assert expected.evaluations[200]["accuracy"] > 0.9
    everyone = {f"{job.id}-w{n}" for n in range(1, workers + 1)}
    assert all({t.worker for t in row.workers} == everyone for row in job.rows)
    assert all(sum(t.samples for t in row.workers) == row.samples for row in job.rows)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("workers", "shards"), SIZES)
async def test_sparse_logistic_regression_with_sgd_equals_the_plain_loop(
    cluster: Cluster, workers: int, shards: int, dtype: str
) -> None:
    """858 samples in batches of 8: the last one of each pass has 2, fewer than there are workers."""
    job = await cluster.submit(**LOGISTIC, **size(workers, shards), dtype=dtype)
    await assert_equal_to_plain_loop(job, cluster.env)
    assert [row.samples for row in job.rows[106:109]] == [8, 2, 8]


VARIANTS: dict[str, dict[str, Any]] = {
    "momentum, weight decay, steps after a warm-up": {
        "optimizer": {"name": "momentum", "lr": 0.1, "momentum": 0.8, "weight_decay": 0.01},
        "schedule": {"name": "step", "warmup": 7, "step_size": 20, "gamma": 0.5},
    },
    "adamw, cosine after a warm-up": {
        "optimizer": {"name": "adamw", "lr": 0.01, "weight_decay": 0.1},
        "schedule": {"name": "cosine", "warmup": 10, "floor": 0.05},
    },
    "ftrl, polynomial after a warm-up": {
        "optimizer": {"name": "ftrl", "lr": 0.1, "l1": 0.1, "l2": 0.01},
        "schedule": {"name": "polynomial", "warmup": 5, "power": 2.0, "floor": 0.1},
    },
    "momentum, clipped, weight decay": {
        "optimizer": {"name": "momentum", "lr": 0.5, "clip_norm": 0.05, "weight_decay": 0.01},
        "schedule": {"name": "inverse_sqrt", "warmup": 5},
    },
    "adam, weight decay, short cosine": {
        "optimizer": {"name": "adam", "lr": 0.01, "weight_decay": 0.001, "beta1": 0.8},
        "schedule": {"name": "cosine", "total": 40},
    },
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("variant", VARIANTS)
async def test_every_optimizer_and_schedule_equals_the_plain_loop(
    cluster: Cluster, variant: str, dtype: str
) -> None:
    job = await cluster.submit(
        id="variant",
        task="logistic",
        data={"source": "breast_cancer", "test_fraction": 0.2, "scale": "standard"},
        batch={"global": 50},
        passes=8,
        dtype=dtype,
        **VARIANTS[variant],
        **size(2, 2),
    )
    expected = await assert_equal_to_plain_loop(job, cluster.env)
    assert sorted(expected.evaluations) == [10 * n for n in range(1, 9)]
    assert len({row.lr for row in job.rows}) > 2


async def test_relu_perceptron_in_float64_equals_the_plain_loop(cluster: Cluster) -> None:
    relu = {**PERCEPTRON, "task_args": {"hidden": [24, 16]}, "iterations": 100, "dtype": "float64"}
    await assert_equal_to_plain_loop(await cluster.submit(**relu, **size(3, 2)), cluster.env)


@pytest.mark.parametrize(("samples", "batch"), [(160, 16), (858, 8), (37, 16), (5, 64)])
async def test_each_sample_is_used_once_a_pass(cluster: Cluster, samples: int, batch: int) -> None:
    passes, seed = 3, 11
    job = await cluster.submit(
        id="count",
        task="counting:Counting",
        task_args={"samples": samples},
        optimizer={"name": "sgd", "lr": 1.0},
        batch={"global": batch},
        passes=passes,
        seed=seed,
        **size(3, 2),
    )
    record = await job.finished()
    geometry = Geometry(samples, batch)
    counted = np.zeros(samples)
    for pass_ in range(passes):
        order = permutation(seed, pass_, samples)
        for k in range(geometry.per_pass):
            used = order[k * batch : (k + 1) * batch]
            counted[used] += 1 / len(used)
    np.testing.assert_allclose((await job.values())["count"], counted, rtol=1e-6)
    assert record.progress.samples == passes * samples
    assert record.progress.passes == passes
