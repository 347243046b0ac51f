"""`scale`: what a user wants of a job's size, and what it is told about it.

The wish is kept in the record (`pinned`) and holds for the job's whole life, through pauses, restarts and new terms;
`resizing` makes what the job holds follow it. So a wish for what it has already changes nothing, and of several only
the last one counts, however far the ones before have come.
"""

from __future__ import annotations

import msgspec

from elps.contracts.job import Pool as Bounds
from elps.contracts.requests import ScaleCommand
from elps.contracts.state import JobRecord, JobState, Pinned
from elps.scheduler.core.book import Book
from elps.scheduler.core.events import Moment
from elps.scheduler.core.resizing import targets_of


def refusal(record: JobRecord, wish: ScaleCommand) -> list[str]:
    """Why a wish cannot be granted; empty when it can."""
    document = record.document
    asked = (("workers", wish.workers, document.workers), ("shards", wish.shards, document.shards))
    if wish.auto:
        given = [name for name, number, _ in asked if number is not None]
        return [f"auto frees the job's size: give no {' and no '.join(given)}"] if given else []
    if all(number is None for _, number, _ in asked):
        return ["nothing is asked for: give a number of workers, one of shards, or auto"]
    return [
        problem
        for name, number, bounds in asked
        if number is not None and (problem := _out_of_bounds(name, number, bounds))
    ]


def _out_of_bounds(name: str, number: int, bounds: Bounds) -> str:
    if bounds.min <= number <= bounds.max:
        return ""
    within = f"{bounds.min} to {bounds.max}" if bounds.min < bounds.max else f"{bounds.min}"
    return (
        f"{name}: {number} is not within {within}, {name}.min to {name}.max of the job's document"
    )


def scale(book: Book, record: JobRecord, wish: ScaleCommand, now: Moment) -> str:
    """Keep a wish that is not refused; returns what will happen, for people."""
    before = record.pinned
    pinned = (
        Pinned()
        if wish.auto
        else Pinned(
            workers=before.workers if wish.workers is None else wish.workers,
            shards=before.shards if wish.shards is None else wish.shards,
        )
    )
    if pinned == before:
        text = f"already {said(pinned)}"
    else:
        book.update(msgspec.structs.replace(record, pinned=pinned), now)
        why = f": {wish.reason}" if wish.reason else ""
        book.tell(record.id, "scaled", f"{said(pinned)}{why}", now)
        book.happened(now)
        book.reserve(record.id, None)  # a place that was kept for it had the size before
        text = said(pinned)
    return f"{text}; {_outlook(book, book.records[record.id])}"


def said(pinned: Pinned) -> str:
    """A pin in words."""
    parts = [
        _count(number, what)
        for number, what in ((pinned.workers, "worker"), (pinned.shards, "shard"))
        if number is not None
    ]
    return f"pinned at {' and '.join(parts)}" if parts else "not pinned: the policy decides"


def _outlook(book: Book, record: JobRecord) -> str:
    allocation, pinned = record.allocation, record.pinned
    if pinned == Pinned():
        if book.resizes:
            return "the job grows and shrinks with what it gains, and gives way to newcomers"
        return "first come, first served resizes no job that runs: it keeps what it has until it starts anew"
    if allocation is None:
        when = "once it is resumed" if record.state is JobState.PAUSED else "when its turn has come"
        return f"the job is {record.state.value} and starts with it {when}, or with what is free, and grows then"
    if book.goal(record.id) == "pause":
        return "the job is about to pause and starts with it afterwards"
    parts = []
    workers, shards = len(allocation.workers), len(targets_of(allocation))
    claims, pool = book.claims(), book.pool
    if pinned.workers is not None and pinned.workers != workers:
        more, free = pinned.workers - workers, sum(pool.free(a, claims) for a in pool.agents)
        parts.append(_grows(more, "worker", free) if more > 0 else _gives_up_workers(-more))
    if pinned.shards is not None and pinned.shards != shards:
        more = pinned.shards - shards
        others = [s for s in pool.shards if s not in targets_of(allocation)]
        free = sum(pool.free(s, claims) > 0 or s in allocation.shards for s in others)
        parts.append(_grows(more, "shard", free) if more > 0 else _gives_up_shards(-more))
    has = f"it has {_count(workers, 'worker')} and {_count(shards, 'shard')}"
    return f"{has}, {' and '.join(parts)}" if parts else has


def _grows(more: int, what: str, free: int) -> str:
    if free >= more:
        return f"{_count(more, f'more {what}')} will join as soon as {_they(more)} ready"
    if not free:
        return f"{_count(more, f'more {what}')} will join as soon as slots are free"
    return (
        f"{_count(free, f'more {what}')} can join now and {more - free} as soon as slots are free"
    )


def _gives_up_workers(fewer: int) -> str:
    return f"{_count(fewer, 'worker')} will leave after what {'it computes' if fewer == 1 else 'they compute'}"


def _gives_up_shards(fewer: int) -> str:
    whose = "its" if fewer == 1 else "their"
    return f"{_count(fewer, 'shard')} will leave once {whose} partitions have moved"


def _they(number: int) -> str:
    return "it is" if number == 1 else "they are"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
