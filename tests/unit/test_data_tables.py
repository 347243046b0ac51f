"""Tables: CSV, and Parquet where pyarrow is."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elps.contracts.errors import TaskError
from elps.contracts.job import Data
from elps.data.opening import open_data


def opened(folder: Path, text: str | bytes, **args: Any) -> tuple[Any, Any]:
    body = text if isinstance(text, bytes) else text.encode()
    (folder / "t.csv").write_bytes(body)
    data = Data(source="csv", path="t.csv", args=args)
    whole = open_data(data, {"ELPS_DATA_PATH": str(folder)}, "float64").train
    return whole.get(np.arange(len(whole)))


IRIS = (
    "\ufefflength,width,species\r\n5.1,3.5,setosa\r\n\r\n7.0,3.2,versicolor\r\n6.3,3.3,setosa\r\n"
)


def test_a_table_with_a_header_a_mark_blank_lines_and_texts_as_classes(tmp_path: Path) -> None:
    x, y = opened(tmp_path, IRIS, relabel=True)
    assert x.tolist() == [[5.1, 3.5], [7.0, 3.2], [6.3, 3.3]]
    assert y.tolist() == [0, 1, 0]
    assert y.dtype == np.int64


@pytest.mark.parametrize(
    ("text", "args", "x", "y"),
    [
        ("1,2,3\n4,5,6\n", {}, [[1, 2], [4, 5]], [3, 6]),
        ("1,2,3\n4,5,6\n", {"label_column": 0}, [[2, 3], [5, 6]], [1, 4]),
        ("a\tb\n1\t0.5\n", {"delimiter": "\t"}, [[1]], [0.5]),
        ('a,"b, c",d\n1,"2",3\n', {"label_column": "b, c"}, [[1, 3]], [2]),
        ("id,a,y\nx1,1,2\nx2,3,4\n", {"drop": ["id"]}, [[1], [3]], [2, 4]),
        ("1,2\n3,4\n", {"header": True}, [[3]], [4]),
    ],
)
def test_columns_are_found_by_name_or_number(
    tmp_path: Path, text: str, args: dict[str, Any], x: Any, y: Any
) -> None:
    got = opened(tmp_path, text, **args)
    assert (got[0].tolist(), got[1].tolist()) == (x, y)


@pytest.mark.parametrize(
    ("text", "args", "words"),
    [
        ("", {}, "there is no sample in it"),
        ("a,b\n", {}, "there is no sample in it"),
        ("a,b,y\n1,2,3\n1,,3\n", {}, "line 3: column 'b' is empty"),
        ("a,b,y\n1,2,3\n1,two,3\n", {}, "line 3: column 'b' is no number; repair"),
        ("a,b,y\n1,2,3\n1,2\n", {}, "line 3: 2 fields, expected 3"),
        ("a,b,y\n1,5,2,0\n3,4,1\n", {}, "line 2: 4 fields, expected 3"),
        ("note,a,y\nok,1,0\n5,7,2,1\n", {"drop": ["note"]}, "line 3: 4 fields, expected 3"),
        ("5.1,3.5,setosa\n4.9,3.0,setosa\n", {}, "say by data.args.header"),
        ("1,,0\n2,3,1\n", {}, "say by data.args.header"),
        ("1;2,5;3\n", {"delimiter": ";", "header": False}, "line 1: column '1' is no number"),
        ("a,b,y\n1,2,3\n1,nan,3\n", {}, r"row 1, column 1 \(from 0\) is NaN"),
        ("a,y\n1,cat\n", {}, "set data.args.relabel = true"),
        ("a,y\n1,cat\n2,\n", {"relabel": True}, "line 3: the target is missing"),
        ("a,y\n1,2\n", {"label_column": "z"}, r"no column 'z' .*label_column\); it has 'a', 'y'"),
        ("a,y\n1,2\n", {"label_column": 2}, "no column 2"),
        ("a,y\n1,2\n", {"drop": ["a"]}, "no features are left"),
        ("a,a\n1,2\n", {}, "two columns are named 'a'"),
        ("a,y\n1,2\n", {"delimiter": ",,"}, "expected one character"),
        ("a,y\n1,2\n", {"labels": "y"}, "labels is unknown"),
        (b"a,y\n1,\xff\n", {}, "no CSV file in UTF-8"),
    ],
)
def test_what_is_wrong_with_a_table_is_said_with_its_place(
    tmp_path: Path, text: str | bytes, args: dict[str, Any], words: str
) -> None:
    with pytest.raises(TaskError, match=words):
        opened(tmp_path, text, **args)


def test_what_stands_in_a_file_is_not_told(tmp_path: Path) -> None:
    with pytest.raises(TaskError) as caught:
        opened(tmp_path, "a,y\n1,2\nsecret-word,2\n")
    assert "secret-word" not in str(caught.value)


@settings(
    max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(
    rows=st.lists(
        st.lists(st.floats(allow_nan=False, width=32), min_size=3, max_size=3), min_size=1
    )
)
def test_numbers_come_back_as_they_were_written(tmp_path: Path, rows: list[list[float]]) -> None:
    finite = [row for row in rows if np.isfinite(row).all()] or [[1.0, 2.0, 3.0]]
    x, y = opened(
        tmp_path, "\n".join(",".join(map(repr, row)) for row in finite) + "\n", header=False
    )
    assert x.tolist() == [row[:2] for row in finite]
    assert y.tolist() == [row[2] for row in finite]


def test_parquet_without_pyarrow_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    real = importlib.import_module

    def without(name: str) -> Any:
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return real(name)

    monkeypatch.setattr(importlib, "import_module", without)
    data = Data(source="parquet", path=str(tmp_path / "t.parquet"))
    with pytest.raises(TaskError, match=r"pip install 'elps\[parquet\]'"):
        open_data(data, {}, "float32")


def parquet(folder: Path, columns: dict[str, Any], **args: Any) -> tuple[Any, Any]:
    pyarrow: Any = pytest.importorskip("pyarrow", reason="pyarrow is not a dependency")
    pytest.importorskip("pyarrow.parquet").write_table(pyarrow.table(columns), folder / "t.parquet")
    data = Data(source="parquet", path=str(folder / "t.parquet"), args=args)
    whole = open_data(data, {}, "float64").train
    return whole.get(np.arange(len(whole)))


def test_parquet_columns_become_features_and_target(tmp_path: Path) -> None:
    columns = {
        "a": np.array([1, 2, 3], np.int16),
        "id": ["x", "y", "z"],
        "b": np.array([0.5, 1.5, 2.5], np.float32),
        "kind": ["cat", "dog", "cat"],
    }
    x, y = parquet(tmp_path, columns, drop=["id"], relabel=True)
    assert x.tolist() == [[1, 0.5], [2, 1.5], [3, 2.5]]
    assert y.tolist() == [0, 1, 0]
    x, y = parquet(tmp_path, columns, drop=["id", "kind"], label_column="b")
    assert (x.tolist(), y.tolist()) == ([[1], [2], [3]], [0.5, 1.5, 2.5])


@pytest.mark.parametrize(
    ("columns", "args", "words"),
    [
        ({"a": [1.0, None], "y": [1, 2]}, {}, "column 'a' has 1 missing values"),
        ({"a": ["u", "v"], "y": [1, 2]}, {}, "column 'a' is of string, features are numbers"),
        ({"a": [1.0, 2.0], "y": ["u", "v"]}, {}, "set data.args.relabel = true"),
        ({"a": [1.0, float("inf")], "y": [1, 2]}, {}, "row 1, column 0"),
    ],
)
def test_what_is_wrong_with_a_parquet_file_is_said(
    tmp_path: Path, columns: dict[str, Any], args: dict[str, Any], words: str
) -> None:
    with pytest.raises(TaskError, match=words):
        parquet(tmp_path, columns, **args)


def test_a_file_that_is_no_parquet_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not a dependency")
    (tmp_path / "t.parquet").write_bytes(b"no such thing")
    data = Data(source="parquet", path=str(tmp_path / "t.parquet"))
    with pytest.raises(TaskError, match="is no Parquet file"):
        open_data(data, {}, "float32")
