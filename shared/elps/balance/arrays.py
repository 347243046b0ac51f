"""One row per worker: the arrays that predictors and sizers compute on."""

from __future__ import annotations

from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

FloatArray: TypeAlias = NDArray[np.float64]
IntArray: TypeAlias = NDArray[np.int64]
BoolArray: TypeAlias = NDArray[np.bool_]
_Any = TypeVar("_Any", FloatArray, IntArray, BoolArray)

NEW = -1
"""In an arrangement: a row that was not there before."""


def arranged(values: _Any, rows: IntArray, fill: float) -> _Any:
    """`values` with its last axis in a new order: entry *i* comes from old entry ``rows[i]``, or is `fill` where `NEW`.

    Rows that no entry names are gone.
    """
    result = np.full((*values.shape[:-1], len(rows)), fill, dtype=values.dtype)
    old = rows >= 0
    result[..., old] = values[..., rows[old]]
    return result


def usable(values: FloatArray, low: float, high: float) -> FloatArray:
    """`values` without the ones that cannot be: unknown ones become the median of the others (1 if there is none),
    and all are clipped into ``low`` to ``high``. Unknown is NaN, infinite, negative or 0.
    """
    values = np.asarray(values, dtype=np.float64)
    known = np.isfinite(values) & (values > 0)
    if known.all():
        return np.clip(values, low, high)
    instead = float(np.median(values[known])) if known.any() else 1.0
    return np.clip(np.where(known, values, instead), low, high)
