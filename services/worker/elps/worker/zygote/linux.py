"""What Linux knows of processes and Python does not offer."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None, use_errno=True)
"""Loaded here, not after a fork."""


def adopt_orphans() -> None:
    """Become the parent of all descendants that lose theirs (instead of init). Not inherited by children."""
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def children_of_this_thread() -> list[int]:
    """Process ids of the children of the calling process, if it has but one thread; zombies included."""
    return [
        int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_bytes().split()
    ]


def thread_count() -> int:
    """Threads of this process as the kernel sees them, those of C libraries included."""
    return sum(1 for _ in Path("/proc/self/task").iterdir())
