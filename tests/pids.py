"""Whether a process runs, for tests that know only its number."""

from __future__ import annotations

from elps.local.processes import handle_of


def alive(pid: int) -> bool:
    """Whether there is such a process that still runs: one that awaits its burial, or is being buried, does not."""
    return handle_of("process", pid) is not None
