"""Shards that may be gone, found out without waiting for their silence.

A process that is killed says nothing any more, and heartbeats show that only after seconds. But its operating system
refuses connections to where it listened, at once and without doubt. So a shard is probed when something hints that it
is gone: its heartbeat is late, its job's leader has lost the link to it, a trainer of a job that it leads has ended. A
machine that is gone, or a process that stands still, refuses nothing: these are found by their silence.

An agent listens nowhere. But its trainers end with it, and their leaders notice that at once: one whose heartbeat is
late, and all of whose trainers are gone, has ended.
"""

from __future__ import annotations

from elps.contracts.ids import AgentId, JobId, ShardId
from elps.scheduler.core.book import Book
from elps.scheduler.core.events import Moment, Probe

PROBE_S = 0.2
"""A shard is not probed more often."""


def suspect(book: Book, shard: ShardId, now: Moment) -> None:
    """Have a look whether a shard is still there."""
    known, last = book.pool.shards.get(shard), book.probed.get(shard)
    if known is None or (last is not None and now.mono - last < PROBE_S):
        return
    book.probed = {s: at for s, at in book.probed.items() if s in book.pool.shards}
    book.probed[shard] = now.mono
    book.out.append(Probe(shard, known.incarnation, known.address.host, known.address.port))


def suspect_leader(book: Book, job: JobId, now: Moment) -> None:
    """A trainer of a job has ended: perhaps since its leader has."""
    allocation = book.records[job].allocation
    if allocation is not None:
        suspect(book, allocation.shards[0], now)


def deserted(book: Book, now: Moment) -> list[AgentId]:
    """Agents whose heartbeats are late, and whose trainers, if they had been ready, have all left their leaders."""
    late = book.pool.silent(now.mono, book.bounds.suspect_s)
    agents = [AgentId(member) for member in late if member in book.pool.agents]
    return [agent for agent in agents if _all_gone(book, agent)]


def _all_gone(book: Book, agent: AgentId) -> bool:
    gone = 0
    for _, allocation, _, reign in book.holding():
        left = reign.lead.gone if reign.lead is not None else []
        for worker in [w for w, at in allocation.workers.items() if at == agent]:
            if worker in left:
                gone += 1
            elif worker not in reign.started:
                return False
    return gone > 0


def suspect_late(book: Book, now: Moment) -> None:
    """Look after shards whose heartbeats are late."""
    for member in book.pool.silent(now.mono, book.bounds.suspect_s):
        if member in book.pool.shards:
            suspect(book, ShardId(member), now)
