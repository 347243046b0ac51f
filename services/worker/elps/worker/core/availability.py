"""What a machine has left for a trainer, from what the kernel counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

_IDLE, _WAITS_FOR_DISK = 3, 4
"""Places in the first line of /proc/stat, after its name."""


class Counted(NamedTuple):
    """The kernel's counters at one moment, in seconds; what it does not tell is None."""

    at_s: float
    ran_s: float | None
    """The trainer has had a processor."""
    waited_s: float | None
    """It wanted one and had none."""
    idle_s: float | None
    """All processors of the host together have been idle."""
    memory_bytes: int | None
    """That can be had without swapping."""


@dataclass(frozen=True, slots=True)
class Available:
    """Between two moments; None where it is not known. See `elps.balance.Observation`."""

    cpu_process: float | None = None
    """The part of the time it wanted a processor in which it had one: so many cores, as it computes in one thread."""
    cpu_host: float | None = None
    """Cores that were idle."""
    memory_bytes: int | None = None

    @classmethod
    def between(cls, before: Counted, now: Counted, known: Available) -> Available:
        """What the counters say. A trainer that wanted no processor tells nothing new of what it can have."""
        passed_s = now.at_s - before.at_s
        ran_s, waited_s = _grown(before.ran_s, now.ran_s), _grown(before.waited_s, now.waited_s)
        idle_s = _grown(before.idle_s, now.idle_s)
        wanted = ran_s + waited_s if ran_s is not None and waited_s is not None else 0.0
        share = ran_s / wanted if ran_s is not None and wanted > 0 else known.cpu_process
        host = idle_s / passed_s if idle_s is not None and passed_s > 0 else known.cpu_host
        return cls(share, host, now.memory_bytes)

    def waiting(self) -> Available:
        """The same for a trainer that wants no processor just now: it could have one that is idle.

        How many are idle is not told: while it computes it takes one itself, so the two could not be compared.
        """
        share = min(1.0, self.cpu_host) if self.cpu_host is not None else None
        return Available(share, None, self.memory_bytes)

    def told(self, factor: float) -> dict[str, float | int]:
        """What is known of it, for the leader, on a machine that is so many times slower than the real one."""
        out: dict[str, float | int] = {}
        if self.cpu_process is not None:
            out["cpu_process"] = round(self.cpu_process / factor, 4)
        if self.cpu_host is not None:
            out["cpu_host"] = round(self.cpu_host / factor, 4)
        if self.memory_bytes is not None:
            out["memory_bytes"] = self.memory_bytes
        return out


def _grown(before: float | None, now: float | None) -> float | None:
    return max(0.0, now - before) if before is not None and now is not None else None


def ran_and_waited(schedstat: bytes) -> tuple[float | None, float | None]:
    """Of /proc/self/schedstat: nanoseconds on a processor, and waiting for one."""
    words = schedstat.split()
    if len(words) < 2 or not (words[0].isdigit() and words[1].isdigit()):
        return None, None
    return int(words[0]) / 1e9, int(words[1]) / 1e9


def idle_s(stat: bytes, ticks_per_s: int) -> float | None:
    """Of /proc/stat, whose first line sums all processors."""
    words = stat.partition(b"\n")[0].split()[1:]
    counts = words[_IDLE : _WAITS_FOR_DISK + 1]
    if not stat.startswith(b"cpu ") or len(counts) < 2 or not all(w.isdigit() for w in counts):
        return None
    return sum(map(int, counts)) / ticks_per_s


def available_bytes(meminfo: bytes) -> int | None:
    """Of /proc/meminfo."""
    for line in meminfo.splitlines():
        name, _, rest = line.partition(b":")
        words = rest.split()
        if name == b"MemAvailable" and words and words[0].isdigit():
            return int(words[0]) * 1024
    return None
