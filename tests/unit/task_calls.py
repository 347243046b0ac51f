"""Tasks and data of a few numbers, and their jobs opened: for tests of how a task is called."""

from __future__ import annotations

from typing import Any

import numpy as np

from elps.contracts.codec import parse_job
from elps.stream.interval import Interval
from elps.tasks.layout import Layout
from elps.tasks.running import OpenJob

SAMPLES = 20


class Numbers:
    """Sample i is the number i, as float64."""

    def __len__(self) -> int:
        return SAMPLES

    def get(self, indices: Any) -> Any:
        assert indices.dtype == np.int64
        return indices.astype(float)


class Good:
    """Two parameters; the gradient of w is the sum of the batch in each place, that of b its size."""

    def init(self, rng: Any) -> Any:
        return {"w": np.ones((2, 3)), "b": np.array(0.5)}

    def loss_and_grad(self, params: Any, batch: Any) -> Any:
        return batch.sum(), {"w": np.full((2, 3), batch.sum()), "b": float(len(batch))}


def open_with(task: Any, dtype: str = "float32", granule: int = 1, test: Any = None) -> OpenJob:
    document = parse_job(
        {
            "task": "mod:Task",
            "passes": 1,
            "seed": 3,
            "dtype": dtype,
            "batch": {"global": 4 * granule, "granule": granule},
        }
    )
    layout = Layout.of(Good().init(None), dtype)
    return OpenJob(document, task, Numbers(), test, layout, "f", "c")


def gradient_of(job: OpenJob, lo: int = 0, hi: int = 5, emit: Any = None) -> tuple[float, Any]:
    params, out = job.initial(), np.full(job.layout.size, np.nan, job.layout.dtype)
    loss = job.gradient(params, Interval(lo, hi), job.order(), out, emit)
    return loss, out


def returning(result: Any) -> Any:
    class Bad(Good):
        def loss_and_grad(self, params: Any, batch: Any) -> Any:
            return result

    return Bad()


def good_gradients() -> dict[str, Any]:
    return {"w": np.ones((2, 3)), "b": np.array(1.0)}
