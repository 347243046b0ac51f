"""Where a checkout keeps what is private to it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

FOLDER = ".elps"
"""Name of the folder in a checkout that holds its stack: data, logs, binaries."""


def elps_home(cwd: Path, env: Mapping[str, str]) -> Path:
    """The folder that commands which start things use: `ELPS_HOME`; else the nearest `.elps` upwards; else here."""
    if named := env.get("ELPS_HOME"):
        return Path(named).absolute()
    for folder in (cwd, *cwd.parents):
        if (folder / FOLDER).is_dir():
            return folder / FOLDER
        if (folder / "pyproject.toml").is_file() and (folder / "shared" / "elps").is_dir():
            return folder / FOLDER
    return cwd / FOLDER
