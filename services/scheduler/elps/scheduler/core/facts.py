"""What a policy is told of the books."""

from __future__ import annotations

from elps.contracts.job import Pool as Size
from elps.contracts.state import JobRecord, JobState
from elps.scheduler.core import deadlines, resizing
from elps.scheduler.core.book import Book
from elps.scheduler.core.events import Moment
from elps.scheduler.core.known import Live
from elps.scheduler.core.policy import (
    AgentFact,
    Facts,
    HeldFact,
    Policy,
    QueuedFact,
    RunningFact,
    ShardFact,
)

LOOK_S = 0.5
"""While no job wants anything, a policy that resizes is asked so often."""


def facts_of(book: Book, policy: Policy, now: Moment) -> Facts | None:
    """What the policy is to know; None when no job wants anything."""
    facts = all_facts(book, now, held=policy.told_held)
    if not facts.queued and not facts.running:
        if not policy.resizes or now.mono - book.asked_at < LOOK_S:
            return None
        book.asked_at = now.mono
    return facts


def all_facts(book: Book, now: Moment, *, held: bool) -> Facts:
    """What a policy can know; with `held` the jobs with a place, too, which not every one asks for."""
    queued = tuple(
        _queued(book.records[job], live)
        for job, live in book.live.items()
        if book.records[job].state is JobState.QUEUED and live.reservation is None
    )
    running = tuple(
        RunningFact(
            record.id,
            allocation.size - len(allocation.workers),
            tuple(allocation.workers.values()),
            tuple(live.avoid),
            resizing.missing_shards(book, record.id),
            resizing.barred(book, record.id, now),
        )
        for record, allocation, live, reign in book.holding()
        if not live.requeue
        and not reign.sent_away
        and (len(allocation.workers) < allocation.size or resizing.missing_shards(book, record.id))
    )
    claims, pool, patience = book.claims(), book.pool, book.bounds.clearing_s
    return Facts(
        shards=tuple(
            ShardFact(
                s,
                pool.shards[s].slots,
                pool.free(s, claims),
                pool.clearing(s, claims, now.mono, patience),
            )
            for s in sorted(pool.shards)
            if not pool.shards[s].leaving
        ),
        agents=tuple(
            AgentFact(
                a,
                pool.agents[a].slots,
                pool.free(a, claims),
                pool.clearing(a, claims, now.mono, patience),
            )
            for a in sorted(pool.agents)
            if not pool.agents[a].leaving
        ),
        queued=queued,
        running=running,
        held=_held(book, now) if held else (),
        retiring=sum(len(reign.retiring) for _, _, _, reign in book.holding()),
        shards_moving=sum(
            max(0, len(allocation.shards) - resizing.width_of(allocation))
            for _, allocation, _, _ in book.holding()
        ),
        settling=book.discovers(now),
        at=now.unix,
    )


def _queued(record: JobRecord, live: Live) -> QueuedFact:
    """What a job asks for: from its least to the size it is pinned at, if it is, else to its most.

    The same as before while nothing has changed of it: there may be thousands.
    """
    if live.told is not None and live.told[0] is record:
        return live.told[1]
    shards, workers, pinned = record.document.shards, record.document.workers, record.pinned
    fact = QueuedFact(
        record.id,
        Size(min=shards.min, max=shards.max if pinned.shards is None else pinned.shards),
        Size(min=workers.min, max=workers.max if pinned.workers is None else pinned.workers),
        fed=record.fed_at is not None,
        group=record.document.group,
        weight=record.document.weight,
        rates=live.speeds.rates,
        left=deadlines.left_of(record),
        since=record.changed_at,
    )
    live.told = record, fact
    return fact


def _held(book: Book, now: Moment) -> tuple[HeldFact, ...]:
    """The jobs with a place, and those whose place is kept until their term is there."""
    claims, out = book.claims(), _about_to_start(book)
    for record, allocation, live, reign in book.holding():
        workers, shards, pinned = record.document.workers, record.document.shards, record.pinned
        runs = book.goal(record.id) == "run" and live.succession is None
        barred = resizing.barred(book, record.id, now)
        others = [s for s, m in book.pool.shards.items() if s not in barred and not m.leaving]
        out.append(
            HeldFact(
                record.id,
                allocation.size,
                _bounds(workers, pinned.workers),
                resizing.width_of(allocation),
                _bounds(shards, pinned.shards),
                fed=record.fed_at is not None,
                weight=record.document.weight * (deadlines.LATE if live.behind else 1.0),
                group=record.document.group,
                rates=live.speeds.rates,
                room=sum(book.pool.free(s, claims) > 0 for s in others),
                gives=tuple(reversed(resizing.targets_of(allocation)[1:])),
                avoid=tuple(live.avoid),
                calm_s=now.mono - live.resized_at,
                movable=runs and reign.begun_at is not None and reign.lead is not None,
                growable=runs,
                left=deadlines.left_of(record),
            )
        )
    return tuple(out)


def _about_to_start(book: Book) -> list[HeldFact]:
    found = []
    for job in book.reserved_places:
        live = book.live[job]
        assert live.reservation is not None
        record, start = book.records[job], live.reservation.start
        asked, pinned = record.document, record.pinned
        found.append(
            HeldFact(
                job,
                len(start.agents),
                _bounds(asked.workers, pinned.workers),
                len(start.shards),
                _bounds(asked.shards, pinned.shards),
                fed=record.fed_at is not None,
                weight=asked.weight,
                group=asked.group,
                rates=live.speeds.rates,
                left=deadlines.left_of(record),
                movable=False,
                growable=False,
                starting=True,
            )
        )
    return found


def _bounds(asked: Size, pinned: int | None) -> Size:
    return asked if pinned is None else Size(min=pinned, max=pinned)
