"""What users ask for: submit, kill, pause, resume, delete, scale, suspend. Each message is answered, a repeat alike."""

from __future__ import annotations

import hashlib
import re

import msgspec

from elps.contracts.codec import encode, loads_document, parse_job
from elps.contracts.errors import InvalidDocument
from elps.contracts.ids import MAX_ID_LENGTH, JobId, id_problem
from elps.contracts.job import JobDocument
from elps.contracts.requests import PolicyCommand, Reply, ScaleCommand, SuspendCommand
from elps.contracts.state import JobRecord, JobState
from elps.scheduler.core import forgetting, life, retention, scaling
from elps.scheduler.core.book import Book
from elps.scheduler.core.events import Answer, JobSubmitted, Moment, Request, UserAsked
from elps.scheduler.core.explaining import explain
from elps.scheduler.core.known import Suspension
from elps.scheduler.core.life import LifeEvent
from elps.scheduler.core.policy import Policy

SUBMITTED = "submitted"

MAX_DOCUMENT_BYTES = 256 * 1024
"""A record with its document, reasons and progress stays well below what the store takes as one value (1 MiB)."""
DERIVED_NAME_LENGTH = 40
DERIVED_HASH_LENGTH = 10

STILL_UP_S = 60.0
"""A stack that was to go down and is still up so long after the answer was not taken down: its jobs go on."""


def read_submission(body: bytes, message_id: str) -> JobDocument:
    """The document of a submit message, its id filled in; `InvalidDocument` names every fault."""
    document = parse_job(loads_document(body))
    try:
        size = len(encode(document))
    except (TypeError, RecursionError) as error:  # JSON is read deeper than it is written
        raise InvalidDocument("job document", [f"document: {error}"]) from None
    if size > MAX_DOCUMENT_BYTES:
        raise InvalidDocument(
            "job document", [f"document: {size} bytes, at most {MAX_DOCUMENT_BYTES} are kept"]
        )
    if document.id is not None:
        return document
    origin = (
        message_id.encode() if message_id else body
    )  # without a message id, the same text is the same job
    return msgspec.structs.replace(document, id=derived_id(document.task, origin))


def derived_id(task: str, origin: bytes) -> JobId:
    """An id for a job without one: the task's name and a hash of the message, so that a repeat gets the same."""
    name = (
        re.sub(r"[^A-Za-z0-9]+", "-", task.rpartition(":")[2].rpartition(".")[2]).strip("-").lower()
    )
    digest = hashlib.sha256(origin).hexdigest()[:DERIVED_HASH_LENGTH]
    job = f"{name[:DERIVED_NAME_LENGTH].rstrip('-') or 'job'}-{digest}"
    assert id_problem(job) is None
    return JobId(job)


def job_submitted(book: Book, event: JobSubmitted, now: Moment) -> None:
    """Make a job of a document, once."""
    document = event.document
    if document.id is None:
        raise InvalidDocument("job document", ["id: missing"])
    job = JobId(document.id)
    known = book.records.get(job)
    if (text := _still_leaving(book, job, known, now)) is not None:
        _answer(book, event.request, False, None, text)
    elif known is not None and known.document == document:
        text = f"already there, {known.state.value}: {known.reason}"
        if known.state.ended:
            text += (
                f"; to train again, choose another id or delete this job first: elps delete {job}"
            )
        _answer(book, event.request, True, job, text)
    elif known is not None:
        text = f"job id {job} is taken by another document; choose another id"
        _answer(book, event.request, False, job, text)
    elif job in book.reserved:
        text = f"job id {job} is taken by a record that this version cannot read; choose another id"
        _answer(book, event.request, False, job, text)
    else:
        record = JobRecord(
            id=job,
            document=document,
            state=JobState.QUEUED,
            reason=SUBMITTED,
            seq=book.next_seq,
            terms=retention.first_term(book.marks),
            first_term=retention.first_term(book.marks),
            submitted_at=now.unix,
            changed_at=now.unix,
            changes=[life.entry(now.unix, JobState.QUEUED, SUBMITTED)],
        )
        book.add(record, now)
        _answer(book, event.request, True, job, "queued")


def user_asked(book: Book, event: UserAsked, now: Moment) -> None:
    """Do what a user asks for, or say why not."""
    if (reply := book.answers.get(event.request)) is not None:
        book.out.append(Answer(event.request, reply))
        return
    body = event.body
    assert not isinstance(body, PolicyCommand)  # of the core, not of a job
    if isinstance(body, SuspendCommand):
        _suspend(book, event.request, body.reason, now)
        return
    known = None if id_problem(body.job) else book.records.get(JobId(body.job))
    if known is not None and known.deleted_at is not None and event.what == "delete":
        _answer(book, event.request, True, None, "already deleted")
        return
    if known is None or known.deleted_at is not None:
        text = f"there is no job {body.job[: MAX_ID_LENGTH + 1]!r}"
        _answer(book, event.request, False, None, text)
        return
    if isinstance(body, ScaleCommand):
        _scale(book, event.request, known, body, now)
        return
    elif event.what == "kill":
        ok, text = _kill(book, known, body.reason, now)
    elif event.what == "delete":
        ok, text = _delete(book, known, body.reason, now)
    elif event.what == "pause":
        ok, text = _pause(book, known, body.reason, now)
    else:
        ok, text = _resume(book, known, body.reason, now)
    _answer(book, event.request, ok, known.id, text)


def explained(book: Book, policy: Policy, request: Request, job: str, now: Moment) -> None:
    """Say why a job has what it has. Asked again it is said anew: it may have changed."""
    known = None if id_problem(job) else book.records.get(JobId(job))
    if known is None or known.deleted_at is not None:
        reply = Reply(ok=False, reason=f"there is no job {job[: MAX_ID_LENGTH + 1]!r}")
    else:
        lines = explain(book, policy, known.id, now)
        reply = Reply(ok=True, job=known.id, state=known.state, reason=known.reason, lines=lines)
    book.out.append(Answer(request, reply))


def _kill(book: Book, record: JobRecord, reason: str, now: Moment) -> tuple[bool, str]:
    if record.state is JobState.KILLED:
        return True, "already killed"
    if record.state.ended:
        return False, f"the job has already {_ended(record)}"
    book.change(record.id, LifeEvent.KILLED, reason or "killed by its user", now)
    return True, "killed"


def _delete(book: Book, record: JobRecord, reason: str, now: Moment) -> tuple[bool, str]:
    if not record.state.ended:
        text = f"the job is {record.state.value}, and only one that has ended can be deleted"
        return False, f"{text}: end it first (elps kill {record.id}), or let it finish"
    book.hide(record.id, reason or "deleted by its user", now)
    book.note("deleted", job=record.id, reason=reason)
    return True, f"deleted; its id can be used again in {retention.QUIET_S:g} s"


def _still_leaving(book: Book, job: JobId, known: JobRecord | None, now: Moment) -> str | None:
    """Why an id cannot be used again yet."""
    if known is not None and known.deleted_at is not None:
        left_s = retention.free_in(known, now.unix)
        when = f"in {left_s:.0f} s" if left_s else "once nobody holds anything of it any more"
        return f"a job {job} was deleted, and its id is free {when}; hand it in again then, or choose another id"
    if known is None and forgetting.taken(book, job):
        return f"something of a former job {job} is being removed; hand it in again in a moment"
    return None


def _pause(book: Book, record: JobRecord, reason: str, now: Moment) -> tuple[bool, str]:
    if record.state.ended:
        return False, f"the job has already {_ended(record)}"
    if record.state is JobState.PAUSED:
        return True, "already paused"
    if record.pausing:
        return True, "already asked to pause at the next iteration boundary"
    reign = book.live[record.id].reign
    if (
        reign is None or reign.begun_at is None
    ):  # nothing was computed under this term: nothing to checkpoint
        book.change(record.id, LifeEvent.PAUSED, reason or "paused by its user", now)
        return True, "paused"
    book.update(msgspec.structs.replace(record, pausing=True), now)
    book.note("pause_asked", job=record.id, reason=reason)
    return True, "pausing at the next iteration boundary"


def _resume(book: Book, record: JobRecord, reason: str, now: Moment) -> tuple[bool, str]:
    if record.state.ended:
        return False, f"the job has already {_ended(record)}"
    if record.state is JobState.PAUSED:
        book.change(record.id, LifeEvent.RESUMED, reason or "resumed by its user", now)
        return True, "queued again, in its old place"
    if record.pausing:
        book.update(msgspec.structs.replace(record, pausing=False), now)
        book.note("pause_taken_back", job=record.id, reason=reason)
        return True, "the pause, not reached yet, is taken back"
    return True, f"not paused: {record.state.value}"


def _scale(
    book: Book, request: Request, record: JobRecord, wish: ScaleCommand, now: Moment
) -> None:
    if record.state.ended:
        _answer(book, request, False, record.id, f"the job has already {_ended(record)}")
    elif problems := scaling.refusal(record, wish):
        _answer(book, request, False, record.id, f"refused: {'; '.join(problems)}", problems)
    else:
        _answer(book, request, True, record.id, scaling.scale(book, record, wish, now))


def _suspend(book: Book, request: Request, reason: str, now: Moment) -> None:
    """Have every running job checkpointed and queued again; the answer follows when that is done."""
    if any(suspension.request == request for suspension in book.suspensions):
        return
    book.suspended = reason or "the stack is going down"
    book.note("suspended", reason=book.suspended)
    for job in book.live:
        book.reserve(job, None)
    jobs = []
    for record, _, live, reign in book.holding():
        live.requeue = book.suspended
        if reign.begun_at is None:
            book.displace(record.id, book.suspended, now)
        else:
            jobs.append(record.id)
    book.suspensions.append(Suspension(request, now.mono + book.bounds.suspend_s, jobs))


def settle_suspensions(book: Book, now: Moment) -> None:
    """Answer suspensions that are complete or past their time."""
    for suspension in list(book.suspensions):
        open_ = [job for job in suspension.jobs if job in book.live and book.live[job].requeue]
        if open_ and now.mono < suspension.deadline:
            continue
        book.suspensions.remove(suspension)
        book.suspended_until = now.mono + STILL_UP_S
        if not open_:
            _answer(
                book,
                suspension.request,
                True,
                None,
                "all jobs are queued again, to go on from their newest checkpoints; none is started any more",
            )
            continue
        problems = [
            f"{job}: not checkpointed within {book.bounds.suspend_s:g} s, {record.state.value}, "
            f"iteration {record.progress.iteration}, newest checkpoint {record.progress.checkpoint}"
            for job, record in ((job, book.records[job]) for job in open_)
        ]
        reason = f"{len(open_)} of {len(suspension.jobs)} jobs are not checkpointed"
        _answer(book, suspension.request, False, None, reason, problems)
    if book.suspended and not book.suspensions and now.mono > book.suspended_until:
        book.note(
            "suspension_over",
            reason=f"the stack is still up {STILL_UP_S:g} s after it was answered",
        )
        book.suspended = ""


def _ended(record: JobRecord) -> str:
    return {
        JobState.FINISHED: "finished",
        JobState.FAILED: "failed",
        JobState.KILLED: "been killed",
    }[record.state]


def _answer(
    book: Book,
    request: Request,
    ok: bool,
    job: JobId | None,
    reason: str,
    problems: list[str] | None = None,
) -> None:
    state = book.records[job].state if job is not None and job in book.records else None
    reply = Reply(ok=ok, job=job, state=state, reason=reason, problems=problems or [])
    book.answer(request, reply)
