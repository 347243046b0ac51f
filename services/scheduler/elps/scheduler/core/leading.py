"""What leaders say of their jobs: phase, progress, trainers ready and given up."""

from __future__ import annotations

from elps.contracts.ids import JobId
from elps.contracts.messages import HostedJob
from elps.contracts.state import JobState, Progress
from elps.contracts.telemetry import IterationTimings
from elps.scheduler.core import feedback, judging
from elps.scheduler.core.batching import Batching
from elps.scheduler.core.book import Book
from elps.scheduler.core.events import Moment
from elps.scheduler.core.known import Live, Reign
from elps.scheduler.core.life import LifeEvent
from elps.scheduler.core.machines import power
from elps.scheduler.core.suspicion import suspect
from elps.scheduler.core.trainers import allocation_of, elsewhere, worker_ended

TRAINING = "training"
"""The reason of a running job while its leader waits for nobody."""


def led(book: Book, job: JobId, live: Live, reign: Reign, hosted: HostedJob, now: Moment) -> None:
    """What the leader says of its job."""
    if reign.sent_away or reign.lead is None or _state(reign.lead) != _state(hosted):
        book.changed()
    reign.lead, reign.sent_away = hosted, False
    reign.cut_off = {s: reign.cut_off.get(s, now.mono) for s in hosted.unreachable}
    for shard in hosted.unreachable:
        suspect(book, shard, now)
    _batches(book, job, live, hosted, now)
    if hosted.phase in ("running", "pausing", "paused") and reign.begun_at is None:
        reign.begun_at = now.mono
    if hosted.progress is not None and hosted.phase != "loading":
        behind = hosted.progress.iteration < book.records[job].progress.iteration
        if not (behind and hosted.phase == "waiting"):  # before it has its checkpoint it knows less
            book.observe(job, now, progress=hosted.progress)
            _measured(book, job, live, hosted, hosted.progress, now)
            feedback.look(book, job, now)
            judging.look(book, job, now, ended=hosted.phase in ("finished", "failed"))
            if job not in book.live:
                return
    if any(reign.started.pop(worker, None) is not None for worker in hosted.ready):
        live.failures = live.late = 0
    for worker, reason in sorted(hosted.dismissed.items()):
        if worker in allocation_of(book, job).workers:
            worker_ended(book, job, worker, f"given up by the leader: {reason}", now)
            if job not in book.live:
                return
    _phase(book, job, live, hosted, now)


def _measured(
    book: Book, job: JobId, live: Live, hosted: HostedJob, progress: Progress, now: Moment
) -> None:
    """How fast it is with those that take part, and what it has come to."""
    workers = allocation_of(book, job).workers
    agents = [workers[w] for w in hosted.ready if w in workers]
    worth = power(book.speeds_of(agents), held_up=book.records[job].document.held_up)
    worth += len(hosted.ready) - len(agents)  # those that are about to leave
    live.speeds.seen(now.mono, progress.iteration, len(hosted.ready), worth)
    live.curve.seen(progress.iteration, progress.loss)


def _state(hosted: HostedJob) -> object:
    """What of a leader's word decides what the job can be given or give up."""
    return hosted.phase, hosted.ready, hosted.holders, hosted.obeys


def _batches(book: Book, job: JobId, live: Live, hosted: HostedJob, now: Moment) -> None:
    """Keep who takes part in a balanced job, which plan its leader obeys, and how fast its machines are."""
    document = book.records[job].document
    if live.batching is None and document.balanced:
        live.batching = Batching(job, document)
    if live.batching is not None:
        workers, known = allocation_of(book, job).workers, book.pool.agents
        kinds = {agent: known[agent].kind for agent in workers.values() if agent in known}
        live.batching.led(hosted, workers, kinds)
        book.machines.measured(now.mono, live.batching.paces(workers), kinds)


def timed(book: Book, timings: IterationTimings) -> bool:
    """Timings of a job's workers; True if that brings a new plan of their batches."""
    live = book.live.get(timings.job)
    if live is None or live.batching is None or live.reign is None or live.reign.lead is None:
        return False
    return live.batching.timed(timings)


def _phase(book: Book, job: JobId, live: Live, hosted: HostedJob, now: Moment) -> None:
    at = f"iteration {book.records[job].progress.iteration}"
    match hosted.phase:
        case "paused":
            if book.records[job].pausing:
                book.change(job, LifeEvent.PAUSED, f"paused by its user at {at}", now)
            elif live.requeue:
                book.change(job, LifeEvent.DISPLACED, f"{live.requeue}; checkpointed at {at}", now)
            else:  # taken back too late: it rests already, and a leader that rests does not go on
                book.displace(job, f"the pause was taken back when it was reached, {at}", now)
        case "finished":
            book.change(job, LifeEvent.FINISHED, hosted.reason or f"finished at {at}", now)
        case "failed":
            book.fail(job, hosted.reason or "the leader gave no reason", now)
        case "waiting":
            _waits(book, job, live, hosted, now)
        case "loading" | "running" | "pausing":
            _works(book, job, live, hosted, now)


def _waits(book: Book, job: JobId, live: Live, hosted: HostedJob, now: Moment) -> None:
    record, reason = book.records[job], hosted.reason or "the leader waits"
    if live.avoid and not allocation_of(book, job).workers:
        reason = f"{reason}; it waits for a free slot, {elsewhere(live)}"
    starting = record.state is JobState.STARTING and not hosted.ready
    if record.state is JobState.WAITING or (starting and allocation_of(book, job).workers):
        book.observe(job, now, reason=reason)
    else:
        book.change(job, LifeEvent.STALLED, reason, now)


def _works(book: Book, job: JobId, live: Live, hosted: HostedJob, now: Moment) -> None:
    """Keep the record's reason true: who is waited for just now."""
    running = book.records[job].state is JobState.RUNNING
    match hosted.phase:
        case "running":
            reason = hosted.reason or TRAINING
            if not any(worker in hosted.ready for worker in allocation_of(book, job).workers):
                return
            if running:
                book.observe(job, now, reason=reason)
            else:
                book.change(job, LifeEvent.TRAINS, reason, now)
        case "pausing" if running or book.records[job].state is JobState.WAITING:
            why = live.requeue or "asked to pause"
            said = f"; {hosted.reason}" if hosted.reason else ""
            reason = f"{why}: on the way to the next iteration boundary{said}"
            book.observe(job, now, reason=reason)
        case "loading" if hosted.reason and (
            running or book.records[job].state is JobState.STARTING
        ):
            book.observe(job, now, reason=hosted.reason)
