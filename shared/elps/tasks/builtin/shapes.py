"""What a built-in task has to know of its data: the number of features, the classes, the
outputs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elps.contracts.errors import TaskError
from elps.data.dataset import Dataset

_CHUNK = 4096
MAX_CLASSES = 1_000_000


def whole(name: str, value: object, low: int, high: int = 2**31) -> int:
    """An argument that is a whole number from `low` to `high`, else `TaskError`."""
    if type(value) is not int or not low <= value <= high:
        raise TaskError(
            f"task_args.{name} is {value!r:.80}, expected a whole number from {low} to {high}"
        )
    return value


def not_negative(name: str, value: object) -> float:
    """An argument that is a finite number of at least 0, else `TaskError`."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not 0 <= value < float("inf")
    ):
        raise TaskError(f"task_args.{name} is {value!r:.80}, expected a number of at least 0")
    return float(value)


def one_of(name: str, value: object, choices: Iterable[str]) -> str:
    """An argument that is one of some words, else `TaskError`."""
    if not isinstance(value, str) or value not in choices:
        raise TaskError(f"task_args.{name} is {value!r:.80}, expected one of {', '.join(choices)}")
    return value


def features_of(dataset: Dataset | None, given: int | None) -> int:
    """The number of features: the argument, or that of the data; they must agree."""
    if given is not None:
        whole("features", given, 1)
    if dataset is None:
        if given is None:
            raise TaskError(
                "the number of features is unknown: give task_args.features, or a data table in the document"
            )
        return given
    x, _ = pair(dataset.get(np.zeros(1, dtype=np.int64)))
    if x.ndim != 2:
        raise TaskError(
            f"{origin_of(dataset)}: a sample has shape {x.shape[1:]}; built-in tasks take one row of numbers"
        )
    found = int(x.shape[1])
    if given is not None and given != found:
        raise TaskError(
            f"task_args.features is {given}, but {origin_of(dataset)} has {found}; leave it out"
        )
    return found


def classes_of(dataset: Dataset | None, given: int | None) -> int:
    """The number of classes: the argument, or one above the largest label. Labels must be 0 …
    classes-1.
    """
    if given is not None:
        whole("classes", given, 2, MAX_CLASSES)
    if dataset is None:
        if given is None:
            raise TaskError(
                "the number of classes is unknown: give task_args.classes, or a data table in the document"
            )
        return given
    labels = labels_of(dataset)
    origin = origin_of(dataset)
    if labels.ndim != 1 or (labels.dtype.kind == "f" and not np.all(np.mod(labels, 1) == 0)):
        raise TaskError(
            f"{origin}: the labels are no whole numbers; for targets of a regression take task linear"
        )
    low, high = int(labels.min()), int(labels.max())
    limit = given if given is not None else MAX_CLASSES
    if low < 0 or high >= limit:
        raise TaskError(
            f"{origin}: the labels run from {low} to {high}, expected 0 to {limit - 1}; "
            "set data.args.relabel = true to number the classes from 0, or mend task_args.classes"
        )
    return given if given is not None else max(2, high + 1)


def check_two_classes(dataset: Dataset | None, task: str) -> None:
    """Raise `TaskError` unless all labels are 0 and 1, or -1 and 1."""
    if dataset is None:
        return
    found = np.unique(labels_of(dataset))
    if not (np.isin(found, (0, 1)).all() or np.isin(found, (-1, 1)).all()):
        shown = ", ".join(f"{v:g}" for v in found[:6]) + (", …" if found.size > 6 else "")
        raise TaskError(
            f"{origin_of(dataset)}: the labels are {shown}; {task} takes 0 and 1, or -1 and 1. "
            "For two other labels set data.args.relabel = true; for more classes take task softmax"
        )


def labels_of(dataset: Dataset) -> NDArray[Any]:
    """All targets: the data set's ``labels`` if it has them, else by fetching every sample."""
    labels = getattr(dataset, "labels", None)
    if labels is not None:
        return np.asarray(labels)
    count = len(dataset)
    chunks = (
        np.arange(lo, min(lo + _CHUNK, count), dtype=np.int64) for lo in range(0, count, _CHUNK)
    )
    return np.concatenate([np.asarray(pair(dataset.get(indices))[1]) for indices in chunks])


def origin_of(dataset: Dataset) -> str:
    """The file or source of a data set, for messages."""
    return str(getattr(dataset, "origin", "the data set"))


def pair(batch: object) -> tuple[Any, Any]:
    """A batch as features and targets."""
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise TaskError(
            f"built-in tasks take batches (x, y); the data set gives {type(batch).__name__}"
        )
    return batch[0], batch[1]
