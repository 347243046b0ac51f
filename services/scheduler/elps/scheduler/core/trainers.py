"""Trainers that end, and when that is their job's fault or their agent's."""

from __future__ import annotations

from collections.abc import Iterable

from elps.contracts.ids import AgentId, JobId, WorkerId
from elps.contracts.state import Allocation
from elps.scheduler.core.book import Book
from elps.scheduler.core.events import Moment
from elps.scheduler.core.known import Live
from elps.scheduler.core.suspicion import suspect_leader

FAILURE_LIMIT = 5
"""Trainers in a row that end before they are ready: then the fault is not theirs."""
APART_S = 3.0
"""Between two of them that were cut off and are counted."""


def worker_ended(
    book: Book,
    job: JobId,
    worker: WorkerId,
    how: str,
    now: Moment,
    *,
    done: bool = False,
    cut_off: bool = False,
) -> None:
    """A trainer has ended; count it if it never was ready, and fail the job if that cannot go on.

    `done`: its leader had nothing more for it. Most likely the job is over and the leader's word of that is on its way,
    since its heartbeats do not come by the agent's way: until it is heard nobody takes the trainer's place.

    `cut_off`: the network let it down. A failure of that ends all that are started until it is over: of those that end
    in a short time one is counted.
    """
    live = book.live[job]
    suspect_leader(book, job, now)
    agent = allocation_of(book, job).workers[worker]
    early = live.reign is not None and worker in live.reign.started
    why = f"trainer {worker} on agent {agent}: {how}"
    book.dismiss(job, worker, why, now, spared=cut_off)
    if done and live.reign is not None:
        asked = live.reign.sent_away
        live.reign.sent_away = True
        if asked:
            return  # of those that end before the word can be there one is counted
    if not early:
        return
    if cut_off:
        if live.cut_off_at is not None and now.mono - live.cut_off_at < APART_S:
            return
        live.cut_off_at = now.mono
    live.failures += 1
    if live.failures >= FAILURE_LIMIT:
        text = f"{live.failures} trainers in a row ended before they were ready; the last, {worker} on {agent}: {how}"
        give_up(book, job, [agent], text, now)


def give_up(book: Book, job: JobId, agents: Iterable[AgentId], reason: str, now: Moment) -> None:
    """Fail a job, or, while others of its trainers work, only stop trying on these agents.

    They are tried again when no worker has been left for a while (`placing`), and then the job may fail of it.
    """
    live = book.live[job]
    live.failures = live.late = 0
    lead = live.reign.lead if live.reign is not None else None
    if lead is None or not any(worker in lead.ready for worker in allocation_of(book, job).workers):
        book.fail(job, reason, now)
        return
    for agent in agents:
        live.avoid[agent] = None
        book.note("agent_avoided", True, job=job, agent=agent, reason=reason)


def elsewhere(live: Live) -> str:
    """Where none of a job's trainers is started, for people; empty: they are wherever a slot is free."""
    if not live.avoid:
        return ""
    agents = ", ".join(sorted(live.avoid))
    return f"not on {agents}, where {FAILURE_LIMIT} in a row did not get ready"


def allocation_of(book: Book, job: JobId) -> Allocation:
    """What a job holds that is known to hold something."""
    allocation = book.records[job].allocation
    assert allocation is not None
    return allocation
