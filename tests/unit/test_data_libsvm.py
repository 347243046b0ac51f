"""Reading the libsvm format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elps.contracts.errors import TaskError
from elps.contracts.job import Data
from elps.data.dataset import Samples
from elps.data.opening import open_data

ALL = slice(None)


def open_text(
    folder: Path, text: str | bytes, dtype: str = "float64", test: str | None = None, **args: Any
) -> Any:
    body = text.encode() if isinstance(text, str) else text
    (folder / "data.libsvm").write_bytes(body)
    if test is not None:
        (folder / "test.libsvm").write_text(test)
        args["test_path"] = "test.libsvm"
    data = Data(source="libsvm", path="data.libsvm", args=args)
    return open_data(data, {"ELPS_DATA_PATH": str(folder)}, dtype)


def dense(part: Samples) -> tuple[Any, Any]:
    x, y = part.get(np.arange(len(part), dtype=np.int64))
    return x.toarray().tolist(), y.tolist()


def test_a_file_is_read_as_it_stands(tmp_path: Path) -> None:
    text = "# a comment\n+1 1:0.5 3:-2e-1\r\n\n-1 qid:7 2:4 # another\n  1   3:1  \n1\n"
    opened = open_text(tmp_path, text)
    assert dense(opened.train) == ([[0.5, 0, -0.2], [0, 4, 0], [0, 0, 1], [0, 0, 0]], [1, -1, 1, 1])
    assert opened.train.get(np.zeros(1, np.int64))[1].dtype == np.int64


def test_batches_are_csr_of_the_jobs_dtype_in_the_order_asked_for(tmp_path: Path) -> None:
    opened = open_text(tmp_path, "1.5 1:1\n2 1:2\n3 1:3\n", "float32")
    x, y = opened.train.get(np.array([2, 0, 2], dtype=np.int64))
    assert x.format == "csr"
    assert (x.dtype, y.dtype) == (np.float32, np.float32)
    assert (x.toarray().ravel().tolist(), y.tolist()) == ([3, 1, 3], [3, 1.5, 3])


def test_indices_from_0_are_recognized_over_both_files(tmp_path: Path) -> None:
    opened = open_text(tmp_path, "1 1:5\n", test="0 0:6\n")
    assert dense(opened.train)[0] == [[0, 5]]
    assert dense(opened.test)[0] == [[6, 0]]
    assert dense(open_text(tmp_path, "1 1:5\n", zero_based=True).train)[0] == [[0, 5]]


def test_the_number_of_features_can_be_given(tmp_path: Path) -> None:
    assert dense(open_text(tmp_path, "1 2:5\n", features=4).train)[0] == [[0, 5, 0, 0]]


def test_indices_out_of_order_are_sorted(tmp_path: Path) -> None:
    opened = open_text(tmp_path, "1 3:3 1:1\n1 2:2\n")
    assert dense(opened.train)[0] == [[1, 0, 3], [0, 2, 0]]
    assert opened.train.x.indices.tolist() == [0, 2, 1]


def test_classes_are_numbered_from_0_on_request_over_both_files(tmp_path: Path) -> None:
    opened = open_text(tmp_path, "3 1:1\n-7 1:1\n", test="10 1:1\n", relabel=True)
    assert (dense(opened.train)[1], dense(opened.test)[1]) == ([1, 0], [2])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1 1:1\n1 x\n", "line 2: field 2 is not index:value"),
        ("1 1:1\n\n1 1:2 3\n", "line 3: field 3 is not index:value"),
        ("1 1:2:3 4\n", "line 1: field 2 is not index:value"),
        ("1 -1:2\n", "line 1: field 2 is not index:value"),
        ("1 1.5:2\n", "line 1: field 2 is not index:value"),
        ("1 99999999999999999999:2\n", "line 1: field 2 is not index:value"),
        ("1:2 3:4\n", "line 1: the label is missing"),
        ("1 1:1\nx 1:1\n", "line 2: the label is not a number"),
        ("1 1:1\n2 1:1 2:x\n", "line 2: the value in field 3 is not a number"),
        ("1 1:1\n2 1:nan\n", "line 2: the value in field 2 is NaN or infinite"),
        ("nan 1:1\n", "line 1: the label is NaN"),
        ("1 1:1 2:inf\n", "line 1: the value in field 3 is NaN or infinite"),
        ("1,2 1:1\n", "line 1: the label is not a number"),
        ("1 2:1 2:1\n", "line 1: feature index 2 stands twice"),
        ("1 1:1e300\n", "line 1: a value is too large for float32"),
        ("", "there is no sample in it"),
        ("# nothing\n\n", "there is no sample in it"),
        (b"\x00\x01\x02\xff", "line 1"),
    ],
)
def test_a_bad_line_is_named_by_file_and_number(
    text: str | bytes, said: str, tmp_path: Path
) -> None:
    with pytest.raises(TaskError, match=f"data.libsvm.*{said}"):
        open_text(tmp_path, text, "float32")


def test_an_index_beyond_the_given_features_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        TaskError, match=r"line 2: feature index 3 is outside 1 to 2; set data.args.features"
    ):
        open_text(tmp_path, "1 2:1\n1 3:1\n", features=2)
    with pytest.raises(TaskError, match=r"feature index 0 is outside 1 to 1"):
        open_text(tmp_path, "1 0:1\n1 1:1\n", zero_based=False)


def test_the_content_of_a_bad_line_is_not_shown(tmp_path: Path) -> None:
    with pytest.raises(TaskError) as caught:
        open_text(tmp_path, "secret:x:1:2\n")
    assert "secret" not in str(caught.value)


def test_a_test_file_and_a_test_fraction_exclude_each_other(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1 1:1\n")
    data = Data(source="libsvm", path="a", args={"test_path": "a"}, test_fraction=0.5)
    with pytest.raises(TaskError, match="not both"):
        open_data(data, {"ELPS_DATA_PATH": str(tmp_path)}, "float32")


def test_scaling_of_sparse_features_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1 1:1\n")
    with pytest.raises(TaskError, match="would fill every zero of the sparse features"):
        open_data(Data(source="libsvm", path=str(tmp_path / "a"), scale="minmax"), {}, "float32")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_file_reads_as_scikit_learn_reads_it(dtype: str, tmp_path: Path) -> None:
    from sklearn.datasets import dump_svmlight_file, load_svmlight_file

    rng = np.random.default_rng(0)
    x = rng.standard_normal((50, 9)) * (rng.random((50, 9)) < 0.4)
    dump_svmlight_file(x, rng.integers(0, 5, 50), str(tmp_path / "s"), zero_based=False)
    expected, labels = load_svmlight_file(str(tmp_path / "s"))
    opened = open_data(Data(source="libsvm", path=str(tmp_path / "s")), {}, dtype)
    got_x, got_y = dense(opened.train)
    np.testing.assert_array_equal(got_x, expected.toarray().astype(dtype))
    assert got_y == labels.tolist()
