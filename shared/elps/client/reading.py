"""The monitor's answers as typed values: what it sends becomes what `elps.contracts.answers` has."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from elps.contracts.answers import (
    Event,
    Iterations,
    JobDetail,
    Jobs,
    JobSummary,
    LogLine,
    Output,
)
from elps.contracts.errors import InvalidDocument
from elps.contracts.state import JobRecord
from elps.contracts.telemetry import IterationRow

T = TypeVar("T")


def jobs_of(answer: Any) -> list[JobSummary]:
    """The answer to ``jobs``."""
    return read(answer, Jobs).jobs


def stale_of(answer: Any) -> str:
    """Why the answer to ``jobs`` may be old, for people; empty while it is not."""
    return read(answer, Jobs).stale


def job_of(answer: Any) -> JobDetail:
    """The answer to ``job``."""
    return read(answer, JobDetail)


def lines_of(answer: Any) -> list[LogLine]:
    """The answer to ``logs``."""
    return read(answer, Output).lines


def rows_of(answer: Any) -> list[IterationRow]:
    """The answer to ``iterations``."""
    return read(answer, Iterations).rows


def events_of(answer: Any) -> list[Event]:
    """Events as the monitor streams them."""
    return read(answer, list[Event])


def job_of_record(record: JobRecord) -> JobDetail:
    """The same from the record in the store, for when there is no monitor."""
    progress, allocation = record.progress, record.allocation
    targets = (allocation.targets or allocation.shards) if allocation else []
    return JobDetail(
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
