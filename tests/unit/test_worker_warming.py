"""What a newcomer computes before it joins: how much, on what, and that nothing of it is told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from elps.contracts.job import Batch, Data, JobDocument, Pool
from elps.tasks.opening import open_job
from elps.tasks.running import OpenJob
from elps.worker.trainer import warming
from elps.worker.trainer.warming import warm_up


class Recording:
    """A task that keeps the sizes of the batches it was given."""

    def __init__(self, task: Any, fails: bool = False) -> None:
        self.task, self.fails, self.sizes = task, fails, list[int]()

    def init(self, rng: Any) -> Any:
        return self.task.init(rng)

    def loss_and_grad(self, params: Any, batch: Any) -> Any:
        self.sizes.append(len(batch[1]))
        assert any(value.any() for value in params.values()), "not the first parameters"
        if self.fails:
            raise ZeroDivisionError
        return 0.0, {name: np.ones_like(value) for name, value in params.items()}


def opened(batch: Batch, workers: int = 2, *, fails: bool = False) -> tuple[OpenJob, Recording]:
    document = JobDocument(
        task="mlp",
        task_args={"hidden": [4]},
        data=Data(source="breast_cancer"),
        iterations=1,
        batch=batch,
        workers=Pool(max=workers),
    )
    job = open_job(document, {})
    task = Recording(job.task, fails)
    return replace(job, task=task), task


def warmed(job: OpenJob) -> Any:
    params, gradient = np.zeros(job.layout.size, "f4"), np.zeros(job.layout.size, "f4")
    warm_up(job, job.order(), params, gradient)
    return gradient


@pytest.mark.parametrize(
    ("batch", "sizes"),
    [
        (Batch(global_=64), [1, 32]),
        (Batch(global_=1), [1]),
        (Batch(global_=40, granule=8), [8, 8, 8]),
        (Batch(global_=40, granule=40), [40]),
        (Batch(global_=100_000), [1, 569]),
    ],
)
def test_the_least_and_then_an_equal_share(batch: Batch, sizes: list[int]) -> None:
    job, task = opened(batch)
    assert warmed(job).all()
    assert task.sizes == sizes


def test_a_slow_task_computes_the_least_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warming, "QUICK_S", 0.0)
    job, task = opened(Batch(global_=64))
    warmed(job)
    assert task.sizes == [1]


def test_what_fails_fails_later_in_a_lease() -> None:
    job, task = opened(Batch(global_=64), fails=True)
    warmed(job)
    assert task.sizes == [1]
