"""What heartbeats and time tell of jobs and members."""

from __future__ import annotations

from collections.abc import Mapping

from elps.contracts.epoch import Term
from elps.contracts.ids import AgentId, JobId, ShardId, WorkerId
from elps.contracts.messages import AgentBeat, HostedJob, Refusal, ShardBeat, TrainerStatus
from elps.contracts.state import Allocation, JobRecord
from elps.scheduler.core import deadlines, forgetting, resizing, succession, suspicion
from elps.scheduler.core.book import Book
from elps.scheduler.core.events import MemberId, Moment, ShardRefused
from elps.scheduler.core.known import Live, Reign
from elps.scheduler.core.leading import led
from elps.scheduler.core.pool import Seen
from elps.scheduler.core.trainers import give_up, worker_ended

LATE_LIMIT = 3
"""Rounds in a row in which trainers (or shards) are not ready in time."""


# --- shards -----------------------------------------------------------------------------------------------------------


def shard_beaten(book: Book, beat: ShardBeat, now: Moment) -> None:
    """Compare a shard's heartbeat with what it was given."""
    seen = book.pool.shard_beaten(beat, now.mono)
    if seen is Seen.STALE:
        return
    if seen is not Seen.AGAIN:
        book.note("shard_" + seen.value, shard=beat.shard, host=beat.host, slots=beat.slots)
        book.happened(now)
    if seen is Seen.RESTARTED:
        shard_lost(book, beat.shard, f"shard {beat.shard} was restarted", now)
    shown = {hosted.job: hosted for hosted in beat.jobs}
    for hosted in beat.jobs:
        _hosted(book, beat.shard, hosted, now)
    for job, refusal in beat.refused.items():
        _refused(book, beat.shard, job, refusal, now)
    book.pool.count_clearing(beat.shard, book.claims(), now.mono)
    for record, allocation, _, reign in book.holding():
        if beat.shard in reign.hosted and _term(shown.get(record.id)) != allocation.term:
            why = f"shard {beat.shard} no longer holds the job"
            succession.shard_gone(book, record.id, beat.shard, why, now)
        elif allocation.incarnations.get(beat.shard, beat.incarnation) != beat.incarnation:
            why = f"shard {beat.shard} was restarted"
            succession.shard_gone(book, record.id, beat.shard, why, now)


def _term(hosted: HostedJob | None) -> Term | None:
    return None if hosted is None else hosted.term


def _hosted(book: Book, shard: ShardId, hosted: HostedJob, now: Moment) -> None:
    forgetting.hosted(book, hosted.job, hosted.term)
    record, live = book.records.get(hosted.job), book.live.get(hosted.job)
    if record is None or live is None:
        return
    live.highest = max(live.highest, hosted.term.number)
    if record.allocation is None or live.reign is None or shard not in record.allocation.shards:
        return
    if hosted.term == record.allocation.term:
        live.reign.hosted[shard] = None
        live.reign.absent.pop(shard, None)
        if hosted.leads and shard == record.allocation.shards[0]:
            led(book, record.id, live, live.reign, hosted, now)
    elif hosted.term.number >= record.allocation.term.number:
        _forgotten(book, shard, record.id, hosted.term, now)


def _refused(book: Book, shard: ShardId, job: JobId, refusal: Refusal, now: Moment) -> None:
    """A shard does not take a job under the term it was told: what follows goes above the highest it has seen."""
    live = book.live.get(job)
    if live is None:
        return
    live.highest = max(live.highest, refusal.highest.number)
    allocation = book.records[job].allocation
    if allocation is not None and shard in allocation.shards and refusal.term == allocation.term:
        _forgotten(book, shard, job, refusal.highest, now)


def _forgotten(book: Book, shard: ShardId, job: JobId, term: Term, now: Moment) -> None:
    known = f"{term.number}/{term.nonce}"
    why = f"shard {shard} knows term {known}: the store has forgotten its newest second"
    book.displace(job, why, now)


def shard_lost(book: Book, shard: ShardId, why: str, now: Moment) -> None:
    """All jobs with parts on a shard are to be placed anew."""
    for record, allocation, _, _ in book.holding():
        if shard in allocation.shards:
            succession.shard_gone(book, record.id, shard, why, now)


# --- agents -----------------------------------------------------------------------------------------------------------


def agent_beaten(book: Book, beat: AgentBeat, now: Moment) -> None:
    """Compare an agent's heartbeat with what it was given."""
    before = book.pool.agents.get(beat.agent)
    offered = None if before is None else (before.slots, before.leaving)
    seen = book.pool.agent_beaten(beat, now.mono)
    if seen is Seen.STALE:
        return
    if seen is not Seen.AGAIN:
        book.note("agent_" + seen.value, agent=beat.agent, host=beat.host, slots=beat.slots)
    if seen is not Seen.AGAIN or offered != (beat.slots, beat.leaving):
        book.happened(now)
    if seen is Seen.RESTARTED:
        agent_lost(book, beat.agent, f"agent {beat.agent} was restarted", now)
    shown = {status.worker: status for status in beat.trainers}
    for record, allocation, _, reign in book.holding():
        for worker, agent in allocation.workers.items():
            if agent != beat.agent:
                continue
            status = shown.get(worker)
            if status is not None and (status.job, status.term) == (record.id, allocation.term):
                _trainer_shown(book, record.id, reign, status, beat, now)
            elif worker in reign.shown:
                worker_ended(book, record.id, worker, f"agent {agent} no longer has it", now)
            if record.id not in book.live:
                break
        for worker, how in _gone(reign, beat.agent, shown).items():
            _retired(book, record.id, reign, worker, how, now)
    book.pool.count_clearing(beat.agent, book.claims(), now.mono)


def _trainer_shown(
    book: Book, job: JobId, reign: Reign, status: TrainerStatus, beat: AgentBeat, now: Moment
) -> None:
    if status.state != "exited":
        reign.shown[status.worker] = None
    elif beat.leaving:
        why = f"agent {beat.agent} is leaving: {status.exit}"
        book.dismiss(job, status.worker, why, now)
    else:
        how = status.exit or "ended without a word"
        worker_ended(book, job, status.worker, how, now, done=status.done, cut_off=status.cut_off)


def _gone(
    reign: Reign, agent: AgentId, shown: Mapping[WorkerId, TrainerStatus]
) -> dict[WorkerId, str]:
    """Workers on their way out that an agent no longer has running, each with its exit if that is known."""
    at = [worker for worker, left in reign.retiring.items() if left.agent == agent]
    return {
        worker: shown[worker].exit if worker in shown else ""
        for worker in at
        if worker not in shown or shown[worker].state == "exited"
    }


def _retired(book: Book, job: JobId, reign: Reign, worker: WorkerId, how: str, now: Moment) -> None:
    live = book.live.get(job)
    if live is None or live.reign is not reign:
        return  # the job was given up or placed anew meanwhile
    book.retired(job, worker, now)
    if how:
        book.tell_exit(reign, worker, how)


def agent_lost(book: Book, agent: AgentId, why: str, now: Moment) -> None:
    """All trainers of an agent are to be replaced; this is not held against their jobs."""
    for record, allocation, _, reign in book.holding():
        for worker, at in allocation.workers.items():
            if at == agent:
                book.dismiss(record.id, worker, why, now, spared=True)
        for worker in _gone(reign, agent, {}):
            _retired(book, record.id, reign, worker, why, now)


# --- time -------------------------------------------------------------------------------------------------------------


def echo_heard(book: Book, now: Moment) -> None:
    """The way of heartbeats works. If it did not for a while, everyone's time begins anew: the silence was ours."""
    if book.echo_at is None or now.mono - book.echo_at > book.bounds.deaf_s:
        if book.echo_at is not None:
            book.note("heard_again", deaf_s=round(now.mono - book.echo_at, 3))
        book.pool.forgive(now.mono)
        book.started_at = now.mono
        for _, _, _, reign in book.holding():
            reign.placed_at = now.mono
            reign.begun_at = None if reign.begun_at is None else now.mono
            reign.started = dict.fromkeys(reign.started, now.mono)
            reign.absent = dict.fromkeys(reign.absent, now.mono)
            reign.cut_off = dict.fromkeys(reign.cut_off, now.mono)
            reign.stranded_at = reign.astray_at = reign.bare_at = None
    book.echo_at = now.mono


def ticked(book: Book, now: Moment) -> None:
    """Notice what has not happened in time."""
    forgetting.look(book, now)
    book.machines.look(now.mono)
    if book.echo_at is None or now.mono - book.echo_at > book.bounds.deaf_s:
        return  # nothing can be heard: nobody's silence says anything
    suspicion.suspect_late(book, now)
    for agent in suspicion.deserted(book, now):
        _member_lost(book, agent, "is late, and all its trainers have left their leaders", now)
    for member in book.pool.silent(now.mono, book.bounds.lost_s):
        _member_lost(book, member, f"not heard for {book.bounds.lost_s:g} s", now)
    if now.mono - book.started_at > book.bounds.lost_s:
        _absent_lost(book, now)
    for record, allocation, live, reign in book.holding():
        _late(book, record, allocation, live, reign, now)
    for record, allocation, _, reign in book.holding():
        _cut_off(book, record, allocation, reign, now)
    for record, _, live, reign in book.holding():
        _stranded(book, record, live, reign, now)
    resizing.look(book, now)
    deadlines.look(book, now)


def shard_refused(book: Book, event: ShardRefused, now: Moment) -> None:
    """A shard's process has ended, unless another one has taken its place meanwhile."""
    known = book.pool.shards.get(event.shard)
    if known is not None and known.incarnation == event.incarnation:
        _member_lost(book, event.shard, "has ended: connections to it are refused", now)


def _member_lost(book: Book, member: MemberId, why: str, now: Moment) -> None:
    is_shard = member in book.pool.shards
    book.pool.remove(member)
    book.happened(now)
    book.note("member_lost", True, member=member, reason=why)
    if is_shard:
        shard_lost(book, ShardId(member), f"shard {member} {why}", now)
    else:
        agent_lost(book, AgentId(member), f"agent {member} {why}", now)


def _absent_lost(book: Book, now: Moment) -> None:
    """Members that jobs hold from before this scheduler's start, and that have not come back."""
    shards = {
        s: None
        for _, allocation, _, _ in book.holding()
        for s in allocation.shards
        if s not in book.pool.shards
    }
    for shard in shards:
        shard_lost(book, shard, f"shard {shard} was not heard since the scheduler started", now)
    agents = {
        a: None
        for _, alloc, _, _ in book.holding()
        for a in alloc.workers.values()
        if a not in book.pool.agents
    }
    for agent in agents:
        agent_lost(book, agent, f"agent {agent} was not heard since the scheduler started", now)


def _late(
    book: Book, record: JobRecord, allocation: Allocation, live: Live, reign: Reign, now: Moment
) -> None:
    """Shards that do not take the job, trainers that do not become ready."""
    job, start_s = record.id, record.document.limits.start_s
    for shard in [shard for shard in allocation.shards if shard not in reign.hosted]:
        since = reign.absent.setdefault(shard, now.mono)
        reason = f"shard {shard} has not taken the job within {start_s:g} s"
        if resizing.expendable(allocation, reign, shard):
            if now.mono - since > start_s:
                reign.unfit[shard] = now.mono + start_s
                succession.shard_gone(book, job, shard, reason, now)
        elif reign.begun_at is not None:
            if now.mono - max(since, reign.begun_at) > book.bounds.lost_s:
                book.displace(job, f"shard {shard} no longer holds the job", now)
                return
        elif now.mono - max(since, reign.placed_at) > start_s:
            live.late += 1
            if live.late >= LATE_LIMIT:
                book.fail(job, f"{reason}, {live.late} times in a row", now)
            else:
                book.displace(job, reason, now)
            return
    if (
        reign.lead is not None and reign.lead.ready
    ):  # it computes once before it says that it is ready
        start_s += record.document.limits.first_iteration_s
    slow = [w for w in allocation.workers if now.mono - reign.started.get(w, now.mono) > start_s]
    if not slow:
        return
    live.late += 1
    agents = [allocation.workers[worker] for worker in slow]
    for worker, agent in zip(slow, agents, strict=True):
        book.dismiss(
            job, worker, f"trainer {worker} on agent {agent}: not ready within {start_s:g} s", now
        )
    if live.late >= LATE_LIMIT:
        text = f"trainer {slow[-1]} on agent {agents[-1]}: not ready within {start_s:g} s, {live.late} times in a row"
        give_up(book, job, agents, text, now)


def _cut_off(
    book: Book, record: JobRecord, allocation: Allocation, reign: Reign, now: Moment
) -> None:
    """Shards that are there, but not for the leader: the way between the two is broken.

    Where that is so for all of several, it is the leader that is cut off. Else, or where the others cannot do without
    it, they are lost to the job: one at a time, since of two there may be no replica.
    """
    bound_s, others = book.bounds.cut_off_s, allocation.shards[1:]
    over = [s for s, at in reign.cut_off.items() if s in others and now.mono - at > bound_s]
    if len(over) > 1 and len(over) == len(others):
        why = f"leader {allocation.shards[0]} is out of reach of all others for {bound_s:g} s"
        if succession.cut_off(book, record.id, why, now):
            return
    for shard in over[:1]:
        reign.unfit[shard] = now.mono + record.document.limits.start_s
        why = f"shard {shard} is out of reach of the leader for {bound_s:g} s"
        succession.shard_gone(book, record.id, shard, why, now)


def _stranded(book: Book, record: JobRecord, live: Live, reign: Reign, now: Moment) -> None:
    """Jobs that are to pause and do not come to the boundary, since nobody computes what is begun.

    A leader with nothing lent rests without any worker. Otherwise a part of the open iteration may be in some
    partitions already, so it can only be completed or undone: it waits for a worker, and for those that are getting
    ready, but not for one that nobody can give.
    """
    lead = reign.lead
    on_the_way = lead is not None and lead.phase not in ("loading", "waiting")
    if book.goal(record.id) == "run" or on_the_way or reign.started:
        reign.stranded_at = None
    elif reign.stranded_at is None:
        reign.stranded_at = now.mono
    elif now.mono - reign.stranded_at > book.bounds.stranded_s:
        why = "paused by its user" if record.pausing else live.requeue
        what = lead.reason if lead is not None and lead.reason else "its leader says nothing"
        checkpoint = record.progress.checkpoint
        where = (
            "the beginning" if checkpoint is None else f"the checkpoint of iteration {checkpoint}"
        )
        book.displace(
            record.id,
            f"{why}; the iteration boundary was not reached within {book.bounds.stranded_s:g} s ({what}): "
            f"it goes on from {where}",
            now,
        )
