"""Early feedback: the first word on how a job does, for which a newcomer is preferred to those that have given theirs.

It rests on how far the job is and never on what it says: a loss or metric that is missing or not finite is told as it
is, and promotes nobody.
"""

from __future__ import annotations

import msgspec

from elps.contracts.ids import JobId
from elps.contracts.state import JobRecord
from elps.scheduler.core.book import Book
from elps.scheduler.core.events import Moment


def look(book: Book, job: JobId, now: Moment) -> None:
    """Note and tell that a job has given its feedback, once."""
    record = book.records[job]
    if record.fed_at is None and (what := given(record)):
        book.update(msgspec.structs.replace(record, fed_at=now.unix), now)
        book.happened(now)
        book.tell(job, "feedback", f"{what}: {_shown(record)}", now)


def given(record: JobRecord) -> str:
    """What the job has reached that is its early feedback, for people; empty while it has not."""
    wanted, progress = record.document.feedback, record.progress
    if wanted.iterations and progress.iteration >= wanted.iterations:
        return f"{progress.iteration} iterations"
    if wanted.passes and progress.passes >= wanted.passes:
        return f"{progress.passes:.3g} passes"
    if wanted.seconds and progress.training_s >= wanted.seconds:
        return f"{progress.training_s:.3g} s of training"
    if wanted != type(wanted)():
        return ""
    if progress.metrics_iteration is not None:
        return f"evaluated at iteration {progress.metrics_iteration}"
    if progress.passes >= 1:  # not every job is evaluated
        return "a pass over the data"
    return ""


def _shown(record: JobRecord) -> str:
    progress = record.progress
    loss = "no loss yet" if progress.loss is None else f"loss {progress.loss:.4g}"
    metrics = [
        f"{name} {value:.4g}" for name, value in progress.metrics.items() if value is not None
    ]
    seconds = f"{progress.training_s:.3g} s of training"
    return ", ".join([loss, *metrics, seconds])
