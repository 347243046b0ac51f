"""Code that a job may name: ``module:Name`` out of the directories or packages that the operator of
the workers allowed.

A job document comes from the network, so its words must not reach any other code. A module is
looked up without running anything and imported only if it lies in an allowed place; the object must
have been *defined* in such a place too, since ``my_task:Popen`` would otherwise reach whatever
my_task imports.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.machinery
import importlib.metadata
import importlib.util
import os
import re
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elps.contracts.errors import TaskError
from elps.data.failing import UserCode

TASK_PATH_SETTING = "ELPS_TASK_PATH"
ENTRY_POINT_GROUP = "elps.tasks"

_WORD = r"[^\W\d]\w*"
_PATHS = threading.Lock()
"""What is found where is known in one table for the process, which two threads may not clear at once."""
_REFERENCE = re.compile(rf"({_WORD}(?:\.{_WORD})*):({_WORD})")


@dataclass(frozen=True)
class Code:
    """An allowed object and where it came from."""

    reference: str
    value: Any
    source_hash: str
    """sha256 over the source of its module, or of its whole top-level package when it lies in
    one.
    """


def load(reference: str, env: Mapping[str, str], what: str) -> Code:
    """The object that ``module:Name``, or the name of an entry point, stands for.

    Raises `TaskError` when the reference is malformed, refused (with what to do to allow it), not
    there, or when its module fails to import (with the cause). Appends the allowed directories to
    `sys.path`: last, so that they never hide an installed module.
    """
    registered = _entry_points()
    target = registered.get(reference, reference)
    match = _REFERENCE.fullmatch(target)
    if match is None:
        known = "".join(f", {name}" for name in registered)
        raise TaskError(
            f"{what} {reference!r} is neither built in nor module:Name{known and '; registered:' + known[1:]}"
        )
    module_name, attribute = match.groups()
    directories = task_directories(env)
    packages = frozenset(value.partition(":")[0].partition(".")[0] for value in registered.values())
    file = _file_in(module_name, directories)
    if file is None and module_name.partition(".")[0] not in packages:
        raise TaskError(_refusal(what, reference, module_name, directories))
    with _PATHS:
        sys.path.extend(d for d in map(str, directories) if d not in sys.path)
        importlib.invalidate_caches()
    if file is not None:
        _refuse_hidden(module_name, directories, what, reference)
    with UserCode(f"{what} {reference!r}: importing {module_name}"):
        module = importlib.import_module(module_name)
    try:
        value = getattr(module, attribute)
    except AttributeError:
        raise TaskError(f"{what} {reference!r}: module {module_name} has no {attribute}") from None
    home = getattr(value, "__module__", None)
    if (
        not callable(value)
        or not isinstance(home, str)
        or not _allowed(home, directories, packages)
    ):
        raise TaskError(
            f"{what} {reference!r}: {attribute} is not a class or function defined in an allowed place; "
            f"define it in {module_name} itself"
        )
    return Code(reference, value, source_hash(module_name))


def task_directories(env: Mapping[str, str]) -> list[Path]:
    """The directories of ``ELPS_TASK_PATH``, absolute."""
    return [
        Path(part).resolve() for part in env.get(TASK_PATH_SETTING, "").split(os.pathsep) if part
    ]


def source_hash(module_name: str) -> str:
    """sha256 over the source of an imported module, or over all sources of its top-level package if
    it lies in one.
    """
    module = sys.modules[module_name]
    root = sys.modules[module_name.partition(".")[0]]
    files: list[Path] = []
    for folder in getattr(root, "__path__", ()):
        files += sorted(Path(folder).rglob("*.py"))
    if not files and getattr(module, "__file__", None):
        files = [Path(str(module.__file__))]
    return _hash_files(tuple(files), tuple(f.stat().st_mtime_ns for f in files))


@functools.lru_cache(maxsize=32)
def _hash_files(files: tuple[Path, ...], _changed_ns: tuple[int, ...]) -> str:
    digest = hashlib.sha256()
    for file in files:
        body = file.read_bytes()
        digest.update(f"{file.name} {len(body)}\n".encode())
        digest.update(body)
    return digest.hexdigest()


def _entry_points() -> dict[str, str]:
    return {e.name: e.value for e in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP)}


def _file_in(module_name: str, directories: list[Path]) -> Path | None:
    """The file of a module in the allowed directories, found without running any code."""
    where: list[str] = [str(d) for d in directories]
    spec = None
    for at, _ in enumerate(parts := module_name.split(".")):
        spec = (
            importlib.machinery.PathFinder.find_spec(".".join(parts[: at + 1]), where)
            if where
            else None
        )
        if spec is None:
            return None
        where = list(spec.submodule_search_locations or ())
    return Path(spec.origin).resolve() if spec is not None and spec.origin else None


def _refuse_hidden(module_name: str, directories: list[Path], what: str, reference: str) -> None:
    """Refuse a module whose top-level name an installed or already imported one bears: import would
    give that one.
    """
    top = module_name.partition(".")[0]
    loaded = sys.modules.get(top)
    spec = (
        getattr(loaded, "__spec__", None) if loaded is not None else importlib.util.find_spec(top)
    )
    if spec is None or not _places(spec, directories):
        place = getattr(spec, "origin", None) or "the interpreter"
        raise TaskError(
            f"{what} {reference!r}: the name {top} already belongs to a module of {place}; "
            f"rename the file in {os.pathsep.join(map(str, directories))}"
        )


def _places(spec: Any, directories: list[Path]) -> bool:
    places = (
        [spec.origin]
        if spec.origin and spec.has_location
        else list(spec.submodule_search_locations or ())
    )
    return bool(places) and all(
        any(
            Path(place).resolve().is_relative_to(directory) or Path(place).is_relative_to(directory)
            for directory in directories
        )
        for place in places
    )


def _allowed(module_name: str, directories: list[Path], packages: frozenset[str]) -> bool:
    top = module_name.partition(".")[0]
    module = sys.modules.get(module_name)
    spec = getattr(module, "__spec__", None)
    return top in packages or (spec is not None and _places(spec, directories))


def _refusal(what: str, reference: str, module_name: str, directories: list[Path]) -> str:
    if directories:
        missing = [str(d) for d in directories if not d.is_dir()]
        looked = ", ".join(map(str, directories)) + (
            f" (not there: {', '.join(missing)})" if missing else ""
        )
    else:
        looked = f"no directory, {TASK_PATH_SETTING} is empty"
    return (
        f"{what} {reference!r} is refused: there is no module {module_name} where jobs may take code from ({looked}). "
        f"To allow it, the operator of the workers puts its directory into {TASK_PATH_SETTING} "
        f"(on this machine's stack: make down, then {TASK_PATH_SETTING}=/its/directory make up), "
        f"or installs a package that registers it under the entry point group {ENTRY_POINT_GROUP}"
    )
