"""Messages and records of one job as the monitor's tests use them."""

from __future__ import annotations

from typing import Any

import msgspec
from rows import iteration_row

from elps.contracts.epoch import Term
from elps.contracts.ids import AgentId, JobId, ShardId, WorkerId
from elps.contracts.job import JobDocument
from elps.contracts.messages import (
    AgentBeat,
    HostedJob,
    JobEvent,
    SchedulerBeat,
    ShardBeat,
    TrainerStatus,
)
from elps.contracts.requests import Query
from elps.contracts.state import Allocation, JobRecord, JobState, Progress
from elps.contracts.telemetry import IterationRow, IterationRows
from elps.monitor import queries
from elps.monitor.core.state import State
from elps.monitor.health import Surroundings

TERM = Term(1, 77)
AROUND = Surroundings(broker=True, store_problem=None, version="1")
SECRET = "very-secret-9f31"


def record(
    job: str = "j", state: JobState = JobState.RUNNING, changed_at: float = 10.0, **fields: Any
) -> JobRecord:
    known: dict[str, Any] = {
        "document": JobDocument(task="softmax", iterations=100),
        "reason": "all are ready",
        "seq": 1,
        "submitted_at": 1.0,
        "started_at": 2.0,
        "terms": 1,
        "secret": SECRET,
        "allocation": Allocation(
            term=TERM,
            shards=[ShardId("s1"), ShardId("s2")],
            workers={WorkerId("j-w1"): AgentId("a1")},
        ),
    } | fields
    return JobRecord(id=JobId(job), state=state, changed_at=changed_at, **known)


def change(found: JobRecord) -> JobEvent:
    return JobEvent(
        job=found.id, what=found.state.value, at=found.changed_at, state=found.state, record=found
    )


def bare_beat(
    seq: int,
    *jobs: HostedJob,
    incarnation: str = "i",
    shard: str = "shard-1",
    leaving: bool = False,
) -> ShardBeat:
    """A shard's heartbeat, with no jobs unless some are given."""
    return ShardBeat(
        shard=ShardId(shard),
        incarnation=incarnation,
        seq=seq,
        host="h",
        pid=1,
        data_host="127.0.0.1",
        data_port=5,
        slots=4,
        jobs=list(jobs),
        version="1",
        leaving=leaving,
    )


def shard_beat(
    seq: int,
    *,
    job: str = "j",
    term: Term = TERM,
    iteration: int = 0,
    phase: Any = "running",
    shard: str = "s1",
    reason: str = "",
) -> ShardBeat:
    hosted = HostedJob(
        job=JobId(job),
        term=term,
        leads=True,
        phase=phase,
        reason=reason,
        plan=3,
        bytes_held=4096,
        ready=[WorkerId(f"{job}-w1")],
        progress=Progress(iteration=iteration, iterations=100, loss=0.25, training_s=1.0),
    )
    return bare_beat(seq, hosted, shard=shard)


def agent_beat() -> AgentBeat:
    trainer = TrainerStatus(
        job=JobId("j"), term=TERM, worker=WorkerId("j-w1"), state="running", pid=9
    )
    return AgentBeat(
        agent=AgentId("a1"),
        incarnation="i",
        seq=1,
        host="h",
        pid=1,
        slots=2,
        trainers=[trainer],
        version="1",
    )


def scheduler_beat(version: str = "1") -> SchedulerBeat:
    return SchedulerBeat(incarnation="i", seq=1, host="h", pid=1, jobs={}, version=version)


def row(iteration: int, workers: int = 1, duration_s: float = 0.5, term: int = 1) -> IterationRow:
    loss, at = 1.0 / (iteration + 1), float(iteration)
    return iteration_row(iteration, workers, loss=loss, duration_s=duration_s, at=at, term=term)


def rows(job: str, *several: IterationRow) -> IterationRows:
    return IterationRows(job=JobId(job), rows=list(several))


def plain(answer: Any) -> Any:
    """An answer as it goes out."""
    return msgspec.to_builtins(answer)


def view(state: State, job: str = "j") -> Any:
    return plain(queries.ask(state, Query(what="job", job=job), 0.0, AROUND))


def leaders(what: str, at: float, term: int | None, **fields: Any) -> JobEvent:
    return JobEvent(job=JobId("j"), what=what, at=at, term=term, **fields)
