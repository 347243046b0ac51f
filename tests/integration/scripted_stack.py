"""A scheduler and a monitor that are played over a bus in memory, for the commands."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from elps.contracts import topology
from elps.contracts.codec import encode, loads, parse_job
from elps.contracts.errors import RetryLater, SetupError
from elps.contracts.ids import JobId, WorkerId
from elps.contracts.messages import JobEvent
from elps.contracts.requests import Answer, Query, Reply
from elps.contracts.state import JobState
from elps.contracts.telemetry import IterationRow, IterationRows, WorkerTiming
from elps.messaging.memory import MemoryBroker, MemoryBus
from elps.messaging.port import Bus, Delivery, Queue
from elps.storage.memory import MemoryStore
from elps.storage.port import Store

JOB = JobId("job-1")


def view(state: str = "running", **more: Any) -> dict[str, Any]:
    return {
        "id": JOB,
        "state": state,
        "reason": "2 workers on 1 shard",
        "task": "mlp",
        "iteration": 3,
        "iterations": 10,
        "loss": 0.25,
        "metrics": {"accuracy": 0.9},
        "metrics_iteration": 2,
        "samples_per_s": 12_345.0,
        "time_left_s": 12.0,
        "workers": ["job-1-w1", "job-1-w2"],
        "ready": ["job-1-w1"],
        "shards": ["shard-1"],
        "submitted_at": 1_700_000_000.0,
        "changed_at": 1_700_000_001.0,
        "document": msgspec.to_builtins(parse_job({"task": "mlp", "passes": 2})),
        "added_by_a_newer_monitor": 1,
        **more,
    }


def row(t: int) -> IterationRow:
    timing = WorkerTiming(
        worker=WorkerId("job-1-w1"),
        samples=32,
        compute_s=0.05,
        pull_s=0.001,
        wait_s=0.002,
        push_s=0.003,
        lease_s=0.0001,
    )
    return IterationRow(
        iteration=t,
        passes=t / 10,
        samples=32,
        skipped=0,
        loss=1 / (t + 1),
        duration_s=0.1,
        at=1_700_000_000 + t * 0.1,
        term=1,
        plan=1,
        lr=0.1,
        workers=[timing],
    )


@dataclass
class Script:
    """The stack as one test wants it. It is also the monitor over HTTP."""

    reply: Reply = field(default_factory=lambda: Reply(ok=True, job=JOB, state=JobState.QUEUED))
    answers: list[dict[str, Any]] = field(default_factory=list)
    """To ``job``, one after the other; the last is given again."""
    lines: list[dict[str, Any]] = field(default_factory=list)
    scheduler: bool = True
    happens: list[tuple[str, str, Any]] = field(default_factory=list)
    """Exchange, routing key and message to publish once ``job`` was asked for the first time."""
    got: list[tuple[str, Any]] = field(default_factory=list)
    records: dict[str, bytes] = field(default_factory=dict)
    prepare: Callable[[Store], Any] | None = None

    @asynccontextmanager
    async def bus(self) -> AsyncIterator[Bus]:
        broker = MemoryBroker()
        stack, user = MemoryBus(broker, "stack"), MemoryBus(broker, "user")

        async def job_message(delivery: Delivery) -> None:
            self.got.append((delivery.routing_key, loads(delivery.body)))
            await stack.respond(delivery, encode(self.reply))

        async def query(delivery: Delivery) -> None:
            asked = msgspec.json.decode(delivery.body, type=Query)
            try:
                result = self.ask(asked)
            except LookupError as error:
                await stack.respond(delivery, encode({"ok": False, "reason": str(error)}))
                return
            body = msgspec.json.encode(
                Answer(ok=True, result=msgspec.Raw(msgspec.json.encode(result)))
            )
            await stack.respond(delivery, body)
            if asked.what == "job":
                happens, self.happens = self.happens, []
                for exchange, key, message in happens:
                    await stack.publish(exchange, key, encode(message))

        if self.scheduler:
            queue = Queue(topology.SCHEDULER_JOBS_QUEUE, ((topology.JOBS, "#"),), durable=True)
            await stack.subscribe(queue, job_message)
        await stack.subscribe(Queue(topology.QUERY, ((topology.QUERY, "#"),)), query)
        yield user
        await user.close()
        await stack.close()

    def ask(self, query: Query) -> Any:
        if query.what == "job":
            if not self.answers:
                raise LookupError(f"there is no job {query.job!r}")
            return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        assert query.what == "logs"
        return self.logs(JOB, query.since, query.limit)

    @asynccontextmanager
    async def store(self) -> AsyncIterator[Store]:
        store = MemoryStore()
        if self.prepare is not None:
            await self.prepare(store)
        yield store

    def monitor(self) -> Script:
        return self

    def jobs(self) -> Any:
        return {"jobs": self.answers, "total": len(self.answers)}

    def job(self, job: str) -> Any:
        return self.ask(Query(what="job", job=job))

    def iterations(self, job: str, since: int = 0, limit: int = 1000) -> Any:
        return {"rows": [msgspec.to_builtins(row(t)) for t in range(3)]}

    def logs(self, job: str, since: int = 0, limit: int = 1000) -> Any:
        return {"lines": [line for line in self.lines if line["n"] >= since][:limit]}

    def recent_events(self, job: str) -> list[Any]:
        event = JobEvent(job=JOB, what="evaluated", at=1_700_000_000.0, metrics={"accuracy": 0.5})
        return [msgspec.to_builtins(event)]


def event(state: JobState, at: float, reason: str = "") -> tuple[str, str, JobEvent]:
    message = JobEvent(job=JOB, what=state.value, at=at, state=state, reason=reason)
    return topology.EVENTS, topology.event_key(JOB, state.value), message


def rows(*numbers: int) -> tuple[str, str, IterationRows]:
    message = IterationRows(job=JOB, rows=[row(t) for t in numbers])
    return topology.TELEMETRY, topology.telemetry_key(JOB), message


class NoStack(Script):
    @asynccontextmanager
    async def bus(self) -> AsyncIterator[Bus]:
        raise SetupError("no stack was found: start one with `make up`")
        yield

    def monitor(self) -> Script:
        raise RetryLater("the monitor at http://127.0.0.1:1 did not answer")
