"""How a job's term begins, and what its workers are called."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from elps.contracts.ids import AgentId, JobId, WorkerId
from elps.contracts.state import Allocation, JobRecord
from elps.scheduler.core.book import Book
from elps.scheduler.core.events import Moment
from elps.scheduler.core.known import Reign
from elps.scheduler.core.life import LifeEvent


def named(record: JobRecord, agents: Iterable[AgentId]) -> dict[WorkerId, AgentId]:
    """New workers of a job on these agents; no name is used twice in its life, once `workers_named` counts them."""
    first = record.workers_named + 1
    return {WorkerId(f"{record.id}-w{n}"): agent for n, agent in enumerate(agents, first)}


def begin_term(
    book: Book,
    job: JobId,
    how: LifeEvent,
    allocation: Allocation,
    secret: str,
    reason: str,
    now: Moment,
) -> None:
    """Give a job what it holds under a new term; its workers have just been named."""
    record, live = book.records[job], book.live[job]
    count = record.workers_named + len(allocation.workers)
    book.records[job] = msgspec.structs.replace(record, workers_named=count, secret=secret)
    goes_on = how is LifeEvent.SUCCEEDED  # as one that has begun: nobody is to join with nothing
    live.reign = Reign(
        placed_at=now.mono,
        begun_at=now.mono if goes_on else None,
        started=dict.fromkeys(allocation.workers, now.mono),
    )
    live.highest = allocation.term.number
    book.change(job, how, reason, now, allocation)
