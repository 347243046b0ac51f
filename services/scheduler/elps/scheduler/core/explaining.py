"""Why a job has what it has, and what would have to happen for it to get more.

The second is not known by rule: the policy itself is asked what it would decide if a slot were free, if another job
were over, if some time had passed. So the answer is right for every policy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from elps.contracts.ids import AgentId, JobId, ShardId
from elps.contracts.state import Allocation, JobRecord, JobState
from elps.scheduler.core import resizing
from elps.scheduler.core.book import Book
from elps.scheduler.core.deadlines import due_s
from elps.scheduler.core.eps import Eps
from elps.scheduler.core.events import Moment
from elps.scheduler.core.facts import all_facts
from elps.scheduler.core.places import counted
from elps.scheduler.core.policy import AgentFact, Decision, Facts, Policy, ShardFact
from elps.scheduler.core.sizing import UNFED
from elps.scheduler.core.trainers import elsewhere

TRIED, ALL_TRIED = 100, 5_000
"""Of so many other jobs, at most, it is tried what would be if they were over; of fewer where there are many jobs, each
of which is in every try: the scheduler has other things to do."""
NAMED = 5
LATER_S = 1e6


def explain(book: Book, policy: Policy, job: JobId, now: Moment) -> list[str]:
    """What there is to say, a line each. The job is known."""
    record = book.records[job]
    lines = [f"{record.state.value}: {record.reason}"]
    if record.state.ended:
        return lines
    if book.suspended:
        return [*lines, f"nothing is started now: {book.suspended}"]
    lines.append(_has(record))
    lines += _bounds(record)
    if (due := due_s(record, now)) is not None:
        when = f"in {due:.0f} s" if due >= 0 else f"{-due:.0f} s ago"
        lines.append(f"it should have ended {when}; jobs that would not in time count more")
    if record.state is JobState.PAUSED:
        return [*lines, "it gets nothing before it is resumed"]
    if record.pausing:
        return [*lines, "it is to pause at the next iteration boundary, and gets nothing more"]
    live = book.live[job]
    if live.reservation is not None:
        return [*lines, f"it is about to start: {live.reservation.start.reason}"]
    if live.avoid:
        lines.append(f"its trainers start wherever a slot is free, but {elsewhere(live)}")
    return lines + _more(book, policy, record, now)


def _has(record: JobRecord) -> str:
    allocation = record.allocation
    if allocation is None:
        return "it holds nothing"
    agents = Counter(allocation.workers.values())
    where = ", ".join(f"{n} on {agent}" for agent, n in sorted(agents.items())) or "none"
    shards = ", ".join(allocation.shards)
    missing = allocation.size - len(allocation.workers)
    lacks = f", {missing} more to come" if missing > 0 else ""
    return f"it has {counted(len(allocation.workers), 'worker')} ({where}{lacks}) and the shards {shards}"


def _bounds(record: JobRecord) -> list[str]:
    document, pinned = record.document, record.pinned
    asked = (("worker", document.workers), ("shard", document.shards))
    between = " and ".join(f"{p.min} to {counted(p.max, what)}" for what, p in asked)
    lines = [f"its document asks for {between}"]
    for what, size in (("worker", pinned.workers), ("shard", pinned.shards)):
        if size is not None:
            lines.append(
                f"its user has pinned it at {counted(size, what)} (elps scale --auto frees it)"
            )
    return lines


def _more(book: Book, policy: Policy, record: JobRecord, now: Moment) -> list[str]:
    """What the policy says of it now, and what would bring it more."""
    facts = all_facts(book, now, held=policy.told_held)
    waits = dict(policy.decide(facts).waits)
    lines = _weighed(book, facts, record) if policy.name == Eps.name else []
    lines += [f"policy {policy.name}: {waits[record.id]}"] if record.id in waits else []
    if (full := _full(record)) and record.id not in waits:
        return [*lines, full]
    if not policy.resizes and record.allocation is not None and not _lacks(book, record):
        return [
            *lines,
            f"policy {policy.name} sets a job's size when it starts: elps scale changes it",
        ]
    then = _single(book, facts, record)
    found = [what for what, those in then if _gets(those, policy.decide(those), record.id)]
    both = _later(_with_shard(_with_worker(facts)))
    if not found and _gets(both, policy.decide(both), record.id):
        found = ["a worker slot and a shard's slot were free"]
    if not found:
        return [
            *lines,
            f"nothing that was tried would bring it more at once under policy {policy.name}",
        ]
    shown = [*found[:NAMED], *([f"{len(found) - NAMED} other cases"] if len(found) > NAMED else [])]
    verb = "start" if record.allocation is None else "get more"
    return [*lines, f"it would {verb} at once if {'; or '.join(shown)}"]


def _weighed(book: Book, facts: Facts, record: JobRecord) -> list[str]:
    """What `eps` goes by: the job's curve, what changes cost it, and its machines."""
    job = next((held for held in facts.held if held.job == record.id and held.movable), None)
    if job is None:
        return []
    live = book.live[record.id]
    known, fit = live.speeds.cost.times, live.curve.fit
    measured = (
        f"measured at {counted(known, 'change')}" if known else "assumed until it is measured"
    )
    rests = f"a change of its size takes {job.cost_s:g} s of training from it ({measured})"
    rests = f"{rests}, and it rests for {job.rests_s:g} s after one"
    if not job.fed:
        learns = f"it has not given its early feedback yet: it counts {UNFED:g} times"
    elif fit is None:
        learns = (
            "too little is known of its loss to tell what it promises: it counts as the median job"
        )
    else:
        learns = f"its loss has come to {fit.at(fit.last):.4g} and tends to {fit.c:.4g}"
        learns = f"{learns}: it counts {job.promise:.2g} times as much as the median job"
    lines = [learns, rests]
    if job.speeds:
        holds = " and holds the others up" if job.held_up else ""
        worth = f"its machines are worth {job.power(len(job.speeds)):.3g} usual ones"
        lines.append(f"{worth}; the slowest is {min(job.speeds):.2g} times as fast as one{holds}")
    return lines


def _full(record: JobRecord) -> str:
    """Whether it can have no more anyway."""
    allocation, document, pinned = record.allocation, record.document, record.pinned
    if allocation is None:
        return ""
    workers = document.workers.max if pinned.workers is None else pinned.workers
    shards = document.shards.max if pinned.shards is None else pinned.shards
    if len(allocation.workers) < workers or len(resizing.targets_of(allocation)) < shards:
        return ""
    return "that is the most it takes"


def _lacks(book: Book, record: JobRecord) -> bool:
    allocation = record.allocation
    assert allocation is not None
    return len(allocation.workers) < allocation.size or resizing.missing_shards(book, record.id) > 0


def _gets(facts: Facts, decision: Decision, job: JobId) -> bool:
    """Whether it is given something."""
    given = {s.job for s in decision.starts} | {r.job for r in decision.refills}
    before = next((held for held in facts.held if held.job == job), None)
    return job in given or any(
        r.job == job and before and (r.workers > before.workers or r.shards > before.shards)
        for r in decision.resizes
    )


def _single(book: Book, facts: Facts, record: JobRecord) -> Iterator[tuple[str, Facts]]:
    """What might happen, and the facts then; what takes least first."""
    yield "some time has passed without a change", replace(_later(facts), at=facts.at + LATER_S)
    where = " on another agent" if book.live[record.id].avoid else ""
    yield f"a worker slot were free{where}", _later(_with_worker(facts))
    yield "one more shard had a free slot", _later(_with_shard(facts))
    for other, allocation, _, _ in book.holding()[: min(TRIED, ALL_TRIED // len(book.live))]:
        if other.id != record.id:
            yield f"job {other.id} were over", _later(_without(facts, other.id, allocation))


def _later(facts: Facts) -> Facts:
    return replace(
        facts, settling=False, held=tuple(replace(h, calm_s=h.calm_s + LATER_S) for h in facts.held)
    )


def _with_worker(facts: Facts) -> Facts:
    return replace(facts, agents=(*facts.agents, AgentFact(AgentId("one more"), 1, 1, 0)))


def _with_shard(facts: Facts) -> Facts:
    held = tuple(replace(h, room=h.room + 1) for h in facts.held)
    return replace(
        facts, held=held, shards=(*facts.shards, ShardFact(ShardId("one more"), 1, 1, 0))
    )


def _without(facts: Facts, job: JobId, allocation: Allocation) -> Facts:
    """As if a job were over and its slots free."""
    at = Counter(allocation.workers.values())
    return replace(
        facts,
        agents=tuple(replace(a, free=a.free + at[a.agent]) for a in facts.agents),
        shards=tuple(
            replace(s, free=s.free + (s.shard in allocation.shards)) for s in facts.shards
        ),
        running=tuple(r for r in facts.running if r.job != job),
        held=tuple(h for h in facts.held if h.job != job),
    )
