"""Deadlines of jobs: who would miss one counts more, and who has is told of, once. Nobody is killed for it."""

from __future__ import annotations

import msgspec

from elps.contracts.state import JobRecord
from elps.scheduler.core.book import Book
from elps.scheduler.core.events import Moment
from elps.scheduler.core.gain import Rates, time_s

LATE = 3.0
"""So many times its weight a job counts that would miss its deadline as fast as it is now."""


def weight(record: JobRecord, rates: Rates, left: float | None, workers: int, now: Moment) -> float:
    """How much a job counts. `left`: iterations that it has to go, None while that is not known."""
    own = record.document.weight
    due = due_s(record, now)
    if due is None or due <= 0 or left is None or not rates or not workers:
        return own
    return own * LATE if left * time_s(rates, workers) > due else own


def due_s(record: JobRecord, now: Moment) -> float | None:
    """Seconds until its deadline, below 0 after it; None without one."""
    bound = record.document.deadline_s
    return None if bound is None else record.submitted_at + bound - now.unix


def look(book: Book, now: Moment) -> None:
    """Tell of jobs whose deadline has just passed."""
    for job in list(book.live):
        record = book.records[job]
        due = due_s(record, now)
        if due is not None and due < 0 and not record.overdue:
            book.update(msgspec.structs.replace(record, overdue=True), now)
            bound = record.document.deadline_s
            why = f"it has not ended within {bound:g} s, at iteration {record.progress.iteration}"
            book.tell(job, "overdue", why, now)
