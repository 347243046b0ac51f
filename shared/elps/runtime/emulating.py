"""The machine that a process pretends to be: slower than the real one, by sleeping."""

from __future__ import annotations

import csv
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from elps.contracts.errors import SetupError
from elps.runtime.slowdown import Recording, Slowdown, Step, read, text_for

WORKERS, SHARDS = "ELPS_WORKER_SLOWDOWN", "ELPS_SHARD_SLOWDOWN"
"""The settings that say it."""
REAL = Step(1.0, 1.0)
"""The machine as it is."""


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


class Machine:
    """Makes computations take as long as the pattern says; the clock is in seconds, from anywhere."""

    def __init__(
        self,
        slowdown: Slowdown = REAL,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._slowdown, self._clock, self._sleep = slowdown, clock, sleep
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
        more = self._slowdown.factor(began - self._since) - 1
        yield
        if more > 0:
            self._sleep(more * (self._clock() - began))
