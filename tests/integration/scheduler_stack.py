"""A scheduler on the bus and the store within the process, among members that follow a script."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import msgspec

from elps.contracts import topology
from elps.contracts.codec import decode, encode, loads
from elps.contracts.epoch import NO_CHARGE
from elps.contracts.ids import AgentId, JobId, ShardId, WorkerId
from elps.contracts.messages import (
    AgentBeat,
    AgentCommand,
    DirectJob,
    DropJob,
    HostedJob,
    HostJob,
    JobEvent,
    SchedulerBeat,
    ShardBeat,
    ShardCommand,
    StartTrainer,
    StopTrainer,
    TrainerStatus,
)
from elps.contracts.requests import Reply
from elps.contracts.state import JobRecord, JobState, Progress
from elps.messaging.faults import Faults
from elps.messaging.memory import MemoryBroker, MemoryBus
from elps.messaging.port import DEAD_QUEUE, Delivery, Queue
from elps.runtime.service import Context
from elps.scheduler.app import Scheduler, create
from elps.storage.memory import MemoryStore
from elps.storage.port import Store

T = TypeVar("T")

BEAT_S = 0.05
ENV = {"ELPS_BEAT_S": str(BEAT_S), "ELPS_LOST_S": "0.5", "ELPS_SUSPEND_S": "2"}
BOUND_S = 15.0


class Member:
    """A scripted member: says what it holds each `BEAT_S` and after each change."""

    def __init__(self, bus: MemoryBus, name: str, key: str) -> None:
        self.bus, self.name, self.key = bus, name, key
        self.seq = 0
        self.orders: list[Any] = []
        self.alive = True

    async def live(self) -> None:
        queue = topology.command_queue(ShardId(self.name))
        await self.bus.subscribe(Queue(queue, ((topology.COMMANDS, self.name),)), self.take)
        while self.alive:
            await self.say()
            await asyncio.sleep(BEAT_S)

    async def say(self) -> None:
        self.seq += 1
        if self.alive and self.bus.connected:
            await self.bus.publish(topology.MEMBERS, self.key, encode(self.beat()), confirm=False)

    async def take(self, delivery: Delivery) -> None:
        order: Any = msgspec.convert(loads(delivery.body), ShardCommand | AgentCommand)
        self.orders.append(order)
        self.obey(order)
        await self.say()

    def beat(self) -> Any:
        raise NotImplementedError

    def obey(self, order: Any) -> None:
        raise NotImplementedError


class ScriptedShard(Member):
    """Leads its jobs as far as `phase` says."""

    def __init__(self, bus: MemoryBus, name: str, *, phase: str = "running") -> None:
        super().__init__(bus, name, topology.SHARD_BEAT)
        self.phase = phase
        self.obeys = NO_CHARGE
        self.jobs: dict[JobId, HostJob] = {}
        self.goals: dict[JobId, str] = {}
        self.ended: dict[JobId, tuple[str, str]] = {}

    def obey(self, order: Any) -> None:
        match order:
            case HostJob():
                if order.job not in self.jobs or self.jobs[order.job].term < order.term:
                    self.jobs[order.job] = order
            case DropJob():
                self.jobs.pop(order.job, None)
            case DirectJob(job=job, goal=goal):
                self.goals[job] = goal
                if job in self.jobs:
                    self.jobs[job] = msgspec.structs.replace(self.jobs[job], workers=order.workers)

    def beat(self) -> ShardBeat:
        hosted = []
        for job, order in self.jobs.items():
            phase, reason = self.ended.get(job, (self.phase, ""))
            if self.goals.get(job) == "pause" and job not in self.ended:
                phase = "paused"
            hosted.append(
                HostedJob(
                    job=job,
                    term=order.term,
                    leads=order.shards[0].shard == self.name,
                    phase=phase,  # type: ignore[arg-type]
                    reason=reason,
                    ready=order.workers,
                    progress=Progress(iteration=self.seq, checkpoint=1),
                )
            )
        return ShardBeat(
            shard=ShardId(self.name), incarnation="1", seq=self.seq, host="h", pid=1, data_host="d", data_port=7,
            slots=4, jobs=hosted, version="v", obeys=self.obeys,
        )  # fmt: skip


class ScriptedAgent(Member):
    def __init__(self, bus: MemoryBus, name: str, slots: int = 1) -> None:
        super().__init__(bus, name, topology.AGENT_BEAT)
        self.slots = slots
        self.trainers: dict[WorkerId, StartTrainer] = {}

    def obey(self, order: Any) -> None:
        match order:
            case StartTrainer():
                assert order.worker in self.trainers or len(self.trainers) < self.slots
                self.trainers[order.worker] = order
            case StopTrainer():
                self.trainers.pop(order.worker, None)

    def beat(self) -> AgentBeat:
        trainers = [
            TrainerStatus(job=t.job, term=t.term, worker=w, state="running")
            for w, t in self.trainers.items()
        ]
        return AgentBeat(
            agent=AgentId(self.name), incarnation="1", seq=self.seq, host="h", pid=1, slots=self.slots,
            trainers=trainers, version="v",
        )  # fmt: skip


class Stack:
    """Broker, store, a user, members, and the scheduler, which can be stopped and started."""

    def __init__(self, faults: Faults | None = None, store: Store | None = None) -> None:
        self.broker, self.store = MemoryBroker(faults), MemoryStore()
        self.kept: Store = store or self.store  #: what the scheduler writes to
        self.user = MemoryBus(self.broker, "user")
        self.shard = ScriptedShard(MemoryBus(self.broker, "s1"), "s1")
        self.agent = ScriptedAgent(MemoryBus(self.broker, "a1"), "a1")
        self.events: list[JobEvent] = []
        self.beats: list[SchedulerBeat] = []
        self.dead: list[Delivery] = []
        self.changed = asyncio.Condition()
        self.tasks: asyncio.TaskGroup
        self._stop = asyncio.Event()
        self._running: asyncio.Task[None] | None = None

    async def start_scheduler(self) -> None:
        self._stop = asyncio.Event()
        bus = MemoryBus(self.broker, "scheduler")

        async def serve() -> None:
            await create(Context(bus=bus, store=self.kept, env=ENV)).run(self._stop)
            await bus.close()

        self._running = self.tasks.create_task(serve())

    def holder(self) -> str:
        """Of the lease."""
        return self.store._leases[topology.CHARGE][0].holder

    async def stop_scheduler(self) -> None:
        self._stop.set()
        if self._running is not None:
            await self._running
            self._running = None

    async def note(self, delivery: Delivery) -> None:
        if delivery.exchange == topology.EVENTS:
            self.events.append(decode(delivery.body, JobEvent))
        elif delivery.routing_key == topology.SCHEDULER_BEAT:
            self.beats.append(decode(delivery.body, SchedulerBeat))
        else:
            self.dead.append(delivery)
        async with self.changed:
            self.changed.notify_all()

    async def until(self, what: Callable[[], bool]) -> None:
        async with asyncio.timeout(BOUND_S), self.changed:
            await self.changed.wait_for(what)

    async def until_stored(
        self, read: Callable[[Store], Awaitable[T]], fits: Callable[[T], bool]
    ) -> None:
        """Look into the store at each of the scheduler's heartbeats."""
        async with asyncio.timeout(BOUND_S):
            while not fits(await read(self.kept)):
                seen = len(self.beats)
                await self.until(lambda seen=seen: len(self.beats) > seen)  # type: ignore[misc]

    async def ask(self, what: str, timeout_s: float = BOUND_S, **body: Any) -> Reply:
        answer = await self.user.request(topology.JOBS, what, encode(body), timeout_s=timeout_s)
        return decode(answer, Reply)

    async def submit(self, job: str, **fields: Any) -> Reply:
        return await self.ask("submit", id=job, task="linear", iterations=5, **fields)

    async def record(self, job: str) -> JobRecord:
        value = await self.kept.hash_get(topology.JOB_INDEX, job)
        assert value is not None
        return decode(value, JobRecord)

    async def reached(self, job: str, state: JobState) -> None:
        await self.until(lambda: any((e.job, e.state) == (job, state) for e in self.events))


@asynccontextmanager
async def running_stack(
    faults: Faults | None = None, store: Store | None = None
) -> AsyncIterator[Stack]:
    stack = Stack(faults, store)
    events = Queue(
        "test.events", ((topology.EVENTS, "#"), (topology.MEMBERS, topology.SCHEDULER_BEAT))
    )
    async with asyncio.TaskGroup() as tasks:
        stack.tasks = tasks
        await stack.user.subscribe(events, stack.note)
        await stack.user.subscribe(Queue(DEAD_QUEUE, durable=True), stack.note)
        await stack.start_scheduler()
        await stack.until(lambda: bool(stack.beats))  # its queues are declared
        members = [tasks.create_task(m.live()) for m in (stack.shard, stack.agent)]
        yield stack
        await stack.stop_scheduler()
        for member in (stack.shard, stack.agent):
            member.alive = False
        await asyncio.wait(members)


@asynccontextmanager
async def another(stack: Stack, store: Store | None = None) -> AsyncIterator[Scheduler]:
    """One more scheduler, that stands by."""
    bus, stop = MemoryBus(stack.broker, "another"), asyncio.Event()
    service = create(Context(bus=bus, store=store or stack.kept, env=ENV))
    task = asyncio.create_task(service.run(stop))
    await stack.until(lambda: any(beat.charge is None for beat in stack.beats))
    yield service
    stop.set()
    await task
    await bus.close()


async def say_often(member: Member) -> None:
    while True:
        await member.say()
        await asyncio.sleep(BEAT_S)
