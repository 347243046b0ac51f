"""What a source gives before it is split, and the checks that all sources share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elps.contracts.errors import TaskError

WATCHED_ELEMENTS = 2**26
"""Features of more elements than this are not looked through at the start but batch by batch."""


@dataclass(frozen=True)
class Source:
    """Features and targets as the source holds them."""

    x: Any
    """Dense array of shape (rows, …), perhaps mapped, or a csr array."""
    y: NDArray[Any]
    """Shape (rows,) or (rows, outputs)."""
    origin: str
    """File or name, for messages."""
    fingerprint: str
    test: tuple[Any, NDArray[Any]] | None = None
    """A test part of the source's own."""


def relabelled(source: Source) -> Source:
    """The labels numbered from 0 in their ascending order, over both parts; they must be one a
    sample.
    """
    if source.y.ndim != 1:
        raise TaskError(
            f"{source.origin}: args.relabel takes one label a sample, found shape {source.y.shape[1:]}"
        )
    known = np.unique(
        source.y if source.test is None else np.concatenate([source.y, source.test[1]])
    )
    test = None if source.test is None else (source.test[0], np.searchsorted(known, source.test[1]))
    return replace(source, y=np.searchsorted(known, source.y), test=test)


def check_args(
    args: Mapping[str, Any], source: str, known: Mapping[str, type | tuple[type, ...]]
) -> None:
    """Raise `TaskError` for an argument of the source that is unknown or of the wrong kind."""
    problems = []
    for name, value in args.items():
        if name not in known:
            problems.append(f"{name} is unknown (known: {', '.join(known) or 'none'})")
        elif not isinstance(value, known[name]) or (isinstance(value, bool) and known[name] is int):
            problems.append(f"{name} is {value!r:.80}, expected {_kind(known[name])}")
    if problems:
        raise TaskError(f"data source {source!r}: args: {'; '.join(problems)}")


def _kind(kinds: type | tuple[type, ...]) -> str:
    names = {str: "a text", int: "a whole number", bool: "true or false", float: "a number"}
    return " or ".join(
        names.get(k, k.__name__) for k in (kinds if isinstance(kinds, tuple) else (kinds,))
    )


def check_dense(x: NDArray[Any], y: NDArray[Any], origin: str) -> None:
    """Raise `TaskError` unless dense features and targets are numbers, finite, and of one length
    above 0.
    """
    for what, array in (("features", x), ("targets", y)):
        if array.dtype.kind not in "fiub":
            raise TaskError(
                f"{origin}: the {what} are of {array.dtype}; store them as an array of numbers"
            )
        if array.ndim == 0:
            raise TaskError(
                f"{origin}: the {what} are a single number; expected one row per sample"
            )
    check_lengths(x.shape[0], y.shape[0], origin)
    if x.size == 0:
        raise TaskError(f"{origin}: samples have no features (shape {x.shape})")
    if x.size <= WATCHED_ELEMENTS:
        check_finite(x, origin)
    check_targets(y, origin)


def check_lengths(rows: int, targets: int, origin: str) -> None:
    """Raise `TaskError` unless there are samples, and a target for each."""
    if rows != targets:
        raise TaskError(
            f"{origin}: {rows} rows of features but {targets} targets; expected one for each"
        )
    if rows == 0:
        raise TaskError(f"{origin}: there is no sample in it")


def check_targets(y: NDArray[Any], origin: str) -> None:
    """Raise `TaskError` when a target is NaN or infinite."""
    if y.dtype.kind == "f" and not (finite := np.isfinite(y)).all():
        row = int(np.argwhere(~finite)[0][0])
        raise TaskError(
            f"{origin}: the target of row {row} is NaN or infinite; remove or repair such rows"
        )


def check_finite(x: NDArray[Any], origin: str) -> None:
    """Raise `TaskError` naming the first row that holds NaN or infinity."""
    if x.dtype.kind != "f":
        return
    step = max(1, 2**20 // max(1, math.prod(x.shape[1:])))
    for lo in range(0, x.shape[0], step):
        finite = np.isfinite(x[lo : lo + step])
        if not finite.all():
            at = np.argwhere(~finite)[0]
            column = f", column {int(at[1])}" if x.ndim > 1 else ""
            raise TaskError(
                f"{origin}: row {lo + int(at[0])}{column} (from 0) is NaN or infinite; remove or repair such rows"
            )
