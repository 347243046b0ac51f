"""How a job that runs comes to the size it shall have: more or fewer workers, more or fewer shards, other shards.

The record says what shall be, and everything follows from it after every event, so that a change that comes before
the one before it is done, and a restart in the middle, need no care of their own:

- `size` workers and `width` shards are what the job shall have: as a user has pinned it, else as it was placed.
- `workers` beyond `size` are retired: they finish what they compute. What is missing the policy gives, when it is free.
- `targets` are the shards on which the partitions shall lie. The leader is told until its heartbeat shows that it has
  heard (`obeys`), and moves them while the job trains. A new shard is a member of the job before it is told.
- A shard that is no target belongs to the job, and keeps its slot, until the leader has heard so and says that the
  shard holds nothing (`holders`). Then the leader will not give it anything either, and it is dropped.

Who may die: any shard but the leader, which `succession` sees to, as long as another one is left. The leader is told
which one is gone, until it has heard; it goes on from what the others have, if there were replicas, else from the
newest checkpoint, with the same trainers. A shard that went is not taken again before the leader has heard of that,
lest it takes the new process for the one before. Should a leader need a shard that its job no longer has, the job is
placed anew (`look`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from elps.contracts.ids import JobId, ShardId, WorkerId
from elps.contracts.messages import HostedJob
from elps.contracts.state import Allocation, JobRecord
from elps.scheduler.core.book import Book
from elps.scheduler.core.events import Moment
from elps.scheduler.core.known import Live, Reign


def targets_of(allocation: Allocation) -> list[ShardId]:
    """The shards that the partitions shall lie on."""
    return allocation.targets or allocation.shards


def staying(book: Book, allocation: Allocation) -> list[ShardId]:
    """Those of them that are not about to end."""
    return [s for s in targets_of(allocation) if not _is_leaving(book, s)]


def width_of(allocation: Allocation) -> int:
    """How many shards the job shall have."""
    return allocation.width or len(targets_of(allocation))


def obeyed(allocation: Allocation, lead: HostedJob) -> bool:
    """Whether the leader has heard what shards there shall be."""
    return (lead.obeys or 0) >= allocation.plan


def expendable(allocation: Allocation, reign: Reign, shard: ShardId) -> bool:
    """Whether a job goes on without a shard of it: it holds nothing, as far as its leader has said."""
    if reign.lead is None or not reign.lead.holders or shard == allocation.shards[0]:
        return False
    return shard not in reign.lead.holders


# --- after every event ------------------------------------------------------------------------------------------------


def resize(book: Book, now: Moment) -> None:
    """Aim at the size that each job shall have, and let go of what it does not need any more."""
    for record, _, live, reign in book.holding():
        job = record.id
        if book.goal(job) == "pause" or live.succession is not None:
            continue  # the leader moves nothing any more, and the size is right at the next start
        allocation = _wanted(book, record, now)
        said = _retire_surplus(book, record, allocation, reign, now)
        live.gives_fastest = False
        if reign.lead is not None:
            said += _aim(book, job, reign, now)
            said += _let_go(book, job, reign.lead, now)
        if said:
            book.tell(job, "resized", "; ".join(said), now)


def _wanted(book: Book, record: JobRecord, now: Moment) -> Allocation:
    allocation, pinned = record.allocation, record.pinned
    assert allocation is not None
    size = allocation.size if pinned.workers is None else pinned.workers
    width = width_of(allocation) if pinned.shards is None else pinned.shards
    if (size, width) == (allocation.size, width_of(allocation)):
        return allocation
    return book.reallocate(record.id, now, size=size, width=width)


def _retire_surplus(
    book: Book, record: JobRecord, allocation: Allocation, reign: Reign, now: Moment
) -> list[str]:
    """Those go first that are about to end or not ready yet, then those on the slowest machines, then the newest.

    Or on the fastest, where the policy has said so just now.
    """
    sign = -1.0 if book.live[record.id].gives_fastest else 1.0
    ready = reign.lead.ready if reign.lead is not None else []
    order = {worker: n for n, worker in enumerate(allocation.workers)}
    speeds = dict(zip(order, book.speeds_of(allocation.workers.values()), strict=True))

    def dispensable(worker: WorkerId) -> tuple[bool, bool, float, int]:
        agent = book.pool.agents.get(allocation.workers[worker])
        stays = agent is not None and not agent.leaving
        return stays, worker in ready, sign * speeds[worker], -order[worker]

    surplus = sorted(order, key=dispensable)[: max(0, len(order) - allocation.size)]
    why = _wanted_text(allocation.size)
    for worker in surplus:
        book.retire(record.id, worker, f"of {len(order)} workers {why}", now)
    return [f"gives up {', '.join(sorted(surplus))}: of {len(order)} workers {why}"] * bool(surplus)


def _aim(book: Book, job: JobId, reign: Reign, now: Moment) -> list[str]:
    """Set the targets anew when one is leaving, when there are too many, or when one is wanted back."""
    allocation = _held(book, job)
    before, width = targets_of(allocation), width_of(allocation)
    leaving = [s for s in allocation.shards if _is_leaving(book, s)]
    targets = staying(book, allocation)
    if not targets:
        return []  # nobody to give anything to, yet
    said = [f"shard {s} is leaving" for s in before if s in leaving]
    if len(targets) > width:
        assert reign.lead is not None
        holders, order = reign.lead.holders, allocation.shards
        by_use = sorted(
            targets,
            key=lambda s: (s != order[0], s not in holders, s not in reign.hosted, order.index(s)),
        )
        said.append(
            f"gives up {', '.join(by_use[width:])}: of {len(targets)} shards {_wanted_text(width)}"
        )
        targets = [s for s in targets if s in by_use[:width]]
    back = [
        s for s in allocation.shards if s not in targets and s not in leaving and fit(reign, s, now)
    ]
    if back := back[: max(0, width - len(targets))]:
        said.append(f"takes {', '.join(back)} back")
        targets += back
    if targets != before:
        book.reallocate(job, now, targets=targets, width=width, plan=allocation.plan + 1)
        book.note("targets_changed", job=job, shards=targets, reason="; ".join(said))
    return said


def _let_go(book: Book, job: JobId, lead: HostedJob, now: Moment) -> list[str]:
    """Take back the shards that the leader does not need, and forget those lost ones of which it has heard."""
    allocation = _held(book, job)
    if not lead.holders or not obeyed(allocation, lead):
        return []
    lost = {s: plan for s, plan in allocation.lost.items() if s in lead.holders}
    if lost != allocation.lost:
        book.reallocate(job, now, lost=lost)
    targets = targets_of(allocation)
    gone = [s for s in allocation.shards[1:] if s not in targets and s not in lead.holders]
    for shard in gone:
        book.release(job, shard, now)
        book.note("shard_released", job=job, shard=shard)
    return [f"shard {s} holds nothing any more and is let go" for s in gone]


def narrowed(book: Book, now: Moment) -> None:
    """Jobs that shards leave, and nobody is there to give them one they need, are placed anew from a checkpoint.

    Where shards were lost, the job goes on with those that it has: there is nothing better to be had.
    """
    for record, allocation, live, reign in book.holding():
        targets, least = staying(book, allocation), record.document.shards.min
        if len(targets) >= least or live.requeue or live.succession is not None:
            continue
        if gone := [s for s in allocation.shards if s not in targets]:
            why = f"shard {gone[0]} is leaving and no other is free"
            requeue(book, record.id, live, reign, why, now)


def requeue(book: Book, job: JobId, live: Live, reign: Reign, reason: str, now: Moment) -> None:
    """Have a job checkpointed and queued again; one that has not begun at once."""
    book.note("requeue_asked", job=job, reason=reason)
    live.requeue = reason
    if reign.begun_at is None:
        book.displace(job, reason, now)


# --- what the policy is told, and what it gives -----------------------------------------------------------------------


def missing_shards(book: Book, job: JobId) -> int:
    """Shards to be added; none before the leader was heard, since it may still count on one that is lost."""
    allocation, reign = _held(book, job), book.live[job].reign
    if reign is None or reign.lead is None or book.goal(job) == "pause":
        return 0
    return max(0, width_of(allocation) - len(staying(book, allocation)))


def barred(
    book: Book, job: JobId, lingering: Mapping[JobId, Sequence[ShardId]], now: Moment
) -> tuple[ShardId, ...]:
    """Shards that a job cannot be given now; `lingering` as the pool has it, which is made once for all jobs."""
    allocation, reign = _held(book, job), book.live[job].reign
    assert reign is not None
    known = [*allocation.shards, *allocation.lost, *(reign.lead.holders if reign.lead else ())]
    unfit = [shard for shard in reign.unfit if not fit(reign, shard, now)]
    found = dict.fromkeys((*known, *unfit, *lingering.get(job, ())))
    return tuple(sorted(shard for shard in found if shard in book.pool.shards))


def fit(reign: Reign, shard: ShardId, now: Moment) -> bool:
    """Whether a shard may be asked to take part; not for a while after it has not answered."""
    return now.mono >= reign.unfit.get(shard, now.mono)


def join(book: Book, job: JobId, shards: tuple[ShardId, ...], now: Moment) -> None:
    """Add shards to a job, under the term that it has."""
    allocation = _held(book, job)
    book.reallocate(
        job,
        now,
        shards=[*allocation.shards, *shards],
        targets=[*staying(book, allocation), *shards],
        width=width_of(allocation),
        plan=allocation.plan + 1,
        incarnations={**allocation.incarnations, **incarnations(book, shards)},
    )


def incarnations(book: Book, shards: tuple[ShardId, ...]) -> dict[ShardId, str]:
    """The processes that are the shards now."""
    return {s: book.pool.shards[s].incarnation for s in shards if s in book.pool.shards}


# --- members that go --------------------------------------------------------------------------------------------------


def shard_gone(book: Book, job: JobId, shard: ShardId, why: str, now: Moment) -> None:
    """A shard of a job has lost what it held of it: the job goes on without it, or is placed anew."""
    allocation, reign = _held(book, job), book.live[job].reign
    assert reign is not None
    targets = [s for s in targets_of(allocation) if s != shard]
    nothing = expendable(allocation, reign, shard)
    if not nothing and not (targets and _may_lose(allocation, reign, shard)):
        book.displace(job, f"{why}; the job goes on from its newest checkpoint elsewhere", now)
        return
    plan = allocation.plan + (not nothing or shard in targets_of(allocation))
    width = width_of(allocation)
    book.release(job, shard, now)
    lost = {**allocation.lost, shard: plan}
    book.reallocate(job, now, targets=targets, width=width, plan=plan, lost=lost)
    held = "and held nothing yet" if nothing else "with what it held"
    book.tell(job, "resized", f"{why}, {held}: the job goes on without it", now)


def _may_lose(allocation: Allocation, reign: Reign, shard: ShardId) -> bool:
    """Whether the leader can go on without a shard that holds something: it has begun, and heeds who is gone."""
    lead, leader = reign.lead, allocation.shards[0]
    begun = reign.begun_at is not None and leader in reign.hosted
    return begun and lead is not None and lead.obeys is not None and shard != leader


def look(book: Book, now: Moment) -> None:
    """Notice leaders that need a shard which their job no longer has."""
    for record, allocation, _, reign in book.holding():
        holders = reign.lead.holders if reign.lead is not None else []
        astray = [s for s in holders if s not in allocation.shards]
        if not astray:
            reign.astray_at = None
        elif reign.astray_at is None:
            reign.astray_at = now.mono
        elif now.mono - reign.astray_at > book.bounds.lost_s:
            why = f"shard {astray[0]}, which is gone, held a part of the job"
            book.displace(record.id, f"{why}; it goes on from its newest checkpoint elsewhere", now)


def _held(book: Book, job: JobId) -> Allocation:
    allocation = book.records[job].allocation
    assert allocation is not None
    return allocation


def _wanted_text(number: int) -> str:
    return f"{number} {'is' if number == 1 else 'are'} wanted"


def _is_leaving(book: Book, shard: ShardId) -> bool:
    known = book.pool.shards.get(shard)
    return known is not None and known.leaving
