"""A user's own task: a file in a folder that the operator has allowed, and nothing else."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
import tomllib
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
import reference
import torch_loop
from cluster import Cluster, agent, running, scheduler, shard, size
from comparing import assert_equal_to_plain_loop

from elps.tasks.opening import open_job

pytestmark = pytest.mark.asyncio(loop_scope="module")

EXAMPLE = Path(__file__).parents[2] / "examples" / "user_task"

OWN = """
import numpy as np


class Rows:
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def get(self, indices):
        return self.rows[indices]


class Mean:
    def __init__(self, far=3.0):
        self.far = far

    def data(self):
        return Rows(np.random.default_rng(0).normal(self.far, 1.0, (200, 2)))

    def init(self, rng):
        return {"mean": np.zeros(2)}

    def loss_and_grad(self, params, batch):
        off = params["mean"] - batch
        print("a batch of", len(batch))
        return 0.5 * (off**2).sum(), {"mean": off.sum(axis=0)}
"""


class Folders:
    """Where user tasks lie; the second is not allowed."""

    def __init__(self, root: Path) -> None:
        self.allowed, self.other = root / "allowed", root / "other"
        for folder, module in ((self.allowed, "my_mean"), (self.other, "not_allowed")):
            folder.mkdir()
            (folder / f"{module}.py").write_text(OWN)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return Folders(tmp_path_factory.mktemp("tasks"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(folders: Folders) -> AsyncIterator[Cluster]:
    allowed = f"{folders.allowed}:{EXAMPLE}:{torch_loop.FOLDER}:{Path(__file__).parent / 'tasks'}"
    members = [scheduler(), shard(1), shard(2), agent(1), agent(2)]
    async with running(*members, ELPS_TASK_PATH=allowed) as cluster:
        yield cluster


async def test_a_task_from_an_allowed_folder_trains(cluster: Cluster) -> None:
    job = await cluster.submit(
        id="mine",
        task="my_mean:Mean",
        task_args={"far": 5.0},
        optimizer={"lr": 0.5},
        batch={"global": 50},
        passes=10,
        dtype="float64",
        **size(2, 1),
    )
    await assert_equal_to_plain_loop(job, cluster.env)
    assert (await job.values())["mean"] == pytest.approx([5.0, 5.0], abs=0.3)
    await job.until(lambda: "a batch of 25" in job.lines, "printed line")


async def test_the_example_of_a_user_task_trains(cluster: Cluster) -> None:
    text = tomllib.loads((EXAMPLE / "ridge_waves.toml").read_text())
    job = await cluster.submit(**{**text, **size(2, 2), "dtype": "float64", "passes": 3})
    await assert_equal_to_plain_loop(job, cluster.env)


@pytest.mark.parametrize(("workers", "shards", "replicas"), [(1, 1, 0), (3, 2, 1)])
async def test_a_tasks_state_becomes_one_by_its_rules(
    cluster: Cluster, workers: int, shards: int, replicas: int
) -> None:
    job = await cluster.submit(
        id="state",
        task="standardizing:Standardizing",
        data={"source": "diabetes", "test_fraction": 0.2},
        optimizer={"name": "momentum", "lr": 0.05, "weight_decay": 0.01},
        batch={"global": 40},
        passes=4,
        dtype="float64",
        replicas=replicas,
        **size(workers, shards),
    )
    expected = await assert_equal_to_plain_loop(job, cluster.env)
    values = await job.values()
    assert list(values) == ["weights", "bias", "mean", "largest", "steps", "newest"]
    assert values["steps"] == expected.iterations


async def test_a_tasks_state_moves_with_the_partitions(cluster: Cluster) -> None:
    job = await cluster.submit(
        id="moving",
        task="standardizing:Standardizing",
        data={"source": "diabetes"},
        optimizer={"name": "adam", "lr": 0.01},
        batch={"global": 40},
        passes=1_000_000,
        dtype="float64",
        workers={"min": 2, "max": 2},
        shards={"min": 1, "max": 2},
    )
    await job.iteration(10)
    await cluster.client.scale(job.id, shards=1)
    async with asyncio.timeout(40):
        while len((await job.record()).allocation.shards) > 1:  # type: ignore[union-attr]
            await job.iteration(job.rows[-1].iteration + 10)
    await job.iteration(job.rows[-1].iteration + 10)
    await cluster.ask("pause", job)
    await job.paused()
    done = (await job.manifest()).iteration
    expected = reference.run(job.document, cluster.env, iterations=done)
    # However many iterations it came to: what the order of additions makes grows with them.
    np.testing.assert_allclose(await job.flat(), expected.flat(), rtol=1e-8, atol=1e-8)
    assert (await job.record()).progress.redone_iterations == 0
    await cluster.ask("kill", job)


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not a dependency")
async def test_the_example_of_a_torch_module_trains_as_torchs_plain_loop(cluster: Cluster) -> None:
    text = tomllib.loads((torch_loop.FOLDER / "digits_cnn.toml").read_text())
    document = {**text, "dtype": "float64", "passes": 2, "task_args": {"width": 4}, **size(2, 2)}
    job = await cluster.submit(**document)
    record = await job.finished()
    opened = open_job(job.document, cluster.env)
    net = sys.modules["digits_cnn"].Net(4)
    expected, losses = torch_loop.train(opened, net, record.progress.iterations)
    for name, value in (await job.values()).items():
        np.testing.assert_allclose(
            value, expected[name].numpy(), rtol=1e-9, atol=1e-9, err_msg=name
        )
    np.testing.assert_allclose(job.losses(), losses, rtol=1e-9)
    assert record.progress.metrics["accuracy"] == pytest.approx(
        torch_loop.accuracy(opened, net), abs=1.5 / opened.test_samples
    )


@pytest.mark.parametrize(
    "task", ["not_allowed:Mean", "os:system", "subprocess:Popen", "elps.wire.frames:Header"]
)
async def test_a_task_outside_is_refused_with_a_text_that_says_how_to_allow_it(
    cluster: Cluster, folders: Folders, task: str
) -> None:
    job = await cluster.submit(id="outside", task=task, passes=1)
    reason = await job.failed(timeout_s=15)
    assert f"task '{task}' is refused" in reason
    assert "ELPS_TASK_PATH" in reason
    assert str(folders.allowed) in reason
    assert job.rows == []


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ("my_mean:Median", "has no Median"),
        ("my_mean:np", "is not a class or function defined in an allowed place"),
        ("perceptron", "built in:"),
        ("my_mean", "neither built in nor module:Name"),
    ],
)
async def test_a_task_that_is_not_there_fails_the_job_with_a_text_that_helps(
    cluster: Cluster, task: str, words: str
) -> None:
    job = await cluster.submit(id="absent", task=task, passes=1)
    assert words in await job.failed(timeout_s=15)
