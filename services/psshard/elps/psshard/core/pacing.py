"""When the rows of each job go out: not more often than its pace, except with something that cannot wait."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from elps.contracts.ids import JobId
from elps.contracts.telemetry import IterationRow

FORGET_S = 1.0
"""Longer than any pace."""

Row = tuple[JobId, IterationRow]


class Pace:
    """Rows that wait until their job may speak again. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._held: dict[JobId, list[Row]] = {}
        self._sent: dict[JobId, float] = {}  #: when a job's rows last went out

    def take(
        self, rows: Iterable[Row], now: float, pace_s: Callable[[JobId], float], *, at_once: bool
    ) -> list[Row]:
        """Add rows and take those that are due, in their order; all of them if they are to go `at_once`."""
        for row in rows:
            self._held.setdefault(row[0], []).append(row)
        due = [
            job
            for job in self._held
            if at_once or now >= self._sent.get(job, -math.inf) + pace_s(job)
        ]
        out = [row for job in due for row in self._held.pop(job)]
        self._sent |= dict.fromkeys(due, now)
        for job, at in list(self._sent.items()):
            if job not in self._held and now >= at + FORGET_S:
                del self._sent[job]
        return out

    @property
    def speaking(self) -> set[JobId]:
        """Jobs that have rows now, or had some a moment ago."""
        return {*self._held, *self._sent}

    def due_at(self, pace_s: Callable[[JobId], float]) -> float:
        """When something that is held may go; infinity if nothing is."""
        return min((self._sent[job] + pace_s(job) for job in self._held), default=math.inf)
