"""What members are to be told: a function of the books alone.

Nothing is remembered of what was said (the core does that, only to space repeats): as long as a heartbeat does
not show what shall be, it is said again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from elps.contracts.epoch import Term
from elps.contracts.ids import JobId, ShardId, WorkerId
from elps.contracts.messages import (
    Address,
    DirectJob,
    DropJob,
    HostedJob,
    HostJob,
    StartTrainer,
    StopTrainer,
)
from elps.contracts.state import Allocation, JobRecord
from elps.scheduler.core.book import Book
from elps.scheduler.core.events import MemberId, Send
from elps.scheduler.core.known import Live, Reign
from elps.scheduler.core.pool import Holding, Pool
from elps.scheduler.core.resizing import obeyed, targets_of


class Topic(NamedTuple):
    """What a message is about; of several on one topic only the newest matters."""

    member: MemberId
    what: str
    job: JobId
    worker: WorkerId | None = None


def orders(book: Book) -> Iterator[tuple[Topic, Send]]:
    """All that is to be said now: first what shall end, then what shall be."""
    claims = book.claims()
    for member, _ in book.pool.members():
        for holding, term in sorted(
            book.pool.unclaimed(member, claims.get(member, {})).items(), key=_by_name
        ):
            yield _end(book, member, holding, term)
    for record, allocation, live, reign in book.holding():
        yield from _older_terms(book.pool, record.id, allocation)
        leader = book.pool.shards.get(allocation.shards[0])
        addresses = [
            book.pool.shards[s].address for s in allocation.shards if s in book.pool.shards
        ]
        if len(addresses) == len(allocation.shards):
            yield from _host(book.pool, record, allocation, reign, addresses)
        if leader is not None:
            if reign.lead is not None and allocation.shards[0] in reign.hosted:
                yield from _direct(book, record, allocation, reign, reign.lead)
                yield from batch_plan(record, allocation, live, reign)
            yield from _start(book, record, allocation, reign, leader.address)


def batch_plan(
    record: JobRecord, allocation: Allocation, live: Live, reign: Reign
) -> Iterator[tuple[Topic, Send]]:
    """The plan of batches that a job's leader does not show yet, if there is one."""
    leader = allocation.shards[0]
    if reign.lead is None or leader not in reign.hosted or live.batching is None:
        return
    plan = live.batching.unheeded(reign.lead)
    if plan is not None and plan.term == allocation.term:
        yield Topic(leader, "batches", record.id), Send(leader, plan)


def _end(book: Book, member: MemberId, holding: Holding, term: Term) -> tuple[Topic, Send]:
    job, worker = holding
    if worker is None:
        return Topic(member, "drop", job), Send(member, DropJob(job=job, term=term))
    record = book.records.get(job)
    reason = (
        "unknown job" if record is None else f"not needed any more; the job is {record.state.value}"
    )
    return Topic(member, "stop", job, worker), Send(
        member, StopTrainer(job=job, term=term, worker=worker, reason=reason)
    )


def _older_terms(pool: Pool, job: JobId, allocation: Allocation) -> Iterator[tuple[Topic, Send]]:
    """Shards of the job that still hold it under an older term.

    A term that goes on from there is told to them all the same, which ends the older one and keeps what is there.
    """
    if allocation.inherits is not None:
        return
    for shard in allocation.shards:
        hosted = pool.shards[shard].jobs.get(job) if shard in pool.shards else None
        if hosted is not None and hosted.term != allocation.term:
            yield Topic(shard, "drop", job), Send(shard, DropJob(job=job, term=hosted.term))


def _host(
    pool: Pool,
    record: JobRecord,
    allocation: Allocation,
    reign: Reign,
    addresses: list[Address],
) -> Iterator[tuple[Topic, Send]]:
    """To shards that do not show the job yet.

    After it has begun another process in the place of one that died would hold nothing of what the job needs there.
    """
    message = HostJob(
        job=record.id,
        document=record.document,
        term=allocation.term,
        secret=record.secret,
        shards=addresses,
        workers=list(allocation.workers),
        progress=record.progress,
        inherits=allocation.inherits,
        first_term=record.first_term,
    )
    for shard in allocation.shards:
        known = allocation.incarnations.get(shard) == pool.shards[shard].incarnation
        if shard not in reign.hosted and (reign.begun_at is None or known):
            yield Topic(shard, "host", record.id), Send(shard, message)


def _direct(
    book: Book, record: JobRecord, allocation: Allocation, reign: Reign, lead: HostedJob
) -> Iterator[tuple[Topic, Send]]:
    goal: Literal["run", "pause"] = "pause" if book.goal(record.id) == "pause" else "run"
    stopping = lead.phase in ("pausing", "paused")
    admitted = [*allocation.workers, *reign.retiring]
    settled = (
        stopping == (goal == "pause")
        and all(worker in lead.ready for worker in allocation.workers)
        and all(worker in admitted for worker in lead.ready)
        and obeyed(allocation, lead)
    )
    if not settled:
        leader: ShardId = allocation.shards[0]
        targets = [
            book.pool.shards[s].address for s in targets_of(allocation) if s in book.pool.shards
        ]
        told = allocation.plan > 0 and len(targets) == len(targets_of(allocation))
        message = DirectJob(
            job=record.id,
            term=allocation.term,
            goal=goal,
            workers=admitted,
            exits=dict(reign.exits),
            spared=sorted(reign.spared),
            shards=targets if told else [],
            plan=allocation.plan if told else 0,
            lost=sorted(allocation.lost),
        )
        yield Topic(leader, "direct", record.id), Send(leader, message)


def _start(
    book: Book, record: JobRecord, allocation: Allocation, reign: Reign, leader: Address
) -> Iterator[tuple[Topic, Send]]:
    for worker, agent_id in allocation.workers.items():
        agent = book.pool.agents.get(agent_id)
        if agent is None:
            continue
        running = agent.reported.get(Holding(record.id, worker))
        if running is None:
            message = StartTrainer(
                job=record.id,
                document=record.document,
                term=allocation.term,
                worker=worker,
                leader=leader,
                secret=record.secret,
                warm=reign.lead is not None and bool(reign.lead.ready),
            )
            yield Topic(agent_id, "start", record.id, worker), Send(agent_id, message)
        elif running != allocation.term:  # only after the store forgot that this name was given out
            yield _end(book, agent_id, Holding(record.id, worker), running)


def _by_name(unclaimed: tuple[Holding, Term]) -> tuple[str, str]:
    """Jobs before trainers: a member may be heard as a shard and as an agent, if two have the same name."""
    holding = unclaimed[0]
    return holding.job, holding.worker or ""
