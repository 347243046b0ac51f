"""The machine that a trainer pretends to be: slower than the real one, by sleeping."""

from __future__ import annotations

import csv
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from elps.contracts.errors import SetupError
from elps.contracts.ids import AgentId
from elps.worker.core.slowdown import Recording, Slowdown, Step, read, text_for

VARIABLE = "ELPS_WORKER_SLOWDOWN"
REAL = Step(1.0, 1.0)
"""The machine as it is."""


def slowdown_for(agent: AgentId, text: str) -> str:
    """The part of the setting that is for an agent, tried out; `SetupError` says what is wrong with it."""
    try:
        own = text_for(agent, text)
    except ValueError as error:
        raise SetupError(f"settings: {VARIABLE}: {error}") from None
    opened(own)
    return own


def opened(text: str) -> Slowdown:
    """The pattern that a text names, read from its file if it has one; `SetupError` says what is wrong."""
    if not text:
        return REAL
    try:
        pattern = read(text)
        if isinstance(pattern, Recording):
            with Path(pattern.file).expanduser().open(newline="", encoding="utf-8") as file:
                return pattern.trace(list(csv.DictReader(file)))
    except (ValueError, csv.Error) as error:
        raise SetupError(f"settings: {VARIABLE}: {error}") from None
    except OSError as error:
        raise SetupError(
            f"settings: {VARIABLE}: the trace {error.filename} cannot be read: {error.strerror}"
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
        return cls(opened(env.get(VARIABLE, "")))

    @property
    def factor(self) -> float:
        """How many times as long a computation takes that begins now."""
        now = self._clock()
        return self._slowdown.factor(now - (now if self._since is None else self._since))

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
