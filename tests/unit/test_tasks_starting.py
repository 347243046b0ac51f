"""Parameters to start from, out of a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from elps.contracts.codec import parse_job
from elps.contracts.errors import TaskError
from elps.tasks.opening import open_job

GOOD = {"weights": np.linspace(0, 1, 30), "bias": np.array(0.25)}


def opened(folder: Path, arrays: dict[str, Any] | bytes | None) -> Any:
    if isinstance(arrays, bytes):
        (folder / "start.safetensors").write_bytes(arrays)
    elif arrays is not None:
        save_file(arrays, folder / "start.safetensors")
    text = {
        "task": "logistic",
        "data": {"source": "breast_cancer"},
        "passes": 1,
        "init": "start.safetensors",
    }
    return open_job(parse_job(text), {"ELPS_DATA_PATH": str(folder)})


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_job_starts_from_the_parameters_in_a_file(tmp_path: Path, dtype: Any) -> None:
    job = opened(tmp_path, {name: array.astype(dtype) for name, array in GOOD.items()})
    views = job.layout.views(job.initial())
    for name, array in GOOD.items():
        np.testing.assert_array_equal(views[name], array.astype(dtype).astype(np.float32))


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"weights": GOOD["weights"]}, "does not fit the task: it lacks 'bias'"),
        ({**GOOD, "more": np.ones(2)}, "the task has no 'more'"),
        ({**GOOD, "weights": np.ones((30, 2))}, r"'weights' has shape \(30, 2\), expected \(30,\)"),
        ({**GOOD, "weights": np.ones(30, np.int32)}, "'weights' is of int32, expected floats"),
        ({"w": np.ones(1)}, "it lacks 'bias', 'weights'; the task has no 'w'"),
        ({**GOOD, "bias": np.array(np.nan)}, "NaN or infinity in parameter 'bias'"),
        (b"{}", "cannot be read as safetensors"),
        (None, "'start.safetensors' is not there"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_with_all_that_is_wrong(
    tmp_path: Path, arrays: Any, words: str
) -> None:
    job = opened(tmp_path, arrays)  # only who brings version 0 needs the file
    with pytest.raises(TaskError, match=words):
        job.initial()
