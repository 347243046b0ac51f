"""The libsvm format: one sample a line, ``label index:value index:value … # comment``."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elps.contracts.errors import TaskError
from elps.contracts.job import Data
from elps.data.files import file_fingerprint, find_file
from elps.data.source import Source, check_args, check_lengths

_COMMENT = re.compile(rb"#[^\n]*")
_QUERY = re.compile(rb"(?<=\s)qid:\d+(?=\s|$)")
_LINE = re.compile(rb"[^\s:]+(?:[ \t]+[0-9]{1,18}:[^\s:]+)*")
MAX_FEATURES = 2**31 - 1


@dataclass(frozen=True)
class _Rows:
    path: Path
    labels: NDArray[np.float64]
    starts: NDArray[np.int64]
    """Offsets of the rows in the two below, and their end."""
    indices: NDArray[np.int64]
    values: NDArray[np.float64]
    lines: NDArray[np.int64]
    """Line number of each row, from 1."""


def open_libsvm(data: Data, env: Mapping[str, str], dtype: str) -> Source:
    """A file of the libsvm format as a csr array, and its labels as they stand there, whole numbers
    as int64.

    args: ``test_path``, a second file that is the test part; ``features``, their number (default:
    the largest index seen); ``zero_based``, whether the first feature has index 0 (default: if an
    index 0 occurs). Indices may come in any order, each at most once a line.
    """
    check_args(
        data.args,
        "libsvm",
        {"test_path": str, "features": int, "zero_based": bool, "relabel": bool},
    )
    path = find_file(data.path, env, "libsvm")
    parts = [_read(path)]
    fingerprint = file_fingerprint(path)
    if "test_path" in data.args:
        test_path = find_file(data.args["test_path"], env, "libsvm")
        parts.append(_read(test_path))
        fingerprint += file_fingerprint(test_path)
    smallest = min((int(p.indices.min()) for p in parts if p.indices.size), default=1)
    largest = max((int(p.indices.max()) for p in parts if p.indices.size), default=0)
    first = 0 if data.args.get("zero_based", smallest == 0) else 1
    features = data.args.get("features", largest + 1 - first)
    if not 1 <= features <= MAX_FEATURES:
        raise TaskError(f"{path}: {features} features; expected 1 to {MAX_FEATURES}")
    csr = [_csr(part, first, features, dtype) for part in parts]
    labels = [_labels(part.labels) for part in parts]
    if labels[0].dtype != labels[-1].dtype:
        labels = [part.labels for part in parts]
    test = (csr[1], labels[1]) if len(parts) > 1 else None
    return Source(csr[0], labels[0], str(path), fingerprint, test)


def _read(path: Path) -> _Rows:
    body = path.read_bytes()
    if b"#" in body:
        body = _COMMENT.sub(b"", body)
    if b"qid:" in body:
        body = _QUERY.sub(b"", body)
    lines, counts, tokens = [], [], []
    for number, raw in enumerate(body.splitlines(), 1):
        line = raw.strip()
        if not line:
            continue
        if _LINE.fullmatch(line) is None:
            raise TaskError(
                f"{path}, line {number}: {_fault(line)}; a line is 'label index:value …', as in '1 3:0.5 7:2'"
            )
        fields = line.replace(b":", b" ").split()
        lines.append(number)
        counts.append((len(fields) - 1) // 2)
        tokens += fields
    check_lengths(len(lines), len(lines), str(path))
    starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
    line_of = np.array(lines, dtype=np.int64)
    try:
        numbers = np.array(tokens, dtype=np.float64)
    except ValueError:
        raise TaskError(_first_bad_number(path, tokens, starts, line_of)) from None
    if not np.isfinite(numbers).all():
        raise TaskError(_first_bad_number(path, tokens, starts, line_of))
    is_label = np.zeros(numbers.size, dtype=bool)
    is_label[2 * starts[:-1] + np.arange(line_of.size)] = True
    pairs = numbers[~is_label]
    return _Rows(
        path, numbers[is_label], starts, pairs[0::2].astype(np.int64), pairs[1::2].copy(), line_of
    )


def _fault(line: bytes) -> str:
    """What is wrong with a line, without showing it: the file may be none that the job's owner may
    read.
    """
    for at, field in enumerate(line.split()):
        if at == 0 and b":" in field:
            return "the label is missing"
        if at > 0 and re.fullmatch(rb"[0-9]{1,18}:[^\s:]+", field) is None:
            return f"field {at + 1} is not index:value"
    return "cannot be read"


def _first_bad_number(
    path: Path, tokens: list[bytes], starts: NDArray[np.int64], lines: NDArray[np.int64]
) -> str:
    for at, token in enumerate(tokens):
        try:
            problem = "" if np.isfinite(float(token)) else "NaN or infinite"
        except ValueError:
            problem = "not a number"
        if problem:
            row = (
                int(np.searchsorted(2 * starts[:-1] + np.arange(lines.size), at, side="right")) - 1
            )
            place = at - int(2 * starts[row]) - row
            what = "the label" if place == 0 else f"the value in field {(place + 3) // 2}"
            return (
                f"{path}, line {int(lines[row])}: {what} is {problem}; remove or repair such lines"
            )
    return f"{path}: a number cannot be read"


def _csr(rows: _Rows, first: int, features: int, dtype: str) -> Any:
    columns = rows.indices - first
    row_of = np.repeat(np.arange(rows.labels.size), np.diff(rows.starts))
    outside = (columns < 0) | (columns >= features)
    if outside.any():
        at = int(np.flatnonzero(outside)[0])
        raise TaskError(
            f"{rows.path}, line {int(rows.lines[row_of[at]])}: feature index {int(rows.indices[at])} is outside "
            f"{first} to {features - 1 + first}; set data.args.features (and zero_based) to fit the file"
        )
    order = np.lexsort((columns, row_of))
    columns, values = columns[order], rows.values[order]
    twice = (np.diff(columns) == 0) & (np.diff(row_of) == 0)
    if twice.any():
        at = int(np.flatnonzero(twice)[0])
        raise TaskError(
            f"{rows.path}, line {int(rows.lines[row_of[at]])}: feature index {int(columns[at]) + first} stands twice"
        )
    sparse: Any = importlib.import_module("scipy.sparse")
    with np.errstate(over="ignore"):
        cast = values.astype(dtype)
    if not np.isfinite(cast).all():
        at = int(np.flatnonzero(~np.isfinite(cast))[0])
        raise TaskError(
            f"{rows.path}, line {int(rows.lines[row_of[at]])}: a value is too large for {dtype}"
        )
    index = np.int32 if rows.indices.size < 2**31 else np.int64
    return sparse.csr_array(
        (cast, columns.astype(index), rows.starts.astype(index)), shape=(rows.labels.size, features)
    )


def _labels(labels: NDArray[np.float64]) -> NDArray[Any]:
    whole = bool(np.all((np.mod(labels, 1) == 0) & (np.abs(labels) < 2**53)))
    return labels.astype(np.int64) if whole else labels
