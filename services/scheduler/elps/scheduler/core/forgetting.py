"""Ended jobs go, step by step: what `retention` says, carried out on the books."""

from __future__ import annotations

from elps.contracts.epoch import Term
from elps.contracts.ids import JobId
from elps.contracts.state import JobState
from elps.scheduler.core.book import Book
from elps.scheduler.core.events import (
    ForgetJobs,
    JobsForgotten,
    KeysRemoved,
    Moment,
    RemoveKeys,
)
from elps.scheduler.core.retention import after


def look(book: Book, now: Moment) -> None:
    """With time: hide the jobs whose time is over, and forget those that are hidden and let go of by everyone."""
    keep_s = book.bounds.keep_jobs_s
    for job in book.retention.over(book.records, keep_s, now.unix):
        book.hide(job, f"it ended more than {keep_s:g} s ago (ELPS_KEEP_JOBS_S)", now)
    jobs = [job for job in book.retention.quiet(book.records, now.unix) if not _held(book, job)]
    if jobs:
        marks = book.marks
        for job in jobs:
            book.retention.forgetting[job] = None
            marks = after(marks, book.records[job])
        book.out.append(ForgetJobs(tuple(jobs), marks))


def hosted(book: Book, job: JobId, term: Term) -> None:
    """A shard has a job: if that has ended, or was forgotten, it may have written since."""
    record = book.records.get(job)
    if record is None:
        # a higher term is of no job that was forgotten: what there is of it may be wanted yet
        over = job not in book.reserved and term.number <= book.marks.terms
    else:
        over = record.state.ended
    if over:
        book.cleanup[job] = None  # once it is dropped, again


def clean_up(book: Book) -> None:
    """Have keys removed that no shard can write any more."""
    for job in list(book.cleanup):
        if book.pool.reported_by_shards(job) or job in book.removing:
            continue  # one removal at a time: when none is under way the id of a forgotten job is free
        del book.cleanup[job]
        record = book.records.get(job)
        if record is None:
            whole = (
                True  # nobody knows it: it was forgotten, and somebody was not heard of meanwhile
            )
        elif not record.state.ended:
            continue
        else:
            whole = record.state is JobState.KILLED or record.deleted_at is not None
        if whole:
            book.removing[job] = None
        book.out.append(RemoveKeys(job, all=whole))


def removed(book: Book, event: KeysRemoved | JobsForgotten) -> None:
    """The store has done as it was told."""
    for job in event.jobs:
        if isinstance(event, JobsForgotten):
            book.forget(job)
        else:
            book.removing.pop(job, None)


def keys_found(book: Book, job: JobId) -> None:
    """The store has keys of a job: they go if it has been killed or was deleted.

    Those without a record stay: they may be all that is left of a store that was damaged.
    """
    record = book.records.get(job)
    if record is None:
        return
    if record.state is JobState.KILLED or record.deleted_at is not None:
        book.cleanup[job] = None


def taken(book: Book, job: JobId) -> bool:
    """Whether something of a job without a record may still be removed: another one of its id must wait for that."""
    return job in book.cleanup or job in book.removing


def _held(book: Book, job: JobId) -> bool:
    return taken(book, job) or book.pool.reported(job)
