"""One pure function for each question. HTTP and the broker give what these return, byte for byte."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from elps.contracts import answers
from elps.contracts.answers import JobDetail, JobSummary
from elps.contracts.errors import ElpsError
from elps.contracts.messages import TrainerStatus
from elps.contracts.requests import Query
from elps.contracts.state import JobState, Pinned
from elps.contracts.telemetry import IterationRow, WorkerTiming
from elps.contracts.texts import shortened
from elps.monitor.core.jobs import Job, led_by
from elps.monitor.core.state import State
from elps.monitor.health import Surroundings, health, staleness

LIST_REASON_CHARACTERS = 500
CURVE_POINTS = 40
ANSWER_CELLS = 8_000
"""Rows and workers' parts in one answer: about 2 MiB of JSON, half of what a message may have."""
ANSWER_LOG_BYTES = 1024 * 1024
EVENT_BYTES = 400
"""About what an event has besides its reason."""
MAX_JOBS_LISTED = 1_000
_MOVING = (JobState.RUNNING,)
_HIDDEN = ("secret", "password", "passwd", "token", "credential", "api_key", "apikey")
HIDDEN = "(hidden)"


class UnknownJob(ElpsError):
    """There is no such job; the text says so with its id."""

    def __init__(self, job: str) -> None:
        self.job = job
        super().__init__(f"there is no job {job!r}")


def ask(state: State, query: Query, now_s: float, around: Surroundings) -> Any:
    """Answer a query that was checked. Raises `UnknownJob`."""
    match query.what:
        case "jobs":
            stale = staleness(state, now_s, around)
            return jobs(state, query.limit, stale, around.store_problem or "")
        case "job":
            stale = staleness(state, now_s, around)
            return job(state, query.job or "", stale, around.store_problem or "")
        case "iterations":
            return iterations(state, query.job or "", query.since, query.limit)
        case "logs":
            return logs(state, query.job or "", query.since, query.limit)
        case "events":
            return events(state, query.job, query.after, query.limit)
        case "workers":
            return workers(state, now_s)
        case "shards":
            return shards(state, now_s)
        case "health":
            return health(state, now_s, around)


def jobs(state: State, limit: int, stale: str = "", store_problem: str = "") -> answers.Jobs:
    """The list of jobs; when there are more than `limit` the oldest ended ones are left out."""
    listed = state.jobs.newest(min(limit, MAX_JOBS_LISTED))
    summaries = [
        _job(job, shortened(_reason(state, job, store_problem), LIST_REASON_CHARACTERS))
        for job in listed
    ]
    return answers.Jobs(jobs=summaries, total=len(state.jobs), stale=stale)


def job(state: State, job_id: str, stale: str = "", store_problem: str = "") -> JobDetail:
    """One job, with its document and its life. Raises `UnknownJob`."""
    found = _find(state, job_id)
    document = msgspec.to_builtins(found.record.document) if found.record is not None else {}
    dismissed = dict(found.hosted.dismissed) if found.hosted is not None and _is_led(found) else {}
    return JobDetail(
        **msgspec.structs.asdict(_job(found, _reason(state, found, store_problem))),
        document=_without_secrets(document),
        dismissed={str(worker): why for worker, why in dismissed.items()},
        changes=found.record.changes if found.record is not None else [],
        stale=stale,
    )


def iterations(state: State, job_id: str, since: int, limit: int) -> answers.Iterations:
    """Finished iterations from number `since` on. Raises `UnknownJob`."""
    history = _find(state, job_id).history
    rows: list[IterationRow] = []
    after, cells, more = since, 0, False
    for row in history.rows.since(since):
        cells += 1 + len(row.workers)
        if len(rows) >= limit or (rows and cells > ANSWER_CELLS):
            more = True
            break
        rows.append(row)
        after = row.iteration + 1
    # One of parameters with N iterations behind them goes with the row before N: the next page begins beyond it.
    told = [
        e
        for e in history.evaluations.since(since + 1 if since else 0)
        if not more or e.iteration <= after
    ]
    return answers.Iterations(job=job_id, rows=rows, evaluations=told, next=after, more=more)


def logs(state: State, job_id: str, since: int, limit: int) -> answers.Output:
    """Lines of a job's trainers from number `since` on. Raises `UnknownJob`.

    A number beyond all that there are is of an earlier run of the monitor, or of a former job: all are new then.
    """
    _find(state, job_id)
    log = state.logs.get(job_id)
    since = since if since <= log.next else 0
    chosen = log.since(since, limit, ANSWER_LOG_BYTES)
    after = chosen[-1].n + 1 if chosen else since
    return answers.Output(
        job=job_id,
        lines=[
            answers.LogLine(n=line.n, worker=line.worker, at=line.at, text=line.text)
            for line in chosen
        ],
        next=after,
        more=after < log.next,
        oldest=log.lines[0].n if log.lines else log.next,
    )


def events(state: State, job_id: str | None, after: str, limit: int) -> answers.Events:
    """Events, of one job or of all, from after the one named `after` on; without it from the oldest on."""
    feed = state.feed
    place, missed = feed.place(after) if after else (feed.oldest, False)
    found: list[answers.Event] = []
    size, more, following = 0, False, after
    for event in feed.since(place):
        if job_id is None or event.job == job_id:
            size += EVENT_BYTES + len(event.reason)
            if len(found) >= limit or (found and size > ANSWER_LOG_BYTES):
                more = True
                break
            found.append(event)
        following = event.id
    return answers.Events(events=found, next=following, more=more, missed=missed)


def workers(state: State, now_s: float) -> answers.Workers:
    """All worker agents with their trainers."""
    listed: list[answers.Agent] = []
    for member, liveness, heard_s in state.members.agents.listed(now_s):
        beat = member.beat
        trainers = [_trainer(state, trainer) for trainer in beat.trainers]
        listed.append(
            answers.Agent(
                agent=beat.agent,
                liveness=liveness,
                heard_s=round(heard_s, 3),
                host=beat.host,
                pid=beat.pid,
                slots=beat.slots,
                used=sum(t.state != "exited" for t in trainers),
                rss_bytes=beat.rss_bytes,
                version=beat.version,
                trainers=trainers,
            )
        )
    return answers.Workers(workers=listed)


def shards(state: State, now_s: float) -> answers.Shards:
    """All shards with the jobs that they take part in."""
    listed: list[answers.Shard] = []
    for member, liveness, heard_s in state.members.shards.listed(now_s):
        beat = member.beat
        hosted = [
            answers.Hosted(
                job=h.job,
                leads=h.leads,
                phase=h.phase if h.leads else None,
                term=h.term.number,
                bytes_held=h.bytes_held,
            )
            for h in beat.jobs
        ]
        listed.append(
            answers.Shard(
                shard=beat.shard,
                liveness=liveness,
                heard_s=round(heard_s, 3),
                host=beat.host,
                pid=beat.pid,
                data_host=beat.data_host,
                data_port=beat.data_port,
                slots=beat.slots,
                used=len(beat.jobs),
                rss_bytes=beat.rss_bytes,
                version=beat.version,
                jobs=hosted,
            )
        )
    return answers.Shards(shards=listed)


# --- parts of the answers ---


def _find(state: State, job_id: str) -> Job:
    found = state.jobs.get(job_id)
    if found is None:
        raise UnknownJob(job_id)
    return found


def _is_led(found: Job) -> bool:
    """Whether the leader's word that is kept is of the reign in force."""
    if found.hosted is None:
        return False
    if found.record is None:
        return True
    allocation = found.record.allocation
    return allocation is not None and led_by(found, allocation.term)


def _reason(state: State, found: Job, store_problem: str) -> str:
    """Why a job is as it is, by its record; and by its leader, what it waits for now.

    A leader that is silent while others are heard is told of: what follows from that the scheduler tells only once it
    has stored it, and the store may be away.
    """
    led = found.hosted if _is_led(found) else None
    reason = found.record.reason if found.record is not None else "its record is not read yet"
    if led is not None and led.reason and found.state is JobState.RUNNING:
        reason = led.reason  # what it waits for now: the record only says why it began to run
    silent_s = state.heard_s - found.led_s
    if led is None or silent_s <= state.members.shards.lost_s:
        return reason
    waits = f"; what follows waits for the store: {store_problem}" if store_problem else ""
    return (
        f"its leader {found.leader} was not heard for {silent_s:.0f} s{waits}; until then: {reason}"
    )


def _job(found: Job, reason: str) -> JobSummary:
    record, progress, state = found.record, found.progress, found.state
    allocation = record.allocation if record is not None else None
    pinned = record.pinned if record is not None else Pinned()
    led = found.hosted if _is_led(found) else None
    samples_per_s, iteration_s = found.history.rate() if state in _MOVING else (None, None)
    metrics, metrics_iteration = progress.metrics, progress.metrics_iteration
    newest = found.history.evaluations.last
    if newest is not None and (metrics_iteration is None or newest.iteration > metrics_iteration):
        metrics, metrics_iteration = newest.metrics, newest.iteration
    ready: list[str] = [*led.ready] if led is not None else []
    if allocation is not None:
        shard_ids: list[str] = [*allocation.shards]
    else:
        shard_ids = [found.leader] if led is not None and found.leader is not None else []
    targets = (allocation.targets or allocation.shards) if allocation is not None else []
    return JobSummary(
        id=found.id,
        state=state,
        reason=reason,
        phase=led.phase if led is not None else None,
        task=record.document.task if record is not None else "",
        group=record.document.group if record is not None else "",
        iteration=progress.iteration,
        iterations=progress.iterations,
        passes=progress.passes,
        samples=progress.samples,
        loss=_loss(found),
        metrics=metrics,
        metrics_iteration=metrics_iteration,
        samples_per_s=_figure(samples_per_s),
        time_left_s=_time_left(found, iteration_s),
        workers=sorted(allocation.workers) if allocation is not None else ready,
        ready=ready,
        shards=shard_ids,
        leader=shard_ids[0] if shard_ids else None,
        targets=[*targets],
        workers_wanted=allocation.size if allocation is not None else 0,
        shards_wanted=(allocation.width or len(targets)) if allocation is not None else 0,
        workers_pinned=pinned.workers,
        shards_pinned=pinned.shards,
        moving=led.moving if led is not None else "",
        replicas=led.replicas if led is not None else "",
        holders=[*led.holders] if led is not None else [],
        submitted_at=record.submitted_at if record is not None else None,
        fed_at=record.fed_at if record is not None else None,
        changed_at=record.changed_at if record is not None else None,
        started_at=record.started_at if record is not None else None,
        ended_at=record.ended_at if record is not None else None,
        training_s=progress.training_s,
        checkpoint=progress.checkpoint,
        skipped_samples=progress.skipped_samples,
        redone_iterations=progress.redone_iterations,
        plan=led.plan if led is not None else 0,
        batches=led.batches if led is not None else 0,
        shares={str(w): n for w, n in led.shares.items()} if led is not None else {},
        shares_reason=led.shares_reason if led is not None else "",
        term=record.terms if record is not None else led.term.number if led is not None else 0,
        loss_curve=[
            (row.iteration, _figure(row.loss)) for row in found.history.rows.curve(CURVE_POINTS)
        ],
    )


def _loss(found: Job) -> float | None:
    """None while the newest iteration's is not finite: the progress keeps the last that was, maybe long ago."""
    row, progress = found.history.rows.last, found.progress
    newest = row is not None and row.iteration + 1 >= progress.iteration
    return (
        None if newest and row is not None and row.samples and row.loss is None else progress.loss
    )


def _time_left(found: Job, iteration_s: float | None) -> float | None:
    """Seconds until the last iteration, or the job's own time limit, at the present pace."""
    if found.state not in _MOVING:
        return None
    progress, bounds = found.progress, []
    if progress.iterations and iteration_s is not None:
        bounds.append(max(0, progress.iterations - progress.iteration) * iteration_s)
    if found.record is not None and (limit_s := found.record.document.stop.time_s) is not None:
        bounds.append(max(0.0, limit_s - progress.training_s))
    return _figure(min(bounds, default=None))


def _trainer(state: State, trainer: TrainerStatus) -> answers.Trainer:
    return answers.Trainer(
        worker=trainer.worker,
        job=trainer.job,
        state=trainer.state,
        pid=trainer.pid,
        exit=trainer.exit,
        rss_bytes=trainer.rss_bytes,
        timing=_newest_timing(state, trainer.job, trainer.worker)
        if trainer.state == "running"
        else None,
    )


def _newest_timing(state: State, job_id: str, worker: str) -> WorkerTiming | None:
    found = state.jobs.get(job_id)
    last = found.history.rows.last if found is not None else None
    return next((t for t in last.workers if t.worker == worker), None) if last is not None else None


def _figure(value: float | None) -> float | None:
    """Six digits of a computed number: nobody reads more, and the list stays small."""
    return float(f"{value:.6g}") if value is not None and math.isfinite(value) else None


def _without_secrets(value: Any) -> Any:
    """The same values, with whatever is named like a secret hidden: documents carry users' own arguments."""
    if isinstance(value, dict):
        return {
            k: HIDDEN if _secret_name(k) and v else _without_secrets(v) for k, v in value.items()
        }
    if isinstance(value, list | tuple):
        return [_without_secrets(v) for v in value]
    return value


def _secret_name(name: object) -> bool:
    return any(word in str(name).lower() for word in _HIDDEN)
