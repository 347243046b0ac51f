"""After every event: what has become due, and who gets what is free."""

from __future__ import annotations

import msgspec

from elps.contracts.state import Allocation, JobState
from elps.scheduler.core import forgetting, resizing, succession, users
from elps.scheduler.core.book import Book
from elps.scheduler.core.events import AskTerm, MemberId, Moment, TermGranted
from elps.scheduler.core.facts import facts_of
from elps.scheduler.core.known import Reservation
from elps.scheduler.core.life import LifeEvent
from elps.scheduler.core.places import counted
from elps.scheduler.core.policy import (
    Facts,
    Policy,
    Refill,
    Resize,
    Start,
)
from elps.scheduler.core.terms import begin_term, named
from elps.scheduler.core.trainers import elsewhere


def settle(book: Book, policy: Policy, now: Moment) -> None:
    """Bring everything that follows from the books up to date."""
    _leave_leavers(book, now)
    resizing.resize(book, now)
    succession.look(book, now)
    _mark_stalled(book, now)
    if not book.suspended:
        _cancel_reservations(book)
        _allocate(book, policy, now)
        resizing.narrowed(book, now)
    else:
        _explain_suspension(book, now)
    forgetting.clean_up(book)
    users.settle_suspensions(book, now)


def term_granted(book: Book, event: TermGranted, now: Moment) -> None:
    """Start a job in the place that was kept for it, if it still wants it."""
    live = book.live.get(event.job)
    if live is None:  # killed meanwhile: the term may have come after all its keys went, and is one
        book.cleanup[event.job] = None
        return
    if live.succession is not None:
        if live.succession.attempt == event.attempt:
            succession.granted(book, event, now)
        return
    if live.reservation is None or live.reservation.attempt != event.attempt:
        return  # paused or without its place meanwhile: the term stays unused
    start = live.reservation.start
    record = book.records[event.job]
    workers = named(record, start.agents)
    live.avoid.clear()
    pinned = record.pinned
    allocation = Allocation(
        term=event.term,
        shards=list(start.shards),
        workers=workers,
        size=len(workers) if pinned.workers is None else pinned.workers,
        width=len(start.shards) if pinned.shards is None else pinned.shards,
        incarnations=resizing.incarnations(book, start.shards),
    )
    places = f"led by {start.shards[0]}, shards {', '.join(start.shards)}, workers on {', '.join(start.agents)}"
    reason = f"{start.reason}; {places}"
    begin_term(book, event.job, LifeEvent.PLACED, allocation, event.secret, reason, now)


def _allocate(book: Book, policy: Policy, now: Moment) -> None:
    """Ask the policy; where it changes sizes, what follows from that is done and it is asked once more."""
    for _ in range(2):
        facts = facts_of(book, policy, now)
        if facts is None or not _apply(book, policy, facts, now):
            return
        resizing.resize(book, now)


def _apply(book: Book, policy: Policy, facts: Facts, now: Moment) -> bool:
    """Carry a decision out; True if a job is to have another size."""
    decision = policy.decide(facts)
    for refill in decision.refills:
        _refill(book, refill, now)
    for start in decision.starts:
        _reserve(book, start, policy.name)
    for resize in decision.resizes:
        _resize(book, resize, now)
    for job, reason in decision.waits:
        book.explain(job, reason, now)
    return bool(decision.resizes)


def _resize(book: Book, resize: Resize, now: Moment) -> None:
    """Have a job come to another size: `resizing` retires what is too much, and what is missing is asked for."""
    live, allocation = book.live[resize.job], book.records[resize.job].allocation
    assert allocation is not None
    live.resized_at, live.gives_fastest = now.mono, resize.fastest
    if resize.workers != allocation.size:
        live.trend = 1 if resize.workers > allocation.size else -1
        live.speeds.resized()
    book.reallocate(resize.job, now, size=resize.workers, width=resize.shards)
    what = f"shall have {counted(resize.workers, 'worker')} and {counted(resize.shards, 'shard')}"
    book.tell(resize.job, "resizing", f"{what}: {resize.reason}", now)
    book.note(
        "size_changed",
        job=resize.job,
        workers=resize.workers,
        shards=resize.shards,
        reason=resize.reason,
    )


def _reserve(book: Book, start: Start, policy: str) -> None:
    live = book.live[start.job]
    book.attempts += 1
    book.reserve(start.job, Reservation(book.attempts, start))
    book.out.append(AskTerm(start.job, book.attempts, live.highest + 1))
    book.note(
        "place_given",
        policy=policy,
        job=start.job,
        shards=start.shards,
        agents=start.agents,
        reason=start.reason,
    )


def _refill(book: Book, refill: Refill, now: Moment) -> None:
    record, live = book.records[refill.job], book.live[refill.job]
    assert record.allocation is not None
    assert live.reign is not None
    new = named(record, refill.agents)
    live.reign.started.update(dict.fromkeys(new, now.mono))
    allocation = msgspec.structs.replace(
        record.allocation, workers={**record.allocation.workers, **new}
    )
    book.update(
        msgspec.structs.replace(
            record, allocation=allocation, workers_named=record.workers_named + len(new)
        ),
        now,
    )
    if refill.shards:
        resizing.join(book, record.id, refill.shards, now)
    book.note(
        "refilled",
        job=record.id,
        workers=tuple(new),
        agents=refill.agents,
        shards=refill.shards,
        reason=refill.reason,
    )
    parts = [f"{worker} on {agent}" for worker, agent in new.items()] + list(refill.shards)
    book.tell(record.id, "resized", f"gets {', '.join(parts)}; {refill.reason}", now)


def _leave_leavers(book: Book, now: Moment) -> None:
    """Members that are asked to end hand over.

    Workers after what they compute, and others take their place at once; shards by moving their partitions
    (`resizing`), and the leader's part as well (`succession`). Before the job has begun it is placed anew.
    """
    for record, allocation, live, reign in book.holding():
        needed = allocation.shards if reign.begun_at is None else []
        leaving = [s for s in needed if s in book.pool.shards and book.pool.shards[s].leaving]
        if leaving and not live.requeue:
            resizing.requeue(book, record.id, live, reign, f"shard {leaving[0]} is leaving", now)
        if live.reign is None:
            continue
        if book.suspended or live.requeue:
            continue  # its workers are needed until it is checkpointed
        for worker, agent in allocation.workers.items():
            if agent in book.pool.agents and book.pool.agents[agent].leaving:
                book.retire(record.id, worker, f"agent {agent} is leaving", now)


def _mark_stalled(book: Book, now: Moment) -> None:
    """Tell of jobs without any worker; in the end they try again where their trainers did not start."""
    for record, allocation, live, reign in book.holding():
        if allocation.workers:
            reign.bare_at = None
            continue
        if reign.bare_at is None:
            reign.bare_at = now.mono
        elif live.avoid and now.mono - reign.bare_at > book.bounds.again_s:
            book.note("agents_tried_again", job=record.id, agents=tuple(live.avoid))
            live.avoid.clear()
        if record.state is not JobState.WAITING:
            ends = [*reign.exits.values(), *(left.why for left in reign.retiring.values())]
            why = ends[-1] if ends else "its workers are gone"
            where = f" ({elsewhere(live)})" if live.avoid else ""
            whom = "its leader's word" if reign.sent_away else f"a free slot{where}"
            book.change(
                record.id, LifeEvent.STALLED, f"no worker is left, waiting for {whom}: {why}", now
            )


def _cancel_reservations(book: Book) -> None:
    """Places that are not there any more."""
    for job in list(book.reserved_places):
        place = book.live[job].reservation
        assert place is not None
        start = place.start
        ids: list[MemberId] = [*start.shards, *start.agents]
        members = [book.pool.member(member) for member in ids]
        if any(member is None or member.leaving for member in members):
            book.reserve(job, None)


def _explain_suspension(book: Book, now: Moment) -> None:
    for job in book.live:
        record = book.records[job]
        if record.state is JobState.QUEUED and not record.reason.startswith(book.suspended):
            book.explain(job, f"{book.suspended}; not started before the next start", now)
