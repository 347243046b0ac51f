"""What trainers printed: a ring of numbered lines for each job, bounded in lines and bytes, and over all jobs."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice

import msgspec
import orjson

MAX_LINES = 5_000
MAX_JOB_BYTES = 1024 * 1024
MAX_BYTES = 128 * 1024 * 1024
LINE_BYTES = 200
"""What a line takes in memory besides its text (measured): of short ones it is the most."""
MAX_LINE_CHARACTERS = 4_000
"""A longer line is cut and says so: one print of an array must not push everything else out."""


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One line of output."""

    n: int
    """Number in the job's output, from 0 in the order of arrival here."""
    worker: str
    at: float
    """Unix time, s."""
    text: str
    size_bytes: int
    """As JSON, which is how it will travel."""


class JobLog:
    """The newest lines of one job."""

    def __init__(self) -> None:
        self.lines: deque[Line] = deque()
        self.next = 0  #: number of the line that comes next; numbers are never used again
        self.size_bytes = 0

    def add(self, worker: str, at: float, texts: Sequence[str]) -> None:
        """Append lines; the oldest go."""
        for text in texts:
            if len(text) > MAX_LINE_CHARACTERS:
                text = f"{text[:MAX_LINE_CHARACTERS]}… ({len(text)} characters)"
            line = Line(
                n=self.next, worker=worker, at=at, text=text, size_bytes=len(orjson.dumps(text))
            )
            self.next += 1
            self.lines.append(line)
            self.size_bytes += line.size_bytes
            while len(self.lines) > MAX_LINES or self.size_bytes > MAX_JOB_BYTES:
                self.drop()

    @property
    def weight_bytes(self) -> int:
        """What it takes in memory."""
        return self.size_bytes + LINE_BYTES * len(self.lines)

    def drop(self) -> None:
        """Let the oldest line go."""
        self.size_bytes -= self.lines.popleft().size_bytes

    def since(self, n: int, limit: int, max_bytes: int) -> list[Line]:
        """Lines from number `n` on: at most `limit`, and at most `max_bytes` unless the first alone is larger."""
        first = self.lines[0].n if self.lines else self.next
        chosen: list[Line] = []
        for line in islice(self.lines, max(0, n - first), None):
            max_bytes -= line.size_bytes
            if len(chosen) >= limit or (max_bytes < 0 and chosen):
                break
            chosen.append(line)
        return chosen


class Logs:
    """The output of all jobs."""

    def __init__(self) -> None:
        self._jobs: dict[str, JobLog] = {}
        self.size_bytes = 0  #: in memory, sum over the jobs

    def add(self, job: str, worker: str, at: float, texts: Sequence[str]) -> None:
        """Append lines of a job."""
        log = self._jobs.setdefault(job, JobLog())
        before = log.weight_bytes
        log.add(worker, at, texts)
        self.size_bytes += log.weight_bytes - before
        while self.size_bytes > MAX_BYTES:
            self._halve_largest()

    def get(self, job: str) -> JobLog:
        """A job's log; empty when it printed nothing."""
        return self._jobs.get(job) or JobLog()

    def forget(self, job: str) -> None:
        """Let go of a job's lines."""
        if (log := self._jobs.pop(job, None)) is not None:
            self.size_bytes -= log.weight_bytes

    def __len__(self) -> int:
        return len(self._jobs)

    def _halve_largest(self) -> None:
        largest = min(self._jobs, key=lambda job: (-self._jobs[job].weight_bytes, job))
        log = self._jobs[largest]
        before = log.weight_bytes
        while log.lines and log.weight_bytes * 2 > before:
            log.drop()
        self.size_bytes -= before - log.weight_bytes
