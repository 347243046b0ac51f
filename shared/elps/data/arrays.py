"""Arrays in npy and npz files, mapped into memory where the file allows it."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elps.contracts.errors import TaskError
from elps.contracts.job import Data
from elps.data.files import file_fingerprint, find_file
from elps.data.source import Source, check_args, check_dense

_LOCAL_HEADER = struct.Struct("<4s22xHH")
"""Start of a member in a zip file: its mark, then the lengths of its name and of its extra
field.
"""


def open_npy(data: Data, env: Mapping[str, str]) -> Source:
    """``path``: features, mapped. ``args.y``: file of the targets; or ``args.label_column``: the
    column that holds them.
    """
    check_args(data.args, "npy", {"y": str, "label_column": int, "relabel": bool})
    if ("y" in data.args) == ("label_column" in data.args):
        raise TaskError(
            "data source 'npy': give either args.y, the file of the targets, or args.label_column"
        )
    path = find_file(data.path, env, "npy")
    x = _map_npy(path)
    fingerprint = file_fingerprint(path)
    if "y" in data.args:
        y_path = find_file(data.args["y"], env, "npy")
        y = _map_npy(y_path)
        fingerprint += file_fingerprint(y_path)
    else:
        column = data.args["label_column"]
        if x.ndim != 2 or not -x.shape[1] <= column < x.shape[1] or x.shape[1] < 2:
            raise TaskError(
                f"{path}: no label_column {column} beside features in an array of shape {x.shape}"
            )
        y = np.ascontiguousarray(x[:, column])
        x = np.delete(x, column, axis=1)
    check_dense(x, y, str(path))
    return Source(x, y, str(path), fingerprint)


def open_npz(data: Data, env: Mapping[str, str]) -> Source:
    """``args.x``, ``args.y``: names of features and targets in the file at ``path``, default ``x``
    and ``y``.

    Members written by `numpy.savez` are mapped; those of `numpy.savez_compressed` are unpacked into
    memory.
    """
    check_args(data.args, "npz", {"x": str, "y": str, "relabel": bool})
    path = find_file(data.path, env, "npz")
    try:
        with zipfile.ZipFile(path) as archive:
            x, y = (_member(path, archive, data.args.get(name, name)) for name in ("x", "y"))
    except (zipfile.BadZipFile, OSError) as error:
        raise TaskError(f"{path} is no npz file: {error}; write it with numpy.savez") from error
    check_dense(x, y, str(path))
    return Source(x, y, str(path), file_fingerprint(path))


def _map_npy(path: Path) -> NDArray[Any]:
    if path.stat().st_size == 0:
        raise TaskError(f"{path} is empty")
    try:
        array: Any = np.lib.format.open_memmap(path, mode="r")
    except (ValueError, OSError, EOFError) as error:
        raise TaskError(
            f"{path} is no npy file of numbers: {error}; write it with numpy.save"
        ) from error
    return np.asarray(array)


def _member(path: Path, archive: zipfile.ZipFile, name: str) -> NDArray[Any]:
    try:
        info = archive.getinfo(f"{name}.npy")
    except KeyError:
        names = ", ".join(n.removesuffix(".npy") for n in archive.namelist()[:20]) or "nothing"
        raise TaskError(
            f"{path} has no array {name!r}; it holds {names}. Name it in data.args"
        ) from None
    try:
        if info.compress_type == zipfile.ZIP_STORED:
            return _map_member(path, info.header_offset)
        with archive.open(info) as member:
            return np.asarray(np.lib.format.read_array(member, allow_pickle=False))
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise TaskError(f"{path}: array {name!r} cannot be read: {error}") from error


def _map_member(path: Path, offset: int) -> NDArray[Any]:
    with path.open("rb") as file:
        file.seek(offset)
        mark, name_bytes, extra_bytes = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
        if mark != b"PK\x03\x04":
            raise ValueError("the zip file is damaged")
        file.seek(name_bytes + extra_bytes, 1)
        version = np.lib.format.read_magic(file)
        read_header: Any = (
            np.lib.format.read_array_header_1_0
            if version == (1, 0)
            else np.lib.format.read_array_header_2_0
        )
        shape, fortran, dtype = read_header(file)
        if dtype.hasobject:
            raise ValueError("it holds Python objects")
        if 0 in shape:
            return np.empty(shape, dtype)
        mapped = np.memmap(path, dtype, "r", file.tell(), shape, "F" if fortran else "C")
    return np.asarray(mapped)
