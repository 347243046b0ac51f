"""Where a stack takes code and data from, from one `up` to the next."""

from __future__ import annotations

from pathlib import Path

import pytest

from elps.contracts.errors import SetupError
from elps.local.paths import choose_paths
from elps.local.record import StackRecord, new_record

CWD = Path("/work/here")


def told(record: StackRecord, *, running: bool = False, **env: str) -> dict[str, str]:
    choose_paths(record, env, cwd=CWD, running=running)
    return record.paths


def test_paths_are_kept_until_others_are_named() -> None:
    record = new_record()
    assert told(record) == {}
    first = {"ELPS_TASK_PATH": "/tasks:/more", "ELPS_DATA_PATH": "/data"}
    assert told(record, **first) == first
    assert told(record) == first
    assert told(record, ELPS_TASK_PATH="/other") == first | {"ELPS_TASK_PATH": "/other"}


def test_a_path_that_is_set_and_empty_is_forgotten() -> None:
    record = new_record()
    told(record, ELPS_TASK_PATH="/tasks", ELPS_DATA_PATH="/data")
    assert told(record, ELPS_TASK_PATH="") == {"ELPS_DATA_PATH": "/data"}


def test_relative_folders_are_those_of_where_the_command_was_given() -> None:
    assert told(new_record(), ELPS_TASK_PATH="mine::/b") == {"ELPS_TASK_PATH": "/work/here/mine:/b"}


def test_agents_that_run_are_not_given_other_paths() -> None:
    record = new_record()
    told(record, ELPS_TASK_PATH="/tasks")
    assert told(record, running=True, ELPS_TASK_PATH="/tasks") == {"ELPS_TASK_PATH": "/tasks"}
    assert told(record, running=True) == {"ELPS_TASK_PATH": "/tasks"}
    for other in ({"ELPS_TASK_PATH": "/else"}, {"ELPS_TASK_PATH": ""}, {"ELPS_DATA_PATH": "/d"}):
        with pytest.raises(SetupError, match="make down"):
            told(record, running=True, **other)
    assert record.paths == {"ELPS_TASK_PATH": "/tasks"}
