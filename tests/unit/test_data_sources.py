"""The other built-in sources, scaling, paths and fingerprints."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elps.contracts.errors import TaskError
from elps.contracts.job import Data
from elps.data import dataset, files, opening
from elps.data.bundled import BUNDLED, load_by_scikit_learn, open_bundled
from elps.data.files import file_fingerprint
from elps.data.fingerprint import dataset_fingerprint
from elps.data.opening import open_data


def everything(part: Any) -> Any:
    return part.get(np.arange(len(part), dtype=np.int64))


def saved(folder: Path, **arrays: Any) -> dict[str, str]:
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array, allow_pickle=True)
    return {"ELPS_DATA_PATH": str(folder)}


@pytest.mark.parametrize("name", BUNDLED)
def test_bundled_data_read_directly_equal_what_scikit_learn_loads(name: str) -> None:
    x, y = load_by_scikit_learn(name)
    source = open_bundled(name)
    np.testing.assert_allclose(source.x, x, rtol=1e-14, atol=1e-16)
    np.testing.assert_array_equal(source.y, y)
    assert source.y.dtype.kind == ("f" if name == "diabetes" else "i")


def test_bundled_data_come_from_scikit_learn_when_its_files_moved(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    direct = open_bundled("digits")
    monkeypatch.setattr("elps.data.bundled._folder", lambda: tmp_path)
    assert open_bundled("digits").fingerprint == direct.fingerprint


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_batches_are_fresh_and_of_the_jobs_dtype(dtype: str) -> None:
    train = open_data(Data(source="digits"), {}, dtype).train
    index = np.array([3, 3, 1], dtype=np.int64)
    x, y = train.get(index)
    assert (x.dtype, x.shape, y.dtype, x.flags.c_contiguous) == (
        np.dtype(dtype),
        (3, 64),
        np.int64,
        True,
    )
    x[...] = -1
    y[...] = -1
    assert (train.get(index)[0] >= 0).all()
    assert (train.get(index)[1] >= 0).all()


def test_npy_features_are_mapped_and_targets_come_from_a_second_file(tmp_path: Path) -> None:
    env = saved(tmp_path, x=np.arange(12.0).reshape(4, 3), y=np.array([0.5, 1, 2, 3]))
    train = open_data(Data(source="npy", path="x.npy", args={"y": "y.npy"}), env, "float32").train
    assert isinstance(train.x.base, np.memmap)
    x, y = train.get(np.array([2, 0], dtype=np.int64))
    assert (x.tolist(), y.tolist(), y.dtype) == ([[6, 7, 8], [0, 1, 2]], [2, 0.5], np.float32)


def test_npy_targets_may_be_a_column(tmp_path: Path) -> None:
    env = saved(tmp_path, x=np.array([[1, 2, 7], [3, 4, 8]]))
    train = open_data(
        Data(source="npy", path="x.npy", args={"label_column": -1}), env, "float64"
    ).train
    x, y = everything(train)
    assert (x.tolist(), y.tolist()) == ([[1, 2], [3, 4]], [7, 8])


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize(
    "stored",
    [
        np.arange(6.0).reshape(2, 3),
        np.asfortranarray(np.arange(6).reshape(2, 3)),
        np.arange(6).reshape(2, 3).astype(">f4"),
        np.arange(6).reshape(2, 3).astype("u1"),
    ],
)
def test_npz_members_are_mapped_or_unpacked_and_read_the_same(
    stored: Any, compressed: bool, tmp_path: Path
) -> None:
    (np.savez_compressed if compressed else np.savez)(
        tmp_path / "d.npz", features=stored, y=np.array([1, 0])
    )
    data = Data(source="npz", path=str(tmp_path / "d.npz"), args={"x": "features"})
    train = open_data(data, {}, "float32").train
    assert isinstance(train.x.base, np.memmap) != compressed
    x, y = everything(train)
    assert (x.tolist(), y.tolist(), x.dtype) == ([[0, 1, 2], [3, 4, 5]], [1, 0], np.float32)


@pytest.mark.parametrize(
    ("arrays", "args", "said"),
    [
        (
            {"x": np.ones((3, 2)), "y": np.ones(2)},
            {"y": "y.npy"},
            "3 rows of features but 2 targets",
        ),
        ({"x": np.ones((0, 2)), "y": np.ones(0)}, {"y": "y.npy"}, "there is no sample in it"),
        ({"x": np.ones((2, 0)), "y": np.ones(2)}, {"y": "y.npy"}, "samples have no features"),
        ({"x": np.ones(()), "y": np.ones(2)}, {"y": "y.npy"}, "the features are a single number"),
        (
            {"x": np.array([[1], [np.nan]]), "y": np.ones(2)},
            {"y": "y.npy"},
            "row 1, column 0 .from 0. is NaN or infinite",
        ),
        (
            {"x": np.ones((2, 1)), "y": np.array([0, np.inf])},
            {"y": "y.npy"},
            "the target of row 1 is NaN or infinite",
        ),
        ({"x": np.array([["a"]]), "y": np.ones(1)}, {"y": "y.npy"}, "the features are of <U1"),
        ({"x": np.array([[{}]]), "y": np.ones(1)}, {"y": "y.npy"}, "is no npy file of numbers"),
        (
            {"x": np.ones((2, 2))},
            {},
            "either args.y, the file of the targets, or args.label_column",
        ),
        ({"x": np.ones((2, 2))}, {"label_column": 2}, "no label_column 2"),
        ({"x": np.ones((2, 2))}, {"label_column": 0, "colour": 1}, "args: colour is unknown"),
        (
            {"x": np.ones((2, 2))},
            {"label_column": "0"},
            "label_column is '0', expected a whole number",
        ),
        ({"x": np.ones((2, 2))}, {"y": "z.npy"}, "data file 'z.npy' is not there"),
    ],
)
def test_arrays_that_cannot_be_trained_on_are_named(
    arrays: Any, args: Any, said: str, tmp_path: Path
) -> None:
    env = saved(tmp_path, **arrays)
    with pytest.raises(TaskError, match=said):
        open_data(Data(source="npy", path="x.npy", args=args), env, "float32")


def test_files_that_are_no_arrays_are_named(tmp_path: Path) -> None:
    (tmp_path / "empty.npy").touch()
    (tmp_path / "text.npz").write_text("hello")
    np.savez(tmp_path / "other.npz", a=np.ones(2))
    for source, path, said in (
        ("npy", "empty.npy", "empty.npy is empty"),
        ("npz", "text.npz", "text.npz is no npz file"),
        ("npz", "other.npz", "has no array 'x'; it holds a. Name it in data.args"),
    ):
        with pytest.raises(TaskError, match=said):
            open_data(
                Data(source=source, path=path, args={"y": "y"}),
                {"ELPS_DATA_PATH": str(tmp_path)},
                "float32",
            )


def test_large_features_are_looked_through_batch_by_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "WATCHED_ELEMENTS", 4)
    monkeypatch.setattr("elps.data.source.WATCHED_ELEMENTS", 4)
    env = saved(tmp_path, x=np.array([[1.0, 2], [3, np.nan], [5, 6]]), y=np.arange(3))
    train = open_data(Data(source="npy", path="x.npy", args={"y": "y.npy"}), env, "float32").train
    train.get(np.array([0, 2], dtype=np.int64))
    with pytest.raises(TaskError, match="row 1 has NaN or infinity"):
        train.get(np.array([2, 1], dtype=np.int64))


def test_unknown_sources_and_superfluous_paths_are_refused() -> None:
    with pytest.raises(
        TaskError,
        match="'iris' is unknown; expected digits, breast_cancer, diabetes, libsvm, npy, npz",
    ):
        open_data(Data(source="iris"), {}, "float32")
    with pytest.raises(TaskError, match=r"reads no file; leave data\.path out"):
        open_data(Data(source="digits", path="x"), {}, "float32")


# --- scaling ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", ["standard", "minmax"])
def test_scaling_is_fitted_on_the_training_part_alone(scale: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    x = np.c_[rng.normal(1e3, 5, 200), rng.uniform(-1, 1, 200), np.full(200, 0.1)]
    env = saved(tmp_path, x=x, y=np.arange(200) % 2)
    data = Data(source="npy", path="x.npy", args={"y": "y.npy"}, test_fraction=0.25, scale=scale)  # type: ignore[arg-type]
    opened = open_data(data, env, "float64")
    assert opened.test is not None
    train, test = everything(opened.train)[0], everything(opened.test)[0]
    if scale == "standard":
        np.testing.assert_allclose(train.mean(axis=0), 0, atol=1e-10)
        np.testing.assert_allclose(train.std(axis=0), [1, 1, 0], atol=1e-10)
    else:
        np.testing.assert_allclose(train.min(axis=0), 0, atol=1e-12)
        np.testing.assert_allclose(train.max(axis=0), [1, 1, 0], atol=1e-12)
    assert abs(test[:, 0].mean()) > 1e-6  # the test part took no part in the fit
    assert not test[:, 2].any()


# --- files ------------------------------------------------------------------------------------------------------------


def test_files_are_looked_for_in_each_folder_of_the_path(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "f").write_text("x")
    env = {"ELPS_DATA_PATH": f"{tmp_path / 'a'}{os.pathsep}{tmp_path / 'b'}"}
    assert files.find_file("f", env, "npy") == tmp_path / "b" / "f"
    assert files.find_file(str(tmp_path / "b" / "f"), {}, "npy") == tmp_path / "b" / "f"


@pytest.mark.parametrize(
    ("path", "env", "said"),
    [
        (None, {}, "reads a file; give data.path"),
        ("f", {}, "ELPS_DATA_PATH of the worker is empty"),
        (
            "f",
            {"ELPS_DATA_PATH": "/nowhere"},
            "looked for /nowhere/f.*every worker's host needs it",
        ),
        ("/", {}, "/ is no file"),
        ("a\0b", {}, "zero byte"),
    ],
)
def test_a_file_that_is_not_there_is_named_with_where_it_was_sought(
    path: Any, env: Any, said: str
) -> None:
    with pytest.raises(TaskError, match=said):
        files.find_file(path, env, "npy")


def test_fingerprints_follow_the_content_and_not_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = bytes(range(256)) * 64
    for name, content in (("a", body), ("b", body), ("c", body[:-1] + b"!"), ("d", body + b"!")):
        (tmp_path / name).write_bytes(content)
    for whole_bytes in (files.WHOLE_BYTES, 100):  # hashed whole, and by blocks
        monkeypatch.setattr(files, "WHOLE_BYTES", whole_bytes)
        monkeypatch.setattr(files, "SAMPLED_BLOCK_BYTES", 16)
        files._fingerprint.cache_clear()
        prints = [file_fingerprint(tmp_path / name) for name in "abcd"]
        assert prints[0] == prints[1]
        assert len(set(prints)) == 3
    files._fingerprint.cache_clear()


def test_a_foreign_data_set_is_fingerprinted_by_looking_at_it() -> None:
    class Foreign:
        def __init__(self, shift: float) -> None:
            self.shift = shift

        def __len__(self) -> int:
            return 1000

        def get(self, indices: Any) -> Any:
            return {"x": [indices + self.shift, ("a", 1, None)], "other": object()}

    assert dataset_fingerprint(Foreign(0)) == dataset_fingerprint(Foreign(0))
    assert dataset_fingerprint(Foreign(0)) != dataset_fingerprint(Foreign(1))

    class Named(Foreign):
        fingerprint = "v1"

    assert dataset_fingerprint(Named(0)) == "v1"


def test_a_subset_fetches_its_rows() -> None:
    train = open_data(Data(source="diabetes"), {}, "float64").train
    part = dataset.Subset(train, np.array([5, 2, 9], dtype=np.int64))
    np.testing.assert_array_equal(
        part.get(np.array([1, 0], dtype=np.int64))[0], train.get(np.array([2, 5]))[0]
    )
    assert len(part) == 3
