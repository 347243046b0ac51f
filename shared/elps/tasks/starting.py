"""Parameters to start from, out of a file: those of an earlier job, or of another program."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elps.contracts.errors import TaskError
from elps.data.files import find_file
from elps.tasks.layout import Layout

_SHOWN = 5


def read_start(path: str, env: Mapping[str, str], layout: Layout) -> dict[str, NDArray[Any]]:
    """The arrays of a safetensors file; `TaskError` unless they are those of the layout, by name and shape.

    `path` is absolute or relative to the directories of ``ELPS_DATA_PATH``. Floats of any width will do.
    """
    file = find_file(path, env, "init")
    given = _load(file)
    expected = {p.name: p for p in layout.parameters}
    problems = [f"it lacks {_names(missing)}"] if (missing := expected.keys() - given) else []
    if extra := given.keys() - expected:
        problems.append(f"the task has no {_names(extra)}")
    for name in sorted(given.keys() & expected):
        array, parameter = given[name], expected[name]
        if array.shape != parameter.shape:
            problems.append(f"{name!r} has shape {array.shape}, expected {parameter.shape}")
        elif array.dtype.kind not in ("fiu" if parameter.rule else "f"):
            problems.append(f"{name!r} is of {array.dtype}, expected floats")
    if problems:
        more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        raise TaskError(f"init: {file} does not fit the task: {'; '.join(problems[:_SHOWN])}{more}")
    return {name: np.asarray(given[name], np.float64) for name in expected}


def _load(file: Path) -> dict[str, NDArray[Any]]:
    safetensors: Any = importlib.import_module("safetensors.numpy")
    try:
        arrays: dict[str, NDArray[Any]] = safetensors.load_file(file)
    except (
        Exception
    ) as error:  # whatever it raises for a file that is none, or of a dtype that numpy lacks
        raise TaskError(
            f"init: {file} cannot be read as safetensors of float16, float32 or float64: {error!r:.200}"
        ) from error
    return arrays


def _names(names: Any) -> str:
    listed = sorted(map(repr, names))
    return ", ".join(listed[:_SHOWN]) + (
        f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    )
