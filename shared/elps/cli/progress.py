"""What a watcher knows of one job: a pure fold of events, iteration rows and summaries.

Messages may be lost, doubled or late, so a change of state counts only if it is newer than the one known, and a row
only if its term, its epoch or its iteration is. Whatever a person should read once comes back as a `Note`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from elps.cli import figures
from elps.client.reading import job_of_record
from elps.contracts.answers import Event, JobDetail
from elps.contracts.messages import JobEvent
from elps.contracts.state import JobState
from elps.contracts.telemetry import IterationRow

WINDOW_S = 5.0
"""Speed is the mean over this much of training: long enough to be steady, short enough to show a resize."""
WINDOW_ROWS = 2000
ROWS_FOR_PACE = 3
"""The first iterations are slow; the time left is not told from them alone."""
SIZES_SHOWN = 8
"""Workers' batches in the line."""
REMEMBERED = 10_000
"""Events kept to know a repeat by, which comes soon after the first."""


@dataclass(frozen=True)
class Note:
    """One line for people."""

    at: float
    """Unix time, s."""
    kind: str
    """``state``, or the `what` of the event."""
    text: str
    grave: bool = False
    """Something went wrong."""


@dataclass
class JobProgress:
    """The job as last heard of."""

    job: str
    state: JobState | None = None
    reason: str = ""
    iteration: int = 0
    """Iterations completed."""
    iterations: int = 0
    """In the whole job; 0 while unknown."""
    passes: float = 0.0
    loss: float | None = None
    """Over the newest iteration with a counted sample; None before it, and while it is not finite."""
    counted: int = 0
    """Samples behind that loss; 0 before the first."""
    metrics: dict[str, float | None] = field(default_factory=dict)
    workers: int = 0
    """Workers with a part in the newest iteration."""
    shards: int = 0
    """Shards that the partitions are to lie on."""
    shares: dict[str, int] = field(default_factory=dict)
    """Samples of each worker in the newest iteration, where they are not equal."""
    moving: str = ""
    """Which partitions were on their way when the job was last asked for."""
    training_s: float = 0.0
    time_limit_s: float | None = None
    _changed_at: float = -1.0
    _standing: tuple[int, int] = (-1, 0)  #: term and epoch of the rows
    _newest_term: int = 0  #: heard of in any way
    _rows: deque[IterationRow] = field(
        default_factory=deque
    )  #: the newest WINDOW_S of training, oldest first
    _spent_s: float = 0.0  #: sum of the rows' durations
    _samples: int = 0  #: sum of the rows' samples
    _seen: set[tuple[str, float]] = field(
        default_factory=set
    )  #: events already told, by kind and time

    @property
    def ended(self) -> bool:
        """Whether the job's life is over."""
        return self.state is not None and self.state.ended

    @property
    def samples_per_s(self) -> float | None:
        """Speed over the newest rows; None before the first."""
        return self._samples / self._spent_s if self._spent_s > 0 else None

    @property
    def left_s(self) -> float | None:
        """Time left at the present speed, the job's own time limit included; None while unknown."""
        bounds = []
        if self.iterations and self._spent_s > 0 and len(self._rows) >= ROWS_FOR_PACE:
            each_s = self._spent_s / len(self._rows)
            bounds.append(max(0, self.iterations - self.iteration) * each_s)
        if self.time_limit_s is not None:
            bounds.append(max(0.0, self.time_limit_s - self.training_s))
        return min(bounds, default=None)

    def take_summary(self, job: JobDetail) -> list[Note]:
        """Take what the monitor, the store or a change of state says of the whole job."""
        self.time_limit_s = job.time_limit_s or self.time_limit_s
        self.iterations = job.iterations or self.iterations
        if job.iteration >= self.iteration:
            if job.iteration > self.iteration or not self.counted:
                self.loss, self.counted = job.loss, job.samples
            self.iteration, self.passes = job.iteration, job.passes
        self.training_s = max(self.training_s, job.training_s)
        if job.metrics:
            self.metrics = dict(job.metrics)
        self._newest_term = max(self._newest_term, job.term)
        self._take_size(job)
        return self._change(job.state, job.reason, job.changed_at or 0.0)

    def take_event(self, event: JobEvent) -> list[Note]:
        """Take an event; one that was told already gives no note, nor does one of a leader that was succeeded."""
        if event.term is not None:
            if event.term < self._newest_term:
                return []
            self._newest_term = event.term
        key = (event.what, event.at)
        if key in self._seen:
            return []
        if len(self._seen) >= REMEMBERED:
            self._seen.clear()
        self._seen.add(key)
        if event.state is not None:
            if event.state is self.state and event.at <= self._changed_at:
                return []  # a summary told of this change already, and perhaps of a newer reason
            if event.record is not None:
                return self.take_summary(job_of_record(event.record))
            return self._change(event.state, event.reason, event.at)
        if event.what == "evaluated":
            self.metrics = dict(event.metrics) or self.metrics
        if event.record is not None:
            self._take_size(job_of_record(event.record))
        return [Note(event.at, event.what, tell(event), event.what in ("skipped", "worker_lost"))]

    def take_row(self, row: IterationRow) -> bool:
        """Take a finished iteration; say whether it was news."""
        behind = bool(self._rows) and row.iteration <= self._rows[-1].iteration
        if row.standing < self._standing or (behind and row.standing == self._standing):
            return False
        if row.term > self._standing[0] or behind:  # another leader, or done again
            self._rows.clear()
            self._spent_s, self._samples = 0.0, 0
        self._standing = row.standing
        self._newest_term = max(self._newest_term, row.term)
        self._rows.append(row)
        self._spent_s += row.duration_s
        self._samples += row.samples
        while len(self._rows) > 1 and (self._spent_s > WINDOW_S or len(self._rows) > WINDOW_ROWS):
            gone = self._rows.popleft()
            self._spent_s -= gone.duration_s
            self._samples -= gone.samples
        self.iteration, self.passes = row.iteration + 1, row.passes
        if row.samples:
            self.loss, self.counted = row.loss, row.samples
        self.workers = len(row.workers)
        sizes = {str(timing.worker): timing.samples for timing in row.workers}
        equal = max(sizes.values(), default=0) - min(sizes.values(), default=0) <= 1
        self.shares = {} if equal else sizes
        self.training_s += row.duration_s
        return True

    def line(self) -> str:
        """The progress in one line of plain text."""
        of = f"/{self.iterations}" if self.iterations else ""
        loss = figures.loss(self.loss, self.counted)
        parts = [f"iteration {self.iteration}{of}", f"loss {loss}"]
        others = {name: x for name, x in self.metrics.items() if name != "loss"}
        if others:
            parts.append(figures.values(others))
        if self.workers and self.shards and not self.ended:
            parts.append(
                f"{figures.of(self.workers, 'worker')}, {figures.of(self.shards, 'shard')}"
            )
        if self.samples_per_s is not None:
            parts.append(figures.rate(self.samples_per_s))
        if self.left_s is not None and not self.ended:
            parts.append(f"{figures.seconds(self.left_s)} left")
        if self.shares and not self.ended:
            sizes = [str(size) for _, size in sorted(self.shares.items())]
            more = "/…" if len(sizes) > SIZES_SHOWN else ""
            parts.append(f"batches {'/'.join(sizes[:SIZES_SHOWN])}{more}")
        if self.moving and not self.ended:
            parts.append(self.moving)
        return "  ".join(parts)

    def _take_size(self, job: JobDetail) -> None:
        self.shards, self.moving = len(job.targets or job.shards), job.moving

    def _change(self, state: JobState, reason: str, at: float) -> list[Note]:
        if at < self._changed_at or (state, reason) == (self.state, self.reason):
            return []
        self.state, self.reason, self._changed_at = state, reason, at
        text = f"{state.value}: {reason}" if reason else state.value
        return [Note(at, "state", text, state in (JobState.FAILED, JobState.WAITING))]


def tell(event: JobEvent | Event) -> str:
    """An event that is no change of state, in words."""
    parts = [event.what.replace("_", " ")]
    if event.worker is not None:
        parts.append(event.worker)
    if event.iteration is not None:
        parts.append(f"at iteration {event.iteration}")
    text = " ".join(parts)
    if event.metrics:
        text += ": " + figures.values(event.metrics, ", ")
    return f"{text}: {event.reason}" if event.reason else text
