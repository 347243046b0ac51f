"""What a policy is told of the books."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set

from elps.contracts.ids import JobId, ShardId
from elps.contracts.job import Pool as Size
from elps.contracts.state import Allocation, JobRecord, JobState
from elps.scheduler.core import deadlines, resizing
from elps.scheduler.core.book import Book
from elps.scheduler.core.curve import HORIZON_S, LossCurve, standings
from elps.scheduler.core.events import MemberId, Moment
from elps.scheduler.core.gain import Rates, time_s
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
from elps.scheduler.core.pool import Agent, Shard

LOOK_S = 0.5
"""While no job wants anything, and nothing has changed but time, a policy that resizes is asked so often."""
WAITS_S = 0.05
"""While one does, and nothing has changed but time; and while none does, and something has. Heartbeats come by the
hundred a second."""


def facts_of(book: Book, policy: Policy, now: Moment) -> Facts | None:
    """What the policy is to know; None while it need not be asked."""
    return all_facts(book, now, held=policy.told_held) if _due(book, policy, now) else None


def _due(book: Book, policy: Policy, now: Moment) -> bool:
    """Whether there is news for jobs that want something, or the policy has not been asked for long."""
    if any(True for _ in _waiting(book)) or any(True for _ in _lacking(book)):
        if book.news == book.heeded and now.mono - book.served_at < WAITS_S:
            return False
        book.served_at, book.heeded = now.mono, book.news
        return True
    pause_s = (
        LOOK_S if book.news == book.heeded else WAITS_S
    )  # slots of a job that has ended lie idle
    if not policy.resizes or now.mono - book.asked_at < pause_s:
        return False
    book.asked_at, book.heeded = now.mono, book.news
    return True


def all_facts(book: Book, now: Moment, *, held: bool) -> Facts:
    """What a policy can know; with `held` the jobs with a place, too, which not every one asks for.

    What is the same for all jobs is worked out once: there may be as many jobs as members.
    """
    claims, pool, patience = book.claims(), book.pool, book.bounds.clearing_s
    lingering = pool.lingering(claims)

    def slots(member: MemberId, known: Shard | Agent) -> tuple[int, int, int]:
        clearing = pool.clearing(member, claims, now.mono, patience)
        return known.slots, pool.free(member, claims), clearing

    shards = tuple(
        ShardFact(s, *slots(s, x)) for s, x in sorted(pool.shards.items()) if not x.leaving
    )
    return Facts(
        shards=shards,
        agents=tuple(
            AgentFact(a, *slots(a, x), book.machines.speed(a, x.kind))
            for a, x in sorted(pool.agents.items())
            if not x.leaving
        ),
        queued=tuple(_queued(record, live) for record, live in _waiting(book)),
        running=tuple(
            RunningFact(
                record.id,
                allocation.size - len(allocation.workers),
                tuple(allocation.workers.values()),
                tuple(live.avoid),
                resizing.missing_shards(book, record.id),
                resizing.barred(book, record.id, lingering, now),
                held_up=record.document.held_up,
                slowest=min(book.speeds_of(allocation.workers.values()), default=1.0),
                least=record.document.workers.min,
            )
            for record, allocation, live in _lacking(book)
        ),
        held=_held(book, {s.shard for s in shards if s.free > 0}, lingering, now) if held else (),
        retiring=sum(len(reign.retiring) for _, _, _, reign in book.holding()),
        shards_moving=sum(
            max(0, len(allocation.shards) - resizing.width_of(allocation))
            for _, allocation, _, _ in book.holding()
        ),
        settling=book.discovers(now),
        at=now.unix,
        quiet_s=now.mono - book.event_at,
    )


def _waiting(book: Book) -> Iterator[tuple[JobRecord, Live]]:
    """Jobs that hold nothing and want something, by order of arrival."""
    for job, live in book.live.items():
        record = book.records[job]
        if record.state is JobState.QUEUED and live.reservation is None:
            yield record, live


def _lacking(book: Book) -> Iterator[tuple[JobRecord, Allocation, Live]]:
    """Jobs that hold something and not all that they shall have, by order of arrival."""
    for record, allocation, live, reign in book.holding():
        if live.requeue or reign.sent_away:
            continue
        if len(allocation.workers) < allocation.size or resizing.missing_shards(book, record.id):
            yield record, allocation, live


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
        held_up=record.document.held_up,
    )
    live.told = record, fact
    return fact


def _held(
    book: Book, free: Set[ShardId], lingering: Mapping[JobId, Sequence[ShardId]], now: Moment
) -> tuple[HeldFact, ...]:
    """The jobs with a place, and those whose place is kept until their term is there. `free`: shards with a slot."""
    out = _about_to_start(book)
    counts = promises(book)
    for record, allocation, live, reign in book.holding():
        workers, shards, pinned = record.document.workers, record.document.shards, record.pinned
        runs = book.goal(record.id) == "run" and live.succession is None
        barred = resizing.barred(book, record.id, lingering, now)
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
                room=len(free) - sum(shard in free for shard in barred),
                gives=tuple(reversed(resizing.targets_of(allocation)[1:])),
                avoid=tuple(live.avoid),
                calm_s=now.mono - live.resized_at,
                movable=runs and reign.begun_at is not None and reign.lead is not None,
                growable=runs,
                left=deadlines.left_of(record),
                speeds=uneven(book.speeds_of(allocation.workers.values())),
                held_up=record.document.held_up,
                cost_s=live.speeds.cost.seconds,
                trend=live.trend,
                promise=counts.get(record.id, 1.0),
            )
        )
    return tuple(out)


def promises(book: Book) -> dict[JobId, float]:
    """What jobs with a place that have given their feedback count for what they are expected to become (`curve`)."""
    found = [
        (record.id, promised(live.curve, live.speeds.rates))
        for record, _, live, _ in book.holding()
        if record.fed_at is not None
    ]
    counts = standings([promise for _, promise in found])
    return {job: count for (job, _), count in zip(found, counts, strict=True)}


def promised(curve: LossCurve, rates: Rates) -> float | None:
    """What a job's curve promises of the same time of training with one worker; None where too little is known."""
    fit = curve.fit
    return None if fit is None or not rates else fit.promise(HORIZON_S / time_s(rates, 1))


def uneven(speeds: tuple[float, ...]) -> tuple[float, ...]:
    """As a fact tells them: none where all are usual ones."""
    return speeds if any(speed != 1.0 for speed in speeds) else ()


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
