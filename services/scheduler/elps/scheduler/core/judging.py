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
    book.update(msgspec.structs.replace(record, judged=judged), now)
    if ended or left_of(record) == 0:
        return
    if why := verdict(rules, judged, value, others(book.records.values(), record)):
        book.change(job, LifeEvent.KILLED, f"killed by its own rule: {why}", now)


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
    )


def verdict(rules: Kill, judged: Judged, value: float | None, others: Iterable[Judged]) -> str:
    """Why the job is to be killed; empty: it is not. `value` is that of the newest evaluation."""
    name, shown = rules.metric, "not a finite number" if not _finite(value) else f"{value:.4g}"
    if rules.not_finite and not _finite(value):
        return f"{name} is not finite at iteration {judged.iteration}"
    if rules.patience and judged.without_better >= rules.patience:
        best = f"{judged.best[-1].value:.4g}" if judged.best else "none"
        return f"no better {name} in {judged.without_better} evaluations (best {best}, now {shown})"
    if not rules.below_median or judged.evaluations < rules.below_median:
        return ""
    theirs = [b for b in (best_at(one, judged.iteration) for one in others) if b is not None]
    if len(theirs) < LEAST_OTHERS:
        return ""
    median, own = statistics.median(theirs), best_at(judged, judged.iteration)
    if own is not None and _gain(rules, own, median) >= 0:
        return ""
    had = "no finite value" if own is None else f"{own:.4g}"
    return f"{name} {had} at iteration {judged.iteration}, the median of {len(theirs)} others {median:.4g}"


def best_at(judged: Judged, iteration: int) -> float | None:
    """The best value up to an iteration, of a job that has come as far; else None."""
    if judged.iteration < iteration:
        return None
    return next((b.value for b in reversed(judged.best) if b.iteration <= iteration), None)


def others(records: Iterable[JobRecord], record: JobRecord) -> list[Judged]:
    """Those of its group that were judged by the same measure, whether they still train or not."""
    group, rules = record.document.group, record.document.kill
    return [
        r.judged
        for r in records
        if group
        and r.document.group == group
        and r.id != record.id
        and (r.document.kill.metric, r.document.kill.mode) == (rules.metric, rules.mode)
    ]


def _finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _gain(rules: Kill, value: float | None, other: float) -> float:
    assert value is not None
    return value - other if rules.mode == "max" else other - value
