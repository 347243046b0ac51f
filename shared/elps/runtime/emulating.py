"""The machine that a process pretends to be: slower than the real one, by sleeping, and its own.

Many of them share the real one's processors. While a computation waits for one it would go on where it had a machine
for itself, so that wait is not multiplied, and taken off what is slept.
"""

from __future__ import annotations

import csv
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from elps.balance.slowdown import Recording, Slowdown, Step, read, text_for
from elps.contracts.errors import SetupError

WORKERS, SHARDS = "ELPS_WORKER_SLOWDOWN", "ELPS_SHARD_SLOWDOWN"
"""The settings that say it."""
REAL = Step(1.0, 1.0)
"""The machine as it is."""
SCHEDULED = Path("/proc/thread-self/schedstat")
"""Nanoseconds on a processor and waiting for one, and how often it got one."""


def slowdown_for(member: str, text: str, variable: str = WORKERS) -> str:
    """The part of a setting that is for an agent or a shard, tried out; `SetupError` says what is wrong with it."""
    try:
        own = text_for(member, text)
    except ValueError as error:
        raise SetupError(f"settings: {variable}: {error}") from None
    opened(own, variable)
    return own


def opened(text: str, variable: str = WORKERS) -> Slowdown:
    """The pattern that a text names, read from its file if it has one; `SetupError` says what is wrong."""
    if not text:
        return REAL
    try:
        pattern = read(text)
        if isinstance(pattern, Recording):
            with Path(pattern.file).expanduser().open(newline="", encoding="utf-8") as file:
                return pattern.trace(list(csv.DictReader(file)))
    except (ValueError, csv.Error) as error:
        raise SetupError(f"settings: {variable}: {error}") from None
    except OSError as error:
        raise SetupError(
            f"settings: {variable}: the trace {error.filename} cannot be read: {error.strerror}"
        ) from None
    return pattern


def queued_s() -> float:
    """For how many seconds this thread has been ready to run without a processor; 0 where the kernel does not tell."""
    try:
        return int(SCHEDULED.read_text(encoding="ascii").split()[1]) / 1e9
    except OSError:
        return 0.0


class Machine:
    """Makes computations take as long as the pattern says; the clock is in seconds, from anywhere.

    `queued` is the part of that time in which the computing thread waited for a processor.
    """

    def __init__(
        self,
        slowdown: Slowdown = REAL,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
        queued: Callable[[], float] = queued_s,
    ) -> None:
        self._slowdown, self._clock, self._sleep, self._queued = slowdown, clock, sleep, queued
        self._since: float | None = None  #: when the first computation began

    @classmethod
    def of(cls, env: Mapping[str, str]) -> Machine:
        """The one that the agent's setting names. Raises `SetupError`."""
        return cls(opened(env.get(WORKERS, "")))

    @property
    def factor(self) -> float:
        """How many times as long a computation takes that begins now."""
        now = self._clock()
        return self._slowdown.factor(now - (now if self._since is None else self._since))

    def drawn_out(self, took_s: float) -> float:
        """Something took so long on the real machine: sleep for as long as it takes more here; gives it in all."""
        now = self._clock()
        if self._since is None:
            self._since = now - took_s
        more = self._slowdown.factor(now - took_s - self._since) - 1
        if more <= 0 or took_s <= 0:
            return took_s
        self._sleep(more * took_s)
        return took_s + self._clock() - now

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Compute in here. What fails is not drawn out."""
        began = self._clock()
        if self._since is None:
            self._since = began
        factor = self._slowdown.factor(began - self._since)
        if factor <= 1:
            yield
            return
        queued = self._queued()
        yield
        took, queued = self._clock() - began, self._queued() - queued
        self._sleep(max(0.0, factor * (took - queued) - took))
