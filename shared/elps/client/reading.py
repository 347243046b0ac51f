"""The monitor's answers as typed values.

Fields that a newer monitor adds are ignored; those that an older one lacks are empty.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from elps.contracts.errors import InvalidDocument
from elps.contracts.messages import JobEvent
from elps.contracts.state import Change, JobRecord, JobState
from elps.contracts.telemetry import IterationRow

T = TypeVar("T")


class JobSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A job as the monitor tells it. Times of day are Unix seconds."""

    id: str
    state: JobState
    reason: str = ""
    task: str = ""
    group: str = ""
    iteration: int = 0
    """Iterations completed."""
    iterations: int = 0
    """In the whole job; 0 while unknown."""
    passes: float = 0.0
    samples: int = 0
    loss: float | None = None
    metrics: dict[str, float | None] = {}
    metrics_iteration: int | None = None
    samples_per_s: float | None = None
    time_left_s: float | None = None
    workers: list[str] = []
    ready: list[str] = []
    """Workers that the leader may lend work."""
    shards: list[str] = []
    """The leader first."""
    targets: list[str] = []
    """Those of `shards` that the partitions are to lie on; the others are on their way out."""
    workers_wanted: int = 0
    """How many it shall have; 0 while it holds nothing."""
    shards_wanted: int = 0
    workers_pinned: int | None = None
    """What `scale` asked for; None while the policy decides."""
    shards_pinned: int | None = None
    moving: str = ""
    replicas: str = ""
    """Which partitions are on their way, for people; empty while none is."""
    submitted_at: float | None = None
    fed_at: float | None = None
    """When it had given its early feedback."""
    changed_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    training_s: float = 0.0
    checkpoint: int | None = None
    skipped_samples: int = 0
    redone_iterations: int = 0
    plan: int = 0
    batches: int = 0
    """Number of the plan by which its leader cuts batches; 0: all are equal."""
    shares: dict[str, int] = {}
    """Samples of a full batch that this plan gives to each worker."""
    shares_reason: str = ""
    term: int = 0
    document: dict[str, Any] = {}
    """Only in the answer about one job."""
    dismissed: dict[str, str] = {}
    changes: list[Change] = []
    """Its life: how it began and the newest changes, oldest first. Only in the answer about one job."""
    stale: str = ""
    """Why this may be old, for people; empty while it is not. Only in the answer about one job."""

    @property
    def time_limit_s(self) -> float | None:
        """The job's own bound on its training time."""
        limit = self.document.get("stop", {}).get("time_s")
        return limit if isinstance(limit, int | float) else None


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line that a trainer printed."""

    n: int
    worker: str
    at: float
    text: str


class _Jobs(msgspec.Struct, frozen=True):
    jobs: list[JobSummary]
    stale: str = ""


class _Lines(msgspec.Struct, frozen=True):
    lines: list[LogLine]


class _Rows(msgspec.Struct, frozen=True):
    rows: list[IterationRow]


def jobs_of(answer: Any) -> list[JobSummary]:
    """The answer to ``jobs``."""
    return read(answer, _Jobs).jobs


def stale_of(answer: Any) -> str:
    """Why the answer to ``jobs`` may be old, for people; empty while it is not."""
    return read(answer, _Jobs).stale


def job_of(answer: Any) -> JobSummary:
    """The answer to ``job``."""
    return read(answer, JobSummary)


def lines_of(answer: Any) -> list[LogLine]:
    """The answer to ``logs``."""
    return read(answer, _Lines).lines


def rows_of(answer: Any) -> list[IterationRow]:
    """The answer to ``iterations``."""
    return read(answer, _Rows).rows


def events_of(answer: Any) -> list[JobEvent]:
    """Events as the monitor streams them."""
    return read(answer, list[JobEvent])


def job_of_record(record: JobRecord) -> JobSummary:
    """The same from the record in the store, for when there is no monitor."""
    progress, allocation = record.progress, record.allocation
    targets = (allocation.targets or allocation.shards) if allocation else []
    return JobSummary(
        id=record.id,
        state=record.state,
        reason=record.reason,
        task=record.document.task,
        group=record.document.group,
        workers=sorted(allocation.workers) if allocation else [],
        shards=list(allocation.shards) if allocation else [],
        targets=list(targets),
        workers_wanted=allocation.size if allocation else 0,
        shards_wanted=(allocation.width or len(targets)) if allocation else 0,
        workers_pinned=record.pinned.workers,
        shards_pinned=record.pinned.shards,
        submitted_at=record.submitted_at,
        changed_at=record.changed_at,
        started_at=record.started_at,
        ended_at=record.ended_at,
        term=record.terms,
        document=msgspec.to_builtins(record.document),
        iteration=progress.iteration,
        iterations=progress.iterations,
        passes=progress.passes,
        samples=progress.samples,
        loss=progress.loss,
        metrics=progress.metrics,
        metrics_iteration=progress.metrics_iteration,
        training_s=progress.training_s,
        checkpoint=progress.checkpoint,
        skipped_samples=progress.skipped_samples,
        redone_iterations=progress.redone_iterations,
        changes=record.changes,
    )


def read(answer: Any, kind: type[T]) -> T:
    """An answer as a typed value. Raises `InvalidDocument` when it is none."""
    try:
        return msgspec.convert(answer, kind)
    except msgspec.ValidationError as error:
        raise InvalidDocument(
            "answer of the monitor", [f"{error}: is it of another version?"]
        ) from None
