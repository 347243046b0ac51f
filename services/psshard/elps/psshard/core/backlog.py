"""Finished iterations on their way to the broker: those that wait, and the messages they go in.

A row has the timings of all of a job's workers, so that neither is counted in rows alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from elps.contracts.codec import encode
from elps.contracts.ids import JobId
from elps.contracts.telemetry import IterationRow, IterationRows

MAX_WAITING = 150_000
"""Rows and workers' timings in them that wait for the broker, some 60 MB; beyond it the oldest rows are dropped."""
ROWS_AT_ONCE = 200
BODY_BYTES = 1024 * 1024
"""A message is cut in two above this; a quarter of what a bus carries, and some ms of the event loop."""

Row = tuple[JobId, IterationRow]


class Backlog:
    """Rows that wait, the oldest first. Plain state; its owner guards it."""

    def __init__(self, most: int = MAX_WAITING) -> None:
        self._most = most
        self._rows: deque[Row] = deque()
        self._size = 0  #: rows and timings in them; `_most` at most, but for a single row

    def add(self, row: Row) -> None:
        """One that is new."""
        self._rows.append(row)
        self._size += _size(row)
        self._shorten()

    def put_back(self, rows: list[Row]) -> None:
        """Some that were taken and could not be sent, before those that came since."""
        self._rows.extendleft(reversed(rows))
        self._size += sum(map(_size, rows))
        self._shorten()

    def take(self) -> list[Row]:
        """All of them."""
        rows, self._size = list(self._rows), 0
        self._rows.clear()
        return rows

    def _shorten(self) -> None:
        while self._size > self._most and len(self._rows) > 1:
            self._size -= _size(self._rows.popleft())


def _size(row: Row) -> int:
    return 1 + len(row[1].workers)


def by_job(rows: Iterable[Row]) -> list[tuple[JobId, list[IterationRow]]]:
    """Rows by job, each job's in their order, so many as go at once."""
    jobs: dict[JobId, list[IterationRow]] = {}
    for job, row in rows:
        jobs.setdefault(job, []).append(row)
    return [
        (job, some[at : at + ROWS_AT_ONCE])
        for job, some in sorted(jobs.items())
        for at in range(0, len(some), ROWS_AT_ONCE)
    ]


def bodies(job: JobId, rows: list[IterationRow], *, balanced: bool) -> Iterator[bytes]:
    """The messages that carry these rows of a job, in order; only one of a single row is longer than `BODY_BYTES`."""
    body = encode(IterationRows(job=job, rows=rows, balanced=balanced))
    if len(body) <= BODY_BYTES or len(rows) == 1:
        yield body
        return
    half = len(rows) // 2
    yield from bodies(job, rows[:half], balanced=balanced)
    yield from bodies(job, rows[half:], balanced=balanced)
