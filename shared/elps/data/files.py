"""Finding data files and telling whether two machines hold the same ones."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from elps.contracts.errors import TaskError

DATA_PATH_SETTING = "ELPS_DATA_PATH"

WHOLE_BYTES = 64 * 1024 * 1024
"""Files up to this size are hashed whole: about 0.1 s."""
SAMPLED_BLOCKS = 64
SAMPLED_BLOCK_BYTES = 256 * 1024
"""Larger ones: so many blocks of this size, spread evenly from the first byte to the last."""


def find_file(path: str | None, env: Mapping[str, str], source: str) -> Path:
    """The data file of a document: absolute, or relative to one of the directories of
    ``ELPS_DATA_PATH``.
    """
    if not path:
        raise TaskError(f"data source {source!r} reads a file; give data.path")
    if "\0" in path:
        raise TaskError("data.path holds a zero byte")
    directories = [Path(part) for part in env.get(DATA_PATH_SETTING, "").split(os.pathsep) if part]
    if Path(path).is_absolute():
        tried = [Path(path)]
    elif directories:
        tried = [directory / path for directory in directories]
    else:
        raise TaskError(
            f"data file {path!r} is relative, and {DATA_PATH_SETTING} of the worker is empty; "
            "give an absolute path, or have the operator of the workers set it"
        )
    for candidate in tried:
        if candidate.is_file():
            if not os.access(candidate, os.R_OK):
                raise TaskError(
                    f"data file {candidate} may not be read by this worker; change its permissions"
                )
            return candidate
    found = [f"{c} is no file" for c in tried if c.exists()] or [
        f"looked for {', '.join(map(str, tried))}"
    ]
    raise TaskError(
        f"data file {path!r} is not there ({'; '.join(found)}); every worker's host needs it"
    )


def file_fingerprint(path: Path) -> str:
    """sha256 over the content of a file up to 64 MiB; over its size and 64 blocks of 256 KiB of a
    larger one.

    So a change in a large file that touches none of those blocks and keeps the size is not seen.
    """
    stat = path.stat()
    return _fingerprint(path, stat.st_size, stat.st_mtime_ns)


@functools.lru_cache(maxsize=32)
def _fingerprint(path: Path, size: int, _changed_ns: int) -> str:
    digest = hashlib.sha256(f"{size}\n".encode())
    with path.open("rb") as file:
        if size <= WHOLE_BYTES:
            while block := file.read(1024 * 1024):
                digest.update(block)
        else:
            for k in range(SAMPLED_BLOCKS):
                file.seek((size - SAMPLED_BLOCK_BYTES) * k // (SAMPLED_BLOCKS - 1))
                digest.update(file.read(SAMPLED_BLOCK_BYTES))
    return digest.hexdigest()
