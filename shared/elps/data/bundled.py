"""The small real data sets that scikit-learn carries.

Their files are read directly: importing `sklearn.datasets` takes nearly two seconds, which is more
than a job takes to start. When a release lays its files out differently, its own loader is used; a
test holds the two equal.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elps.contracts.errors import TaskError
from elps.data.source import Source

Arrays = tuple[NDArray[Any], NDArray[Any]]

BUNDLED = ("digits", "breast_cancer", "diabetes")


def open_bundled(name: str) -> Source:
    """One of `BUNDLED`: features float64 of shape (rows, columns); targets int64 classes, or
    float64 for diabetes.
    """
    try:
        x, y = _read(name, _folder())
    except (OSError, ValueError, IndexError):
        x, y = load_by_scikit_learn(name)
    digest = hashlib.sha256(name.encode())
    for array in (x, y):
        digest.update(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes())
    return Source(x, y, name, digest.hexdigest())


def _folder() -> Path:
    spec = importlib.util.find_spec("sklearn")
    if spec is None or not spec.submodule_search_locations:
        raise TaskError(
            "this data source needs scikit-learn on the worker's host: pip install scikit-learn"
        )
    return Path(spec.submodule_search_locations[0]) / "datasets" / "data"


def _read(name: str, folder: Path) -> Arrays:
    match name:
        case "digits":  # 64 grey values 0 to 16, then the digit
            table = _table(gzip.decompress((folder / "digits.csv.gz").read_bytes()), ",")
            return _shaped(table[:, :-1], table[:, -1].astype(np.int64), (1797, 64))
        case "breast_cancer":  # the first line names sizes and classes
            _, body = (folder / "breast_cancer.csv").read_bytes().split(b"\n", 1)
            table = _table(body, ",")
            return _shaped(table[:, :-1], table[:, -1].astype(np.int64), (569, 30))
        case "diabetes":  # standardized to columns of mean 0 and norm 1, as scikit-learn gives it
            x = _table(gzip.decompress((folder / "diabetes_data_raw.csv.gz").read_bytes()), None)
            y = _table(gzip.decompress((folder / "diabetes_target.csv.gz").read_bytes()), None)
            x = (x - x.mean(axis=0)) / x.std(axis=0) / np.sqrt(x.shape[0])
            return _shaped(x, y.reshape(-1), (442, 10))
    raise ValueError(name)


def _table(body: bytes, separator: str | None) -> NDArray[np.float64]:
    text = body.decode()
    rows = len(text.splitlines())
    return np.array(text.replace(separator or " ", " ").split(), dtype=np.float64).reshape(rows, -1)


def _shaped(x: NDArray[Any], y: NDArray[Any], shape: tuple[int, int]) -> Arrays:
    if x.shape != shape or y.shape != shape[:1]:
        raise ValueError(f"expected shape {shape}, found {x.shape}")
    return np.ascontiguousarray(x), y


def load_by_scikit_learn(name: str) -> Arrays:
    """The same through scikit-learn's loader."""
    loaders: Any = importlib.import_module("sklearn.datasets")
    bunch = getattr(loaders, f"load_{name}")()
    return np.ascontiguousarray(bunch.data, dtype=np.float64), bunch.target
