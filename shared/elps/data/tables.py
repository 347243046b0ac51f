"""Tables with one sample a row, features and target in named columns: CSV, and Parquet by pyarrow."""

from __future__ import annotations

import csv
import importlib
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from elps.contracts.errors import TaskError
from elps.contracts.job import Data
from elps.data.files import file_fingerprint, find_file
from elps.data.source import Source, check_args, check_dense

Known = dict[str, type | tuple[type, ...]]

_SHOWN_COLUMNS = 20


def open_csv(data: Data, env: Mapping[str, str]) -> Source:
    """A text file in UTF-8, one sample a line; fields may stand in double quotes.

    args: ``label_column``, name or number from 0 of the target (default: the last one); ``drop``,
    columns that are no features; ``delimiter`` (default ","); ``header``, whether the first line
    names the columns (default: if nothing in it is a number; where some of it is, it must be said).
    """
    known: Known = {"label_column": (str, int), "drop": list, "relabel": bool}
    check_args(data.args, "csv", {**known, "delimiter": str, "header": bool})
    path, delimiter = find_file(data.path, env, "csv"), data.args.get("delimiter", ",")
    if len(delimiter) != 1 or delimiter in '"\r\n':
        raise TaskError(
            f"data source 'csv': args.delimiter is {delimiter!r:.20}, expected one character"
        )
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            first = next((row for row in csv.reader(file, delimiter=delimiter) if row), None)
            if first is None:
                raise TaskError(f"{path}: there is no sample in it")
            said = data.args.get("header")
            named = _looks_like_names(first, path) if said is None else said
            if named and not any(csv.reader(file, delimiter=delimiter)):
                raise TaskError(f"{path}: there is no sample in it")
            names = [c.strip() for c in first] if named else list(map(str, range(len(first))))
            label, features = _choose(names, data, str(path))
            start = 1 if named else 0
            _check_lengths(path, delimiter, start, names)
            x = _numbers(path, delimiter, start, features)
            y = _numbers(path, delimiter, start, [label])
            if x is None:
                raise TaskError(_first_fault(path, delimiter, start, names, features))
            if y is None:
                y = _labels(_texts(path, delimiter, start, names, label), data, str(path))
            else:
                y = y[:, 0]
    except (UnicodeDecodeError, csv.Error) as error:
        raise TaskError(f"{path} is no CSV file in UTF-8: {error}") from error
    y = _whole(y)
    check_dense(x, y, str(path))
    return Source(x, y, str(path), file_fingerprint(path))


def open_parquet(data: Data, env: Mapping[str, str]) -> Source:
    """A Parquet file, read by pyarrow. args: ``label_column`` and ``drop``, as for CSV."""
    check_args(data.args, "parquet", {"label_column": (str, int), "drop": list, "relabel": bool})
    path = find_file(data.path, env, "parquet")
    try:
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise TaskError(
            "data source 'parquet' needs pyarrow on the worker's host: pip install 'elps[parquet]'"
        ) from error
    try:
        table = parquet.read_table(path, use_threads=False)
    except (OSError, ValueError) as error:  # those of pyarrow are both
        raise TaskError(f"{path} is no Parquet file that can be read: {error}") from error
    names = [str(name) for name in table.column_names]
    if not names:
        raise TaskError(f"{path}: there is no column in it")
    label, features = _choose(names, data, str(path))
    x = np.empty((table.num_rows, len(features)), np.float64)
    for at, column in enumerate(features):
        values = _column(table, column, names, str(path))
        if values.dtype.kind not in "fiub":
            raise TaskError(
                f"{path}: column {names[column]!r} is of {table.schema.field(column).type}, features are numbers; "
                "leave it out by data.args.drop, or store it as numbers"
            )
        x[:, at] = values
    y = _column(table, label, names, str(path))
    y = _labels(y, data, str(path)) if y.dtype.kind not in "fiub" else y
    check_dense(x, _whole(y), str(path))
    return Source(x, _whole(y), str(path), file_fingerprint(path))


def _looks_like_names(first: Sequence[str], path: Path) -> bool:
    """Whether the first line names the columns; where some of it are numbers, only the user knows."""
    numbers = sum(map(_is_number, first))
    if 0 < numbers < len(first):
        raise TaskError(
            f"{path}: its first line has {numbers} numbers and {len(first) - numbers} other fields; "
            "say by data.args.header = true or false whether it names the columns"
        )
    return numbers == 0


def _check_lengths(path: Path, delimiter: str, start: int, names: Sequence[str]) -> None:
    """The reader of numbers takes the fields that it wants and does not count the others."""
    for line, row in _table_rows(path, delimiter, start):
        if len(row) != len(names):
            raise TaskError(_wrong_length(line, row, names, delimiter))


def _choose(names: Sequence[str], data: Data, origin: str) -> tuple[int, list[int]]:
    """The column of the target, and those of the features."""
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise TaskError(f"{origin}: two columns are named {twice!r}; rename one")
    label = _find(names, data.args.get("label_column", len(names) - 1), "label_column", origin)
    drop = {_find(names, column, "drop", origin) for column in data.args.get("drop", [])}
    features = [n for n in range(len(names)) if n != label and n not in drop]
    if not features or label in drop:
        raise TaskError(f"{origin}: no features are left beside target {names[label]!r}")
    return label, features


def _find(names: Sequence[str], column: object, argument: str, origin: str) -> int:
    if isinstance(column, str) and column in names:
        return names.index(column)
    if type(column) is int and 0 <= column < len(names):
        return column
    shown = ", ".join(map(repr, names[:_SHOWN_COLUMNS])) + (
        ", …" if len(names) > _SHOWN_COLUMNS else ""
    )
    raise TaskError(f"{origin} has no column {column!r:.80} (data.args.{argument}); it has {shown}")


def _rows(file: TextIO, start: int) -> Any:
    """The file after its header; blank lines before that are no lines."""
    left = start
    while left and (line := file.readline()):
        left -= bool(line.strip())
    return file


def _numbers(
    path: Path, delimiter: str, start: int, columns: Sequence[int]
) -> NDArray[np.float64] | None:
    """Some columns as numbers, shape (rows, columns); None when that cannot be."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        try:
            return np.loadtxt(
                _rows(file, start),
                np.float64,
                comments=None,
                delimiter=delimiter,
                quotechar='"',
                usecols=columns,
                ndmin=2,
            )
        except UnicodeDecodeError:
            raise
        except ValueError:
            return None


def _texts(
    path: Path, delimiter: str, start: int, names: Sequence[str], column: int
) -> NDArray[Any]:
    """One column as texts."""
    texts = []
    for line, row in _table_rows(path, delimiter, start):
        if len(row) != len(names):
            raise TaskError(_wrong_length(line, row, names, delimiter))
        if not row[column].strip():
            raise TaskError(f"{line}: the target is missing; remove such lines")
        texts.append(row[column].strip())
    return np.array(texts)


def _table_rows(path: Path, delimiter: str, start: int) -> Iterator[tuple[str, list[str]]]:
    """Where each row stands, for messages, and its fields; without the header and blank lines."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader, seen = csv.reader(file, delimiter=delimiter), 0
        for row in reader:
            seen += bool(row)
            if row and seen > start:
                yield f"{path}, line {reader.line_num}", row


def _wrong_length(line: str, row: Sequence[str], names: Sequence[str], delimiter: str) -> str:
    return f"{line}: {len(row)} fields, expected {len(names)}; separated by {delimiter!r}?"


def _first_fault(
    path: Path, delimiter: str, start: int, names: Sequence[str], columns: Sequence[int]
) -> str:
    """Why the features cannot be read, without showing what stands there: the file may be none that the job's owner
    may read.
    """
    for line, row in _table_rows(path, delimiter, start):
        if len(row) != len(names):
            return _wrong_length(line, row, names, delimiter)
        for n in columns:
            if not _is_number(row[n]):
                problem = "is no number" if row[n].strip() else "is empty"
                return (
                    f"{line}: column {names[n]!r} {problem}; repair or remove such lines, "
                    "or leave the column out by data.args.drop"
                )
    return f"{path} cannot be read as a table of numbers; is it separated by {delimiter!r}?"


def _column(table: Any, number: int, names: Sequence[str], origin: str) -> NDArray[Any]:
    column = table.column(number)
    if column.null_count:
        raise TaskError(
            f"{origin}: column {names[number]!r} has {column.null_count} missing values; remove or fill such rows"
        )
    values = np.asarray(column.to_numpy())
    whole = values.dtype.kind == "O" and all(isinstance(value, str) for value in values)
    return values.astype(str) if whole else values


def _labels(values: NDArray[Any], data: Data, origin: str) -> NDArray[Any]:
    """Targets that are texts, which only classes may be."""
    if values.dtype.kind != "U":
        raise TaskError(f"{origin}: the target is of {values.dtype}; expected numbers or texts")
    if not data.args.get("relabel"):
        raise TaskError(
            f"{origin}: the target is no number in every row; to number classes from 0 in the order of their names, "
            "set data.args.relabel = true"
        )
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


def _whole(y: NDArray[Any]) -> NDArray[Any]:
    """Whole numbers as such."""
    if y.dtype.kind == "f" and bool(np.all((np.mod(y, 1) == 0) & (np.abs(y) < 2**53))):
        return y.astype(np.int64)
    return y


def _is_number(text: str) -> bool:
    try:
        return not math.isnan(float(text)) or text.strip().lower() in ("nan", "-nan", "+nan")
    except ValueError:
        return False
