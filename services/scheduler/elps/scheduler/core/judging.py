"""Rules in a job by which it is killed: no better value for long, worse than its group, not finite.

What a job tells counts only as far as it is a finite number: anything else is no better value, and is compared with
nobody's.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable

import msgspec

from elps.contracts.ids import JobId
from elps.contracts.job import Kill
from elps.contracts.state import Best, JobRecord, Judged
from elps.scheduler.core.book import Book
from elps.scheduler.core.deadlines import left_of
from elps.scheduler.core.events import Moment
from elps.scheduler.core.life import LifeEvent

LEAST_OTHERS = 3
"""A median of fewer says little."""
BEST_KEPT = 64


def look(book: Book, job: JobId, now: Moment, *, ended: bool) -> None:
    """Take a new evaluation into account, once, and kill the job if one of its rules says so.

    One that has `ended`, as its leader says, or that has no iterations left is not killed any more, and keeps its
    checkpoints; its last evaluation counts for the others of its group.
    """
    record = book.records[job]
    rules, progress = record.document.kill, record.progress
    at = progress.metrics_iteration
    if not (rules.asks or record.document.group) or at is None or at <= record.judged.iteration:
        return
    if rules.metric not in progress.metrics:
        if rules.asks and record.judged.iteration < 0:
            known = ", ".join(progress.metrics) or "none"
            why = f"its rules look at {rules.metric!r}, which is not evaluated; known: {known}"
            book.tell(job, "rules_do_not_apply", why, now)
        judged = msgspec.structs.replace(record.judged, iteration=at)
        book.update(msgspec.structs.replace(record, judged=judged), now)
        return
    value = progress.metrics[rules.metric]
    judged = after(record.judged, rules, at, value)
    record = msgspec.structs.replace(record, judged=judged)
    book.update(record, now)
    if ended or left_of(record) == 0:
        return
    mates = _mates(book, record) if _compares(rules, judged) else []
    theirs = [mate.judged for mate in mates if _measure(mate) == _measure(record)]
    if why := verdict(rules, judged, value, theirs):
        book.change(job, LifeEvent.KILLED, f"killed by its own rule: {why}", now)
    elif len(mates) >= LEAST_OTHERS > len(theirs) and not judged.apart:
        judged = msgspec.structs.replace(judged, apart=True)
        book.update(msgspec.structs.replace(record, judged=judged), now)
        book.tell(job, "rules_do_not_apply", _apart(record, len(mates), len(theirs)), now)


def _mates(book: Book, record: JobRecord) -> list[JobRecord]:
    """The others of its group, whether they still train or not."""
    group = record.document.group
    return [r for r in book.records.values() if r.document.group == group and r.id != record.id]


def _measure(record: JobRecord) -> tuple[str, str]:
    """What is kept of a job's evaluations: only jobs of one measure can be compared."""
    return record.document.kill.metric, record.document.kill.mode


def _apart(record: JobRecord, mates: int, same: int) -> str:
    metric, mode = _measure(record)
    return (
        f"below_median compares by {metric!r} and mode {mode!r}, and of the {mates} others in group "
        f"{record.document.group!r} {same} have these in their [kill]: it asks for {LEAST_OTHERS}"
    )


def after(before: Judged, rules: Kill, iteration: int, value: float | None) -> Judged:
    """With one more evaluation."""
    best = list(before.best)
    better = _finite(value) and (not best or _gain(rules, value, best[-1].value) > rules.min_delta)
    if better:
        assert value is not None
        best.append(Best(iteration, float(value)))
        if len(best) > BEST_KEPT:
            best = [*best[:-1:2], best[-1]]
    return Judged(
        iteration=iteration,
        evaluations=before.evaluations + 1,
        without_better=0 if better else before.without_better + 1,
        best=best,
        apart=before.apart,
    )


def verdict(rules: Kill, judged: Judged, value: float | None, others: Iterable[Judged]) -> str:
    """Why the job is to be killed; empty: it is not. `value` is that of the newest evaluation."""
    name, shown = rules.metric, "not a finite number" if not _finite(value) else f"{value:.4g}"
    if rules.not_finite and not _finite(value):
        return f"{name} is not finite at iteration {judged.iteration}"
    if rules.patience and judged.without_better >= rules.patience:
        best = f"{judged.best[-1].value:.4g}" if judged.best else "none"
        return f"no better {name} in {judged.without_better} evaluations (best {best}, now {shown})"
    if not _compares(rules, judged):
        return ""
    theirs = [b for b in (best_at(one, judged.iteration) for one in others) if b is not None]
    if len(theirs) < LEAST_OTHERS:
        return ""
    median, own = statistics.median(theirs), best_at(judged, judged.iteration)
    if own is not None and _gain(rules, own, median) >= 0:
        return ""
    had = "no finite value" if own is None else f"{own:.4g}"
    return f"{name} {had} at iteration {judged.iteration}, the median of {len(theirs)} others {median:.4g}"


def _compares(rules: Kill, judged: Judged) -> bool:
    """Whether the job has come so far that it is compared with others."""
    return 0 < rules.below_median <= judged.evaluations


def best_at(judged: Judged, iteration: int) -> float | None:
    """The best value up to an iteration, of a job that has come as far; else None."""
    if judged.iteration < iteration:
        return None
    return next((b.value for b in reversed(judged.best) if b.iteration <= iteration), None)


def _finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _gain(rules: Kill, value: float | None, other: float) -> float:
    assert value is not None
    return value - other if rules.mode == "max" else other - value
