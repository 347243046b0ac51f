"""Losses per sample with their derivatives by the score, stable for scores of any size, in the
dtype of the scores.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def squared(scores: Array, y: Array) -> tuple[Array, Array]:
    """(score - y)² / 2, summed over the outputs; scores and y of shape (n,) or (n, outputs)."""
    off = scores - y.astype(scores.dtype, copy=False)
    loss = off * off / 2
    return (loss.sum(axis=1) if loss.ndim > 1 else loss), off


def logistic(scores: Array, y: Array) -> tuple[Array, Array]:
    """Cross entropy of two classes; scores of shape (n,), the class is whether y is above 0."""
    sign = np.where(y > 0, 1, -1).astype(scores.dtype)
    margin = sign * scores
    small = np.exp(-np.abs(margin))  # never overflows
    loss = np.maximum(-margin, 0) + np.log1p(small)
    off = np.where(margin >= 0, small, 1) / (1 + small)  # 1 / (1 + exp(margin))
    return loss, -sign * off


def hinge(scores: Array, y: Array) -> tuple[Array, Array]:
    """max(0, 1 - margin); scores of shape (n,), the class is whether y is above 0."""
    sign = np.where(y > 0, 1, -1).astype(scores.dtype)
    short = np.maximum(1 - sign * scores, 0)
    return short, np.where(short > 0, -sign, 0).astype(scores.dtype)


def squared_hinge(scores: Array, y: Array) -> tuple[Array, Array]:
    """The square of `hinge`, which has no kink."""
    short, slope = hinge(scores, y)
    return short * short, 2 * short * slope


def softmax(scores: Array, y: Array) -> tuple[Array, Array]:
    """Cross entropy of k classes; scores of shape (n, k), y whole numbers of 0 … k-1."""
    shifted = scores - scores.max(axis=1, keepdims=True)
    odds = np.exp(shifted)
    total = odds.sum(axis=1, keepdims=True)
    rows = np.arange(scores.shape[0])
    classes = y.astype(np.int64, copy=False)
    loss = np.log(total[:, 0]) - shifted[rows, classes]
    derivative = odds / total
    derivative[rows, classes] -= 1
    return loss, derivative
