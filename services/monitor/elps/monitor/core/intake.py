"""Bytes from the network into messages that the state may take: decoded, and checked where their types say too little.

Everything wrong raises `InvalidDocument`, so the bus buries the message with the reason.
"""

from __future__ import annotations

from elps.contracts import beats
from elps.contracts.codec import decode
from elps.contracts.errors import InvalidDocument
from elps.contracts.ids import id_problem, parse_job_id
from elps.contracts.messages import JobEvent, MemberMessage, ShardBeat
from elps.contracts.requests import Query
from elps.contracts.state import JobRecord
from elps.contracts.telemetry import IterationRow, IterationRows, TelemetryMessage

MAX_ITERATION = 2**53
MAX_WORKERS = 4096
MAX_METRICS = 64
MAX_NAME_CHARACTERS = 160
"""Worker ids carry a job id and a number; names of metrics and of events come from people."""
MAX_LIMIT = 10_000
MAX_EVENT_ID = 64


def read_beat(body: bytes) -> MemberMessage:
    """A member's heartbeat."""
    beat = beats.read_beat(body)
    if isinstance(beat, ShardBeat):
        for hosted in beat.jobs:
            if hosted.progress is not None:
                _names(hosted.progress.metrics, "metrics")
    return beat


def read_event(body: bytes) -> JobEvent:
    """An event of a job."""
    event = decode(body, JobEvent)
    _require(id_problem(event.job), "job")
    _name(event.what, "what")
    if event.worker is not None:
        _name(event.worker, "worker")
    if event.iteration is not None:
        _within(event.iteration, "iteration")
    if event.term is not None:
        _within(event.term, "term")
    _names(event.metrics, "metrics")
    if event.record is not None and event.record.id != event.job:
        raise InvalidDocument(
            "event", [f"record: it is of job {event.record.id!r}, the event of {event.job!r}"]
        )
    return event


def read_telemetry(body: bytes) -> TelemetryMessage:
    """Iteration rows or log lines."""
    message: TelemetryMessage = decode(body, TelemetryMessage)  # type: ignore[arg-type]
    _require(id_problem(message.job), "job")
    if isinstance(message, IterationRows):
        for row in message.rows:
            _check_row(row)
    else:
        _name(message.worker, "worker")
    return message


def read_record(body: bytes) -> JobRecord:
    """A job's record as it lies in the store."""
    record = decode(body, JobRecord)
    parse_job_id(record.id)
    return record


def read_query(body: bytes) -> Query:
    """A question to the monitor."""
    query = decode(body, Query)
    check_query(query)
    return query


def check_query(query: Query) -> None:
    """Raise `InvalidDocument` with everything that is wrong with a question."""
    problems = []
    if not 0 <= query.since <= MAX_ITERATION:
        problems.append(f"since: expected 0 to {MAX_ITERATION}, value {query.since}")
    if not 1 <= query.limit <= MAX_LIMIT:
        problems.append(f"limit: expected 1 to {MAX_LIMIT}, value {query.limit}")
    if query.job is None and query.what in ("job", "explain", "iterations", "logs"):
        problems.append(f"job: missing; {query.what} is asked of one job")
    if query.job is not None and (problem := id_problem(query.job)):
        problems.append(f"job: {problem}")
    if len(query.after) > MAX_EVENT_ID:
        problems.append(f"after: expected at most {MAX_EVENT_ID} characters")
    if problems:
        raise InvalidDocument("query", problems)


def _check_row(row: IterationRow) -> None:
    _within(row.iteration, "iteration")
    _within(row.term, "term")
    _within(row.n, "n")
    _within(row.samples, "samples")
    workers = [*(timing.worker for timing in row.workers), *row.waiting]
    if len(workers) > MAX_WORKERS:
        raise InvalidDocument(
            "iteration row", [f"workers: {len(workers)}, expected at most {MAX_WORKERS}"]
        )
    for worker in workers:
        _name(worker, "worker")


def _within(value: int, name: str) -> None:
    if not 0 <= value <= MAX_ITERATION:
        raise InvalidDocument("message", [f"{name}: expected 0 to {MAX_ITERATION}, value {value}"])


def _names(values: dict[str, float | None], name: str) -> None:
    if len(values) > MAX_METRICS:
        raise InvalidDocument(
            "message", [f"{name}: {len(values)} of them, expected at most {MAX_METRICS}"]
        )
    for key in values:
        _name(key, name)


def _name(value: str, name: str) -> None:
    if not 1 <= len(value) <= MAX_NAME_CHARACTERS or not value.isprintable():
        raise InvalidDocument(
            "message", [f"{name}: {value[:40]!r} is not a name: 1 to 160 printable characters"]
        )


def _require(problem: str | None, name: str) -> None:
    if problem is not None:
        raise InvalidDocument("message", [f"{name}: {problem}"])
