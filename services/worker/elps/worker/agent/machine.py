"""What an agent knows of its machine."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from elps.worker.core.kind import kind_of

CPUINFO = Path("/proc/cpuinfo")


def own_kind(slowdown: str = "") -> str:
    """The class of this machine; its processors are those that this process may use."""
    try:
        cpuinfo = CPUINFO.read_text(encoding="utf-8", errors="replace")
    except OSError:
        cpuinfo = ""
    return kind_of(cpuinfo, platform.machine(), _cores(), slowdown)


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
