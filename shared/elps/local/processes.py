"""Processes that outlive the command which started them, and ending exactly those.

A process is known by its pid *and* the moment it started, since the kernel uses pids again. Whatever a stack starts
carries `STACK_VARIABLE` in its environment, and children inherit it: so the leftovers of a crash (trainers, their
preloaded parents, epmd) can be told from everybody else's processes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
import psutil

STACK_VARIABLE = "ELPS_STACK_ID"
"""Environment variable that marks every process of one stack."""

PART_VARIABLE = "ELPS_STACK_PART"
"""Which part of the stack a process is of: ``service``, ``broker`` or ``store``; they end in this order."""

MAX_LOG_BYTES = 16 * 1024 * 1024
"""A log larger than this is set aside as ``<name>.1`` when its process starts again."""

POLL_S = 0.05
"""Pause between two looks at what has no event to wait for, such as the end of a process not our child."""

_STAT_STATE, _STAT_THREADS, _STAT_START = 0, 17, 19
"""Places in /proc/<pid>/stat after the closing parenthesis: fields 3 (state), 20 (threads), 22 (start, in ticks)."""


class Handle(msgspec.Struct, frozen=True, kw_only=True):
    """One process that was started, so that it can be found again by another command."""

    name: str
    pid: int
    start_ticks: int
    """When it started, in clock ticks since boot; with the pid this names one process only."""
    boot_id: str
    """Which boot of the machine it belongs to."""


def boot_id() -> str:
    """The identity of the machine's current boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def _stat(pid: int) -> list[str] | None:
    """Fields of /proc/<pid>/stat from the state on; None if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text.rpartition(")")[2].split()


def handle_of(name: str, pid: int) -> Handle | None:
    """A handle on a process that runs now; None if it does not."""
    stat = _stat(pid)
    if stat is None or stat[_STAT_STATE] in "ZX":
        return None
    return Handle(name=name, pid=pid, start_ticks=int(stat[_STAT_START]), boot_id=boot_id())


def is_alive(handle: Handle) -> bool:
    """Whether this very process still runs; a zombie, and another process with its pid, do not count.

    One of which only the first thread has ended does: its sockets still listen.
    """
    stat = _stat(handle.pid)
    if stat is None or (stat[_STAT_STATE] in "ZX" and int(stat[_STAT_THREADS]) <= 1):
        _reap(handle.pid)
        return False
    return int(stat[_STAT_START]) == handle.start_ticks and boot_id() == handle.boot_id


def _reap(pid: int) -> None:
    """Take away the zombie of a child of ours, if it is one."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        pass


def spawn(
    name: str, argv: Sequence[str], *, env: Mapping[str, str], log: Path, cwd: Path
) -> Handle:
    """Start a process in a session of its own, its output appended to `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    if log.exists() and log.stat().st_size > MAX_LOG_BYTES:
        log.replace(log.with_name(log.name + ".1"))
    with log.open("ab") as out:
        process = subprocess.Popen(
            list(argv),
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    # Nobody waits for it through this object, whose finalizer would warn of that.
    process.returncode = 0
    handle = handle_of(name, process.pid)
    if handle is None:  # it has ended already: a start no live process can have
        return Handle(name=name, pid=process.pid, start_ticks=-1, boot_id=boot_id())
    return handle


def send(handle: Handle, number: signal.Signals) -> bool:
    """Signal the process if it still is this one; say whether it was there."""
    if not is_alive(handle):
        return False
    try:
        os.kill(handle.pid, number)
    except ProcessLookupError:
        return False
    return True


def wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Look at `condition` until it holds or the time is over; say whether it held."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_S)
    return True


def end(handles: Iterable[Handle], *, grace_s: float) -> list[Handle]:
    """SIGTERM to all, SIGKILL to those still there after `grace_s`; return the ones that had to be killed."""
    left = [handle for handle in handles if send(handle, signal.SIGTERM)]
    wait_until(lambda: not any(map(is_alive, left)), grace_s)
    killed = [handle for handle in left if send(handle, signal.SIGKILL)]
    wait_until(lambda: not any(map(is_alive, killed)), 5.0)
    return killed


def descendants(handles: Iterable[Handle]) -> list[Handle]:
    """Children of these processes, and theirs, as far as they run now."""
    found: dict[int, Handle] = {}
    for handle in filter(is_alive, handles):
        try:
            children = psutil.Process(handle.pid).children(recursive=True)
        except psutil.Error:
            continue
        for child in children:
            if own := handle_of(f"{handle.name} child", child.pid):
                found[own.pid] = own
    return [found[pid] for pid in sorted(found)]


def belonging_to(stack_id: str, part: str | None = None) -> list[Handle]:
    """All running processes that carry the mark of this stack (and part), but for the asking one.

    Those of other users cannot be looked into and are not found.
    """
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid == os.getpid():
                continue
            env = process.environ()
            if env.get(STACK_VARIABLE) != stack_id:
                continue
            if part is not None and env.get(PART_VARIABLE) != part:
                continue
            name = process.name()
        except (psutil.Error, OSError):  # gone meanwhile, or another user's: not ours
            continue
        handle = handle_of(name, process.pid)
        if handle is not None:
            found.append(handle)
    return found


def tail(log: Path, lines: int = 20) -> list[str]:
    """The last lines of a log, for showing why something failed."""
    try:
        with log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 64 * 1024))
            return file.read().decode("utf-8", errors="replace").splitlines()[-lines:]
    except FileNotFoundError:
        return []
