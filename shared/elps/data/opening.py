"""From the data table of a job document to a training and a test part."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from elps.contracts.errors import TaskError
from elps.contracts.job import Data
from elps.data import allowed, scaling
from elps.data.arrays import open_npy, open_npz
from elps.data.bundled import BUNDLED, open_bundled
from elps.data.dataset import Dataset, Samples, Subset
from elps.data.failing import UserCode
from elps.data.fingerprint import dataset_fingerprint
from elps.data.libsvm import open_libsvm
from elps.data.source import WATCHED_ELEMENTS, Source, check_args, relabelled
from elps.data.splitting import classes_to_stratify, split
from elps.data.tables import open_csv, open_parquet


@dataclass(frozen=True)
class OpenData:
    """The samples of a job."""

    train: Dataset
    test: Dataset | None
    fingerprint: str
    """Equal on two machines when they hold the same data (see `file_fingerprint` for large
    files).
    """
    code_hash: str = ""
    """Of the source's code, when a user wrote it."""


def open_data(data: Data, env: Mapping[str, str], dtype: str) -> OpenData:
    """Open the source, number its classes if ``args.relabel`` is set, split off the test part, fit
    the scaling. `TaskError` names the file and what to do.
    """
    if ":" in data.source:
        return _open_callable(data, env)
    source = _open_source(data, env, dtype)
    if data.args.get("relabel"):
        source = relabelled(source)
    watch = isinstance(source.x, np.ndarray) and source.x.size > WATCHED_ELEMENTS
    whole = Samples(source.x, source.y, np.dtype(dtype), source.origin, watch=watch)
    train, test = whole, None
    if source.test is not None:
        if data.test_fraction:
            raise TaskError(f"{source.origin}: give data.test_fraction or a test file, not both")
        test = Samples(*source.test, np.dtype(dtype), source.origin)
    elif data.test_fraction:
        labels = classes_to_stratify(source.y) if data.stratify else None
        train_rows, test_rows = split(
            len(whole), labels, data.test_fraction, data.split_seed, source.origin
        )
        train, test = whole.part(train_rows), whole.part(test_rows)
    if data.scale != "none":
        fitted = scaling.fit(train, data.scale)
        train = train.scaled(fitted)
        test = test.scaled(fitted) if test is not None else None
    digest = hashlib.sha256(source.fingerprint.encode())
    for part in (train, test):
        if part is not None and part.rows is not None:
            digest.update(part.rows.astype("<i8").tobytes())
    return OpenData(train, test, digest.hexdigest())


def _open_source(data: Data, env: Mapping[str, str], dtype: str) -> Source:
    match data.source:
        case "libsvm":
            return open_libsvm(data, env, dtype)
        case "npy":
            return open_npy(data, env)
        case "npz":
            return open_npz(data, env)
        case "csv":
            return open_csv(data, env)
        case "parquet":
            return open_parquet(data, env)
    if data.source not in BUNDLED:
        known = ", ".join((*BUNDLED, "libsvm", "npy", "npz", "csv", "parquet"))
        raise TaskError(
            f"data source {data.source!r} is unknown; expected {known} or module:Callable"
        )
    check_args(data.args, data.source, {})
    if data.path:
        raise TaskError(f"data source {data.source!r} reads no file; leave data.path out")
    return open_bundled(data.source)


def _open_callable(data: Data, env: Mapping[str, str]) -> OpenData:
    what = f"data source {data.source!r}"
    if data.path or data.scale != "none":
        raise TaskError(
            f"{what}: path and scale are for the built-in sources; hand them over in data.args"
        )
    code = allowed.load(data.source, env, "data source")
    with UserCode(f"{what}: calling it with {data.args!r:.200}"):
        given = code.value(**data.args)
    opened = opened_by_task(given, what)
    if data.test_fraction:
        if opened.test is not None:
            raise TaskError(f"{what} gives a test part of its own; leave data.test_fraction out")
        opened = _split_dataset(opened, data, what)
    return OpenData(opened.train, opened.test, opened.fingerprint, code.source_hash)


def _split_dataset(opened: OpenData, data: Data, what: str) -> OpenData:
    labels: Any = getattr(opened.train, "labels", None) if data.stratify else None
    if labels is not None:
        labels = np.asarray(labels)
        if labels.shape[:1] != (len(opened.train),) or labels.dtype.kind not in "fiub":
            raise TaskError(
                f"{what}: labels have shape {labels.shape} and dtype {labels.dtype}; expected one number a sample"
            )
        labels = classes_to_stratify(labels)
    train, test = split(len(opened.train), labels, data.test_fraction, data.split_seed, what)
    rows = hashlib.sha256(test.astype("<i8").tobytes()).hexdigest()
    return OpenData(
        Subset(opened.train, train), Subset(opened.train, test), opened.fingerprint + rows
    )


def opened_by_task(given: object, what: str) -> OpenData:
    """Check what a user's code gave: a data set, or a pair of training and test part (which may be
    None).
    """
    train: Any
    test: Any
    train, test = given if isinstance(given, tuple) and len(given) == 2 else (given, None)
    digest = hashlib.sha256()
    for name, part in (("training part", train), ("test part", test)):
        if part is None and name == "test part":
            continue
        if (
            not callable(getattr(part, "get", None))
            or not callable(getattr(part, "__len__", None))
            or isinstance(part, dict)
        ):
            raise TaskError(
                f"{what} gave {type(part).__name__} as {name}; expected an object with len() and get(indices), "
                "or a pair of them for training and test"
            )
        with UserCode(f"{what}: length of the {name}"):
            length = len(part)
        if length == 0:
            raise TaskError(f"{what}: the {name} is empty")
        with UserCode(f"{what}: first look at the {name}"):
            digest.update(f"{name} {dataset_fingerprint(part)}".encode())
    return OpenData(train, test, digest.hexdigest())
