"""Another shard leads a job, which goes on from what its shards have.

A leader that is asked to end gives its partitions away first, as any other shard does (`resizing`). Then, or when one
is lost that holds nothing or whose partitions have replicas, a shard of those that hold the job is named in its place:
under a new term, with new trainers in the same slots, and without the queue. The new leader asks all shards what they
have; should that not be everything after all, it goes back to the newest checkpoint by itself. So what the scheduler
knows of the holders, which may be out of date, decides only what is tried.

The term comes from the store. Until it is there the job goes on as it does; what has changed then is looked at again.
"""

from __future__ import annotations

from elps.contracts.epoch import Epoch
from elps.contracts.ids import AgentId, JobId, ShardId
from elps.contracts.state import Allocation, JobRecord, JobState
from elps.scheduler.core import resizing
from elps.scheduler.core.book import Book
from elps.scheduler.core.events import AskTerm, Moment, TermGranted
from elps.scheduler.core.known import Reign, Succession
from elps.scheduler.core.life import LifeEvent
from elps.scheduler.core.pool import Holding
from elps.scheduler.core.terms import begin_term, named


def look(book: Book, now: Moment) -> None:
    """Name another leader where one that is about to end has given away what it held."""
    for record, allocation, live, reign in book.holding():
        leader = allocation.shards[0]
        known = book.pool.shards.get(leader)
        if book.goal(record.id) == "pause" or book.suspended:
            live.succession = None
            continue
        goes = known is not None and known.leaving and live.succession is None
        lead = reign.lead
        if goes and lead is not None and resizing.obeyed(allocation, lead) and not lead.moving:
            begin(book, record, allocation, reign, f"shard {leader} is leaving", now)


def shard_gone(book: Book, job: JobId, shard: ShardId, why: str, now: Moment) -> None:
    """A shard of a job has lost what it held of it."""
    record, reign = book.records[job], book.live[job].reign
    assert record.allocation is not None
    assert reign is not None
    if shard != record.allocation.shards[0]:
        resizing.shard_gone(book, job, shard, why, now)
    elif book.live[job].succession is not None:
        return  # it is being replaced already
    elif _unheard(record, record.allocation, reign) and book.discovers(now):
        return  # who is to lead instead may not have been heard, either; this is noticed again
    elif book.goal(job) == "pause" or not begin(book, record, record.allocation, reign, why, now):
        resizing.shard_gone(book, job, shard, why, now)


def cut_off(book: Book, job: JobId, why: str, now: Moment) -> bool:
    """A leader is out of reach of all others, which have replicas of what it holds: False when that is not so."""
    record, live = book.records[job], book.live[job]
    assert record.allocation is not None
    assert live.reign is not None
    if live.succession is not None or book.goal(job) == "pause" or not record.document.replicas:
        return False
    return begin(book, record, record.allocation, live.reign, why, now, cut_off=True)


def begin(
    book: Book,
    record: JobRecord,
    allocation: Allocation,
    reign: Reign,
    why: str,
    now: Moment,
    *,
    cut_off: bool = False,
) -> bool:
    """Ask for the term of another leader; False when no shard can be one."""
    if _heir(book, record, allocation, reign, cut_off) is None:
        return False
    live = book.live[record.id]
    book.attempts += 1
    live.succession = Succession(book.attempts, why, cut_off)
    book.out.append(AskTerm(record.id, book.attempts, live.highest + 1))
    book.explain(record.id, f"{why}: another shard is to lead", now)
    book.note("leader_to_be_replaced", job=record.id, leader=allocation.shards[0], reason=why)
    return True


def _heir(
    book: Book, record: JobRecord, allocation: Allocation, reign: Reign, cut_off: bool
) -> ShardId | None:
    """The shard that is to lead: the first that holds a part of the job, if all that hold any are there to go on.

    With replicas it is the first of those that are left, and some of that may lie with the leader that is lost. Who
    holds what is not known then where the leader was lost before this scheduler had heard it.
    """
    old, lead = allocation.shards[0], reign.lead
    there = [s for s in allocation.shards[1:] if s in reign.hosted and s in book.pool.shards]
    there = [s for s in there if not book.pool.shards[s].leaving]
    holders = lead.holders if lead is not None and lead.opened is not None else []
    unheard = _unheard(record, allocation, reign)
    lost = cut_off or _is_lost(book, allocation, old)
    if record.document.replicas and (holders or unheard) and lost:
        return next((s for s in there if s in holders), there[0] if there else None)
    if not holders:
        return None
    left = [s for s in there if s in holders]
    return left[0] if sorted(left) == sorted(holders) else None


def _unheard(record: JobRecord, allocation: Allocation, reign: Reign) -> bool:
    """Whether a job with replicas has begun, and its leader was not heard since: the scheduler itself was restarted."""
    begun = record.state is not JobState.STARTING or allocation.inherits is not None
    return bool(record.document.replicas) and begun and reign.lead is None


def _is_lost(book: Book, allocation: Allocation, shard: ShardId) -> bool:
    """Whether the process that had a part of the job is gone; another one may have its name already."""
    known = book.pool.shards.get(shard)
    return known is None or allocation.incarnations.get(shard) != known.incarnation


def granted(book: Book, event: TermGranted, now: Moment) -> None:
    """Begin the term of another leader, if one is still wanted."""
    live, record = book.live[event.job], book.records[event.job]
    succession, live.succession = live.succession, None
    allocation, reign = record.allocation, live.reign
    if succession is None or allocation is None or reign is None:
        return
    heir = _heir(book, record, allocation, reign, succession.cut_off)
    if heir is None:  # who was to lead is gone meanwhile
        if _is_lost(book, allocation, allocation.shards[0]):
            resizing.shard_gone(book, event.job, allocation.shards[0], succession.why, now)
        return
    others = [s for s in allocation.shards[1:] if s != heir and s in book.pool.shards]
    targets = [s for s in resizing.targets_of(allocation) if s in (heir, *others)]
    new = Allocation(
        term=event.term,
        shards=[heir, *others],
        workers=named(record, _take_over(book, allocation, event.job)),
        size=allocation.size,
        targets=targets,
        width=resizing.width_of(allocation),
        plan=1,
        incarnations={s: i for s, i in allocation.incarnations.items() if s in (heir, *others)},
        inherits=_since(allocation, reign),
    )
    reason = f"{succession.why}: {heir} leads now"
    begin_term(book, event.job, LifeEvent.SUCCEEDED, new, event.secret, reason, now)


def _since(allocation: Allocation, reign: Reign) -> Epoch:
    """The newest opening that is known of; what shards have of an older one is not gone on from."""
    if reign.lead is not None and reign.lead.opened is not None:
        return reign.lead.opened
    return allocation.inherits or Epoch(allocation.term, 0)


def _take_over(book: Book, allocation: Allocation, job: JobId) -> list[AgentId]:
    """Take back what the term before had on its leader and on the agents; where the workers of the new one go."""
    book.pool.take_back(allocation.shards[0], Holding(job), allocation.term)
    agents: list[AgentId] = []
    for worker, agent in allocation.workers.items():
        book.pool.take_back(agent, Holding(job, worker), allocation.term)
        known = book.pool.agents.get(agent)
        if known is not None and not known.leaving:
            agents.append(agent)
    return agents
