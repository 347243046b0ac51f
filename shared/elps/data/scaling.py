"""Scaling of dense features by column, fitted on the training part alone."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from elps.contracts.errors import TaskError
from elps.data.dataset import Samples, Scaling

_CHUNK_ELEMENTS = 2**20


def fit(train: Samples, kind: Literal["standard", "minmax"]) -> Scaling:
    """``standard``: mean 0, deviation 1. ``minmax``: 0 to 1. A constant column becomes 0. Computed
    in float64.
    """
    if train.sparse:
        raise TaskError(
            f"{train.origin}: data.scale {kind!r} would fill every zero of the sparse features; "
            'set data.scale = "none", or scale the file'
        )
    if kind == "standard":
        shift = sum(chunk.sum(axis=0) for chunk in _chunks(train)) / len(train)
        spread = np.sqrt(
            sum(((chunk - shift) ** 2).sum(axis=0) for chunk in _chunks(train)) / len(train)
        )
    else:
        shift = np.minimum.reduce([chunk.min(axis=0) for chunk in _chunks(train)])
        spread = np.maximum.reduce([chunk.max(axis=0) for chunk in _chunks(train)]) - shift
    constant = spread <= 1e-12 * np.maximum(
        1.0, np.abs(shift)
    )  # rounding of the mean leaves a trace of spread
    factor = np.where(constant, 0.0, 1.0 / np.where(constant, 1.0, spread))
    return Scaling(np.asarray(shift, dtype=train.dtype), np.asarray(factor, dtype=train.dtype))


def _chunks(train: Samples) -> Iterator[NDArray[Any]]:
    """The training rows in float64, some at a time, in the order of the file."""
    step = max(1, _CHUNK_ELEMENTS // max(1, math.prod(train.x.shape[1:])))
    for lo in range(0, len(train), step):
        rows = slice(lo, lo + step) if train.rows is None else train.rows[lo : lo + step]
        yield train.x[rows].astype(np.float64)
