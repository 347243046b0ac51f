"""Small facts about processes: how they ended, how large they are, and that children do not outlive their parent."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from pathlib import Path

_PR_SET_NAME = 15
_PR_SET_PDEATHSIG = 1


def die_with_parent(sig: signal.Signals = signal.SIGKILL) -> bool:
    """Have the kernel send `sig` to this process when its parent *thread* ends; call it first thing in a forked child.

    Returns False where there is no such call (not Linux). If the parent is gone already, the signal is sent at once.
    """
    if not sys.platform.startswith("linux"):
        return False
    parent = os.getppid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(sig), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        os.kill(os.getpid(), sig)
    return True


def name_thread(name: str) -> None:
    """Name the calling thread for `ps -L` and debuggers: the kernel keeps its first 15 bytes."""
    threading.current_thread().name = name
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode()[:15] + b"\0", 0, 0, 0)


def describe_exit(returncode: int) -> str:
    """For people: ``exit code 3``, ``signal 9 (SIGKILL)``. Takes a return code of `subprocess`: negative for signals.

    For a status of `os.waitpid`, pass ``os.waitstatus_to_exitcode(status)``.
    """
    if returncode >= 0:
        return f"exit code {returncode}"
    try:
        return f"signal {-returncode} ({signal.Signals(-returncode).name})"
    except ValueError:
        return f"signal {-returncode}"


def rss_bytes(pid: int | None = None) -> int:
    """Resident memory of a process (this one by default); 0 when it is gone."""
    try:
        words = Path(f"/proc/{pid or 'self'}/statm").read_bytes().split()
        return int(words[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return _rss_elsewhere(pid)


def _rss_elsewhere(pid: int | None) -> int:
    """Systems without /proc."""
    import psutil

    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0


def identity() -> str:
    """What tells this process from every other one, for `has_ended`: boot, namespace, process id and start.

    Empty where the system does not tell that way (not Linux).
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        space = Path("/proc/self/ns/pid").readlink()
        return f"{boot} {space} {os.getpid()} {_started(os.getpid())}"
    except OSError:
        return ""


def has_ended(other: str) -> bool:
    """Whether the process of this `identity` is known to be gone; one of another machine never is."""
    own = identity()
    if not own or own.split()[:2] != other.split()[:2]:
        return False
    try:
        pid, started = (int(word) for word in other.split()[2:])
    except ValueError:
        return False
    try:
        return _started(pid) != started
    except OSError:
        return True


def _started(pid: int) -> int:
    """When a process started, in ticks since the boot; `OSError` if there is none."""
    state, *words = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    if state in "ZX":
        raise ProcessLookupError(pid)
    return int(words[18])
