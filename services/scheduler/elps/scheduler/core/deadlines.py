"""Deadlines of jobs: who would miss one counts more, and who has is told of, once. Nobody is killed for it."""

from __future__ import annotations

import msgspec

from elps.contracts.state import JobRecord
from elps.scheduler.core.book import Book
from elps.scheduler.core.events import Moment
from elps.scheduler.core.gain import Rates, time_s

LATE = 3.0
"""So many times its weight a job counts that would miss its deadline as fast as it is now."""
WELL = 0.8
"""It counts so until it would be through in this part of the time that it has, with a worker fewer: else it would be
given a worker for being late, and lose it for not being so."""


def is_late(
    record: JobRecord, rates: Rates, left: float | None, workers: int, was: bool, now: Moment
) -> bool:
    """Whether a job would miss its deadline. `left`: iterations that it has to go, None while that is not known."""
    due = due_s(record, now)
    if due is None or due <= 0 or left is None or not rates or not workers:
        return False
    if was:
        return left * time_s(rates, max(1, workers - 1)) > WELL * due
    return left * time_s(rates, workers) > due


def left_of(record: JobRecord) -> float | None:
    """Iterations that a job has to go, should it not be stopped before; passes are counted once its data is open."""
    if whole := record.document.iterations or record.progress.iterations:
        return float(max(0, whole - record.progress.iteration))
    return None


def due_s(record: JobRecord, now: Moment) -> float | None:
    """Seconds until its deadline, below 0 after it; None without one."""
    bound = record.document.deadline_s
    return None if bound is None else record.submitted_at + bound - now.unix


def look(book: Book, now: Moment) -> None:
    """Note who is late, and tell of jobs whose deadline has just passed."""
    for record, allocation, live, _ in book.holding():
        workers, rates = len(allocation.workers), live.speeds.rates
        live.behind = is_late(record, rates, left_of(record), workers, live.behind, now)
    for job in list(book.live):
        record = book.records[job]
        due = due_s(record, now)
        if due is not None and due < 0 and not record.overdue:
            book.update(msgspec.structs.replace(record, overdue=True), now)
            bound = record.document.deadline_s
            why = f"it has not ended within {bound:g} s, at iteration {record.progress.iteration}"
            book.tell(job, "overdue", why, now)
