"""A digest of a data set that a user's code gave."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from elps.data.dataset import Dataset

LOOKS = 64
"""Samples that are looked at, spread evenly over the data set."""


def dataset_fingerprint(dataset: Dataset) -> str:
    """The data set's own ``fingerprint`` if it has that text; else a digest of its length and of 64
    samples, each fetched alone.

    Arrays, numbers and texts count, in tuples, lists and dicts as well; of any other object only
    its type does.
    """
    own = getattr(dataset, "fingerprint", None)
    if isinstance(own, str):
        return own
    length = len(dataset)
    digest = hashlib.sha256(f"{length}\n".encode())
    for at in sorted({(length - 1) * k // (LOOKS - 1) for k in range(LOOKS)}):
        _feed(digest, dataset.get(np.array([at], dtype=np.int64)))
    return digest.hexdigest()


def _feed(digest: Any, value: Any) -> None:
    if isinstance(value, tuple | list):
        digest.update(f"[{len(value)}".encode())
        for item in value:
            _feed(digest, item)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            digest.update(f"{key!r}:".encode())
            _feed(digest, item)
    elif isinstance(value, str | bytes | int | float | bool | None):
        digest.update(repr(value).encode())
    elif hasattr(value, "tocoo"):
        parts = value.tocoo()
        for array in (parts.row, parts.col, parts.data):
            _feed(digest, np.asarray(array))
    elif hasattr(value, "__array__") and (array := np.asarray(value)).dtype.kind in "fiubc":
        digest.update(f"{array.dtype.kind}{array.dtype.itemsize}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).tobytes())
    else:
        digest.update(type(value).__name__.encode())
