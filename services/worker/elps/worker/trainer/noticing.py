"""What the machine has left for a trainer, as it notices at the barrier."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable

from elps.worker.core.availability import (
    Available,
    Counted,
    available_bytes,
    idle_s,
    ran_and_waited,
)

LOOK_S = 0.05
"""Looked at so often at most: a look takes 30 µs, and the kernel counts idle time in hundredths of a second."""
_BYTES = 256
"""Of each file; what is looked for is at its beginning."""


class Noticing:
    """Keeps the files open that it looks into. Where there is no /proc, nothing is known."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._files = {name: _opened(name) for name in ("self/schedstat", "stat", "meminfo")}
        self._ticks_per_s = os.sysconf("SC_CLK_TCK")
        self._before = self._count()
        self._available = Available()

    def now(self, factor: float) -> dict[str, float | int]:
        """What the leader is told, with a machine that is so many times slower than the real one."""
        self._look()
        return self._available.told(factor)

    def waiting(self, factor: float) -> dict[str, float | int]:
        """The same while there is nothing to compute."""
        self._look()
        return self._available.waiting().told(factor)

    def _look(self) -> None:
        if self._clock() - self._before.at_s >= LOOK_S:
            counted = self._count()
            self._available = Available.between(self._before, counted, self._available)
            self._before = counted

    def _count(self) -> Counted:
        ran, waited = ran_and_waited(self._read("self/schedstat"))
        idle = idle_s(self._read("stat"), self._ticks_per_s)
        return Counted(self._clock(), ran, waited, idle, available_bytes(self._read("meminfo")))

    def _read(self, name: str) -> bytes:
        if (file := self._files[name]) is not None:
            with contextlib.suppress(OSError):
                return os.pread(file, _BYTES, 0)
        return b""

    def close(self) -> None:
        """Close the files."""
        for name, file in self._files.items():
            self._files[name] = None
            if file is not None:
                os.close(file)


def _opened(name: str) -> int | None:
    try:
        return os.open(f"/proc/{name}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
