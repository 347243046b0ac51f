"""Reads this machine: folders that the stack uses, and limits."""

from __future__ import annotations

import os
import resource
import shutil
import stat
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path

from elps.doctor.core.readings import FolderReading, MachineReading
from elps.local.find import StackInfo
from elps.local.paths import DATA_PATH, TASK_PATH, paths_in_force
from elps.local.record import FILE, read_record

HOME = "the local stack's data and logs, ELPS_HOME"
LOG_DIR = "ELPS_LOG_DIR"


def read_machine(stack: StackInfo | None, env: Mapping[str, str]) -> MachineReading:
    """What there is to know here; `stack` is the one that was found."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MachineReading(
        version=version("elps"),
        open_files=None if soft == resource.RLIM_INFINITY else soft,
        folders=tuple(_folders(stack, env)),
    )


def _folders(stack: StackInfo | None, env: Mapping[str, str]) -> Iterator[FolderReading]:
    paths = {name: env[name] for name in (TASK_PATH, DATA_PATH) if env.get(name)}
    if stack is not None and stack.home is not None:
        yield _folder(stack.home, HOME, written=True, secret=stack.home / FILE)
        if (record := read_record(stack.home)) is not None:
            paths = paths_in_force(record, stack.home)
    elif named := env.get(LOG_DIR):
        yield _folder(Path(named), f"trainers' logs, {LOG_DIR}", written=True)
    for variable, what in ((TASK_PATH, "code of tasks"), (DATA_PATH, "data of jobs")):
        for path in dict.fromkeys(paths.get(variable, "").split(os.pathsep)):
            if path:
                yield _folder(Path(path).expanduser(), f"{what}, {variable}", written=False)


def _folder(path: Path, what: str, *, written: bool, secret: Path | None = None) -> FolderReading:
    if not path.is_dir():
        return FolderReading(str(path), what, written, there=False)
    wanted = os.R_OK | os.X_OK | (os.W_OK if written else 0)
    try:
        usage = shutil.disk_usage(path)
    except OSError:
        usage = None
    return FolderReading(
        str(path),
        what,
        written,
        usable=os.access(path, wanted),
        free_bytes=usage.free if usage else None,
        total_bytes=usage.total if usage else None,
        open_to_others=secret is not None and _open_to_others(secret),
    )


def _open_to_others(path: Path) -> bool:
    try:
        return bool(path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH))
    except OSError:
        return False
