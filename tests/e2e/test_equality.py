"""What services, shards and trainers make together is what the plain loop makes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import reference
from cluster import Cluster, agent, running, scheduler, shard, size
from jobs import Job

from elps.contracts.job import JobDocument
from elps.stream.geometry import Geometry
from elps.stream.interval import Interval
from elps.stream.order import Order

pytestmark = pytest.mark.asyncio(loop_scope="module")

TOLERANCE = {"float32": 1e-5, "float64": 1e-12}
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
        lines.append(f"{label} " + " ".join(f"{i + 1}:{v:.5f}" for i, v in zip(chosen, values, strict=True)))
    return "\n".join(lines) + "\n"


PERCEPTRON = {
    "id": "digits",
    "task": "mlp",
    "task_args": {"hidden": [32]},
    "data": {"source": "digits", "test_fraction": 0.2, "scale": "standard"},
    "optimizer": {"name": "adam", "lr": 0.01},
    "batch": {"global": 64},
    "evaluate": {"every": 50},
    "iterations": 200,
}
LOGISTIC = {
    "id": "sparse",
    "task": "logistic",
    "task_args": {"l2": 0.001},
    "data": {"source": "libsvm", "path": "sparse.svm", "test_fraction": 0.1},
    "optimizer": {"name": "sgd", "lr": 0.5},
    "batch": {"global": 32},
    "iterations": 200,
}


def same(got: Any, expected: Any, dtype: str) -> None:
    np.testing.assert_allclose(got, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


async def trained(job: Job, cluster: Cluster) -> reference.Reference:
    """Follow a job to its end and compare all that it gave with the plain loop."""
    document = job.document
    record = await job.finished()
    expected = reference.run(document, cluster.env)
    assert record.progress.iteration == expected.iterations
    assert (await job.manifest()).iteration == expected.iterations
    same(await job.flat(), expected.flat(), document.dtype)
    same(job.losses(), expected.losses, document.dtype)
    assert [r.iteration for r in job.rows] == list(range(expected.iterations))
    told = {e.iteration: e.metrics for e in job.told("evaluated")}
    assert told.keys() == expected.evaluations.keys()
    for iteration, metrics in expected.evaluations.items():
        assert told[iteration].keys() == metrics.keys()
        for name, value in metrics.items():
            same(told[iteration][name], value, document.dtype)
    return expected


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("workers", "shards"), SIZES)
async def test_perceptron_equals_the_plain_loop(
    cluster: Cluster, workers: int, shards: int, dtype: str
) -> None:
    job = await cluster.submit(**PERCEPTRON, **size(workers, shards), dtype=dtype)
    expected = await trained(job, cluster)
    assert len(expected.evaluations) == 4
    assert {t.worker for row in job.rows for t in row.workers} == {
        f"{job.id}-w{n}" for n in range(1, workers + 1)
    }


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("workers", "shards"), SIZES)
async def test_sparse_logistic_regression_equals_the_plain_loop(
    cluster: Cluster, workers: int, shards: int, dtype: str
) -> None:
    job = await cluster.submit(**LOGISTIC, **size(workers, shards), dtype=dtype)
    await trained(job, cluster)
