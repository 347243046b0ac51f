"""Where the agents of a stack take the code and the data of jobs from.

What ELPS_TASK_PATH and ELPS_DATA_PATH said is kept in the record: a job of a user's own task goes on after `make down`
and `make up` from any terminal.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from elps.contracts.errors import SetupError
from elps.local.record import StackRecord

TASK_PATH, DATA_PATH = "ELPS_TASK_PATH", "ELPS_DATA_PATH"


def choose_paths(record: StackRecord, env: Mapping[str, str], *, cwd: Path, running: bool) -> None:
    """Keep the paths that the environment names; one that is set and empty is forgotten, one that is not set stays.

    Agents that run know the paths they were started with, so `running` ones are not given others: `SetupError`.
    """
    for variable in (TASK_PATH, DATA_PATH):
        if (said := env.get(variable)) is None:
            continue
        wanted, kept = _absolute(said, cwd), record.paths.get(variable, "")
        if wanted == kept:
            continue
        if running:
            raise SetupError(
                f"{variable} is {said!r}, but the agents of the running stack were started with {kept!r}: "
                "'make down' first (jobs are checkpointed and go on after the next 'make up', by which their code and "
                "data must be found too), or unset it to keep what they have"
            )
        record.paths = {name: path for name, path in record.paths.items() if name != variable}
        if wanted:
            record.paths[variable] = wanted


def paths_in_force(record: StackRecord, home: Path) -> dict[str, str]:
    """By variable, what agents are told: the paths kept and, for code, `examples/` of the checkout and its folders."""
    told = dict(record.paths)
    if (examples := home.parent / "examples").is_dir():
        folders = [examples, *sorted(p for p in examples.iterdir() if p.is_dir())]
        own = [told[TASK_PATH]] if TASK_PATH in told else []
        told[TASK_PATH] = os.pathsep.join([*own, *map(str, folders)])
    return told


def _absolute(path: str, cwd: Path) -> str:
    """The same folders wherever the next command is given."""
    return os.pathsep.join(str(cwd / part) for part in path.split(os.pathsep) if part)
