"""The held-out part: a function of the labels, the fraction and the seed, the same on every
machine.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from elps.contracts.errors import TaskError
from elps.data.dataset import Indices

_SPLIT = 3  # beside the streams of elps.stream.order


def split(
    samples: int, labels: NDArray[Any] | None, fraction: float, seed: int, origin: str
) -> tuple[Indices, Indices]:
    """Row numbers of the training and the test part, each ascending; the test part is the rounded
    fraction.

    With `labels` each class gives its share to the test part, by largest remainder, ties at random.
    """
    count = round(samples * fraction)
    if not 0 < count < samples:
        raise TaskError(
            f"{origin}: data.test_fraction {fraction} of {samples} samples leaves {count} for the test part and "
            f"{samples - count} for training; both need at least 1"
        )
    rng = np.random.Generator(np.random.PCG64([_SPLIT, seed]))
    order = rng.permutation(samples)
    if labels is None:
        chosen = order[:count]
    else:
        classes, of_row = np.unique(labels, return_inverse=True)
        sizes = np.bincount(of_row, minlength=classes.size)
        whole, rest = np.divmod(sizes * count, samples)
        tie = rng.permutation(classes.size)
        most = np.lexsort((tie, -rest))
        whole[most[: count - int(whole.sum())]] += 1
        by_class = order[np.argsort(of_row[order], kind="stable")]
        starts = np.cumsum(sizes) - sizes
        chosen = np.concatenate([by_class[s : s + k] for s, k in zip(starts, whole, strict=True)])
    held = np.zeros(samples, dtype=bool)
    held[chosen] = True
    return np.flatnonzero(~held), np.flatnonzero(held)


def classes_to_stratify(y: NDArray[Any]) -> NDArray[np.int64] | None:
    """The labels as classes, or None where keeping shares means nothing: not whole numbers, or a
    class of one sample.
    """
    if y.ndim != 1 or (
        y.dtype.kind == "f" and not np.all((np.mod(y, 1) == 0) & (np.abs(y) < 2**53))
    ):
        return None
    labels = y.astype(np.int64)
    _, sizes = np.unique(labels, return_counts=True)
    return labels if int(sizes.min()) >= 2 else None
