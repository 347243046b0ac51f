"""A monitor on the in-memory bus and store, asked over real HTTP, and what is said to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from elps.contracts import topology
from elps.contracts.codec import decode, encode
from elps.contracts.epoch import Term
from elps.contracts.ids import AgentId, JobId, ShardId, WorkerId
from elps.contracts.job import JobDocument
from elps.contracts.messages import AgentBeat, HostedJob, JobEvent, SchedulerBeat, ShardBeat
from elps.contracts.requests import JobCommand, Reply
from elps.contracts.state import Allocation, JobRecord, JobState, Progress
from elps.contracts.telemetry import IterationRow, IterationRows
from elps.messaging.memory import MemoryBroker, MemoryBus
from elps.messaging.port import Delivery, Queue
from elps.monitor.app import Monitor, create
from elps.runtime.service import Context
from elps.storage.memory import MemoryStore

TERM = Term(1, 5)
SECRET = "very-secret-9f31"
WAIT_S = 10.0


@dataclass
class Stack:
    """A running monitor with what surrounds it."""

    broker: MemoryBroker
    bus: MemoryBus
    store: MemoryStore
    monitor: Monitor
    http: httpx.AsyncClient
    seq: int = field(default=0)

    async def publish(
        self, exchange: str, key: str, message: object, message_id: str | None = None
    ) -> None:
        body = message if isinstance(message, bytes) else encode(message)
        await self.bus.publish(exchange, key, body, message_id=message_id)

    async def change(self, record: JobRecord) -> None:
        what = record.state.value
        event = JobEvent(
            job=record.id, what=what, at=record.changed_at, state=record.state, record=record
        )
        await self.publish(topology.EVENTS, topology.event_key(record.id, what), event)

    async def rows(self, job: str, *rows: IterationRow) -> None:
        message = IterationRows(job=JobId(job), rows=list(rows))
        await self.publish(topology.TELEMETRY, topology.telemetry_key(JobId(job)), message)

    async def beats(self, version: str) -> None:
        self.seq += 1
        known: dict[str, Any] = {
            "incarnation": "i",
            "seq": self.seq,
            "host": "h",
            "pid": 1,
            "version": version,
        }
        progress = Progress(iteration=3, iterations=10, loss=0.5)
        hosted = HostedJob(
            job=JobId("j"), term=TERM, leads=True, phase="running", progress=progress
        )
        shard = ShardBeat(
            shard=ShardId("s1"), data_host="127.0.0.1", data_port=1, slots=4, jobs=[hosted], **known
        )
        agent = AgentBeat(agent=AgentId("a1"), slots=1, trainers=[], **known)
        await self.publish(topology.MEMBERS, topology.SHARD_BEAT, shard)
        await self.publish(topology.MEMBERS, topology.AGENT_BEAT, agent)
        await self.publish(
            topology.MEMBERS, topology.SCHEDULER_BEAT, SchedulerBeat(jobs={}, **known)
        )

    async def get(self, path: str, **parameters: Any) -> Any:
        response = await self.http.get(path, params=parameters or None)
        assert response.status_code == 200, response.text
        return response.json()

    async def until(self, holds: Callable[[], Awaitable[bool]]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not await holds():  # noqa: ASYNC110 - asked from outside, over HTTP
                await asyncio.sleep(0.01)

    async def settled(self) -> None:
        """Wait until everything published so far was taken or refused."""

        async def idle() -> bool:
            queues = [s._queue for s in self.monitor_bus.subscriptions]
            return not any(q.ready or any(c.held for c in q.consumers) for q in queues)

        await self.until(idle)

    async def explains(self, job: str, line: str) -> None:
        """Have a scheduler that knows one job, and one thing to say of it."""
        bus = MemoryBus(self.broker, "scheduler")

        async def reply(delivery: Delivery) -> None:
            known = decode(delivery.body, JobCommand).job == job
            await bus.respond(delivery, encode(Reply(ok=known, lines=[line] if known else [])))

        await bus.subscribe(Queue("asked", ((topology.JOBS, topology.EXPLAIN),)), reply)

    @property
    def monitor_bus(self) -> MemoryBus:
        bus = self.monitor.desk.bus
        assert isinstance(bus, MemoryBus)
        return bus


@asynccontextmanager
async def running(
    env: dict[str, str] | None = None,
    store: MemoryStore | None = None,
    broker: MemoryBroker | None = None,
) -> AsyncIterator[Stack]:
    broker, store = broker or MemoryBroker(), store or MemoryStore()
    bus = MemoryBus(broker, "monitor")
    monitor = create(Context(bus=bus, store=store, env={"ELPS_MONITOR_PORT": "0"} | (env or {})))
    stop = asyncio.Event()
    task = asyncio.create_task(monitor.run(stop))
    async with asyncio.timeout(WAIT_S):
        await monitor.ready.wait()
        await monitor.taking.wait()
    try:
        async with httpx.AsyncClient(base_url=monitor.url, trust_env=False, timeout=WAIT_S) as http:
            yield Stack(broker, MemoryBus(broker, "test"), store, monitor, http)
    finally:
        stop.set()
        async with asyncio.timeout(WAIT_S):
            await task


def record(job: str = "j", state: JobState = JobState.RUNNING, **fields: Any) -> JobRecord:
    allocation = Allocation(
        term=TERM, shards=[ShardId("s1")], workers={WorkerId(f"{job}-w1"): AgentId("a1")}
    )
    known: dict[str, Any] = {
        "document": JobDocument(task="softmax", iterations=10),
        "reason": "all are ready",
        "seq": 1,
        "submitted_at": 1.0,
        "changed_at": 10.0,
        "terms": 1,
        "secret": SECRET,
        "allocation": allocation,
    } | fields
    return JobRecord(id=JobId(job), state=state, **known)
