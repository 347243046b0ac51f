"""Identifiers. They are all strings or small integers, and swapping two is the classic bug: hence the new types."""

from __future__ import annotations

import re
from typing import NewType

from elps.contracts.errors import InvalidDocument

JobId = NewType("JobId", str)
ShardId = NewType("ShardId", str)
AgentId = NewType("AgentId", str)
WorkerId = NewType("WorkerId", str)
"""One trainer process of one job; a replacement gets a new id."""
PartitionId = NewType("PartitionId", int)

MAX_ID_LENGTH = 64
ID_PATTERN = rf"[A-Za-z0-9][A-Za-z0-9_-]{{0,{MAX_ID_LENGTH - 1}}}"
_ID = re.compile(ID_PATTERN)
_WORKER_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
"""A job's id and a number."""


def id_problem(value: str) -> str | None:
    """Say what is wrong with an identifier, or None.

    Identifiers become parts of routing keys, Redis keys and file names, so they hold only ASCII letters, digits,
    ``_`` and ``-`` and begin with a letter or digit.
    """
    if _ID.fullmatch(value):
        return None
    shown = value if len(value) <= MAX_ID_LENGTH else value[:20] + "…"
    expected = f"1 to {MAX_ID_LENGTH} of A-Z a-z 0-9 _ -, beginning with a letter or digit"
    return f"{shown!r} is not an identifier: expected {expected}"


def worker_id_problem(value: str) -> str | None:
    """Say what is wrong with the identifier of a worker, or None."""
    return None if _WORKER_ID.fullmatch(value) else f"{value[:40]!r} is not an identifier"


def parse_job_id(value: str) -> JobId:
    """Return `value` as a `JobId`; raise `InvalidDocument` if it is not fit to be one."""
    if problem := id_problem(value):
        raise InvalidDocument("job id", [problem])
    return JobId(value)
