"""Services composed in one process, as many as a test asks for, on a bus and store in memory or on the real ones.

Unlike `elps run`, whose composition it borrows the members from, a member can be stopped, crash and start again while
the others go on: what is kept in the broker and the store outlives all of them.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec
from jobs import Job

from elps.cli.composing import Create, Member, installed_services
from elps.client.control import Client
from elps.contracts.codec import decode, parse_job
from elps.contracts.job import JobDocument
from elps.contracts.messages import AgentBeat, MemberMessage, ShardBeat
from elps.contracts.requests import Reply
from elps.contracts.topology import AGENT_BEAT, MEMBERS, SCHEDULER_BEAT, SHARD_BEAT
from elps.messaging.amqp import AmqpBus
from elps.messaging.memory import MemoryBroker, MemoryBus
from elps.messaging.port import Bus, Delivery, Queue
from elps.runtime.service import Context
from elps.storage.memory import MemoryStore
from elps.storage.port import Store
from elps.storage.redis import RedisStore

TASKS = Path(__file__).parent / "tasks"
ANSWER_S = 20.0
LEAVE_S = 20.0
PROMPT = {"ELPS_BEAT_S": "0.2", "ELPS_LOST_S": "3", "ELPS_TASK_PATH": str(TASKS)}
"""Twenty times as long as a beat should take on a busy machine, and a loss is still noticed soon."""


class Backend(Protocol):
    """Where the members of a cluster meet."""

    async def connect(self, name: str) -> tuple[Bus, Store]:
        """Connections for one member."""

    async def disconnect(self, bus: Bus, store: Store) -> None:
        """End them."""

    def env(self) -> dict[str, str]:
        """What a process of its own needs to join; empty where it cannot."""


class InMemory:
    """One broker and one store of this process."""

    def __init__(self) -> None:
        self.broker, self.store = MemoryBroker(), MemoryStore()

    async def connect(self, name: str) -> tuple[Bus, Store]:
        return MemoryBus(self.broker, name), self.store

    async def disconnect(self, bus: Bus, store: Store) -> None:
        await bus.close()

    def env(self) -> dict[str, str]:
        return {}


@dataclass
class Real:
    """RabbitMQ and Redis."""

    amqp_url: str
    redis_url: str

    async def connect(self, name: str) -> tuple[Bus, Store]:
        bus = await AmqpBus.connect(self.amqp_url, name=name, timeout_s=20.0)
        return bus, await RedisStore.connect(self.redis_url, timeout_s=20.0)

    async def disconnect(self, bus: Bus, store: Store) -> None:
        await bus.close()
        await store.close()

    def env(self) -> dict[str, str]:
        return {"ELPS_AMQP_URL": self.amqp_url, "ELPS_REDIS_URL": self.redis_url}


@dataclass
class _Running:
    task: asyncio.Task[None]
    stop: asyncio.Event
    bus: Bus
    store: Store


class Cluster:
    """The members and whoever tests them. Made by `running`."""

    def __init__(
        self, backend: Backend, services: Mapping[str, Create], env: Mapping[str, str]
    ) -> None:
        self.backend, self.env = backend, dict(env)
        self._services = services
        self._members: dict[str, _Running] = {}
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._jobs: list[Job] = []
        self._numbers: dict[str, int] = {}
        self.agents: dict[str, AgentBeat] = {}  #: newest heartbeat of each
        self.held_bytes: dict[str, dict[str, int]] = {}  #: job to shard to the most that it held
        self._heard = asyncio.Condition()
        self._incarnations: dict[str, set[str]] = {}  #: of each member that was heard
        self.bus: Bus
        self.store: Store
        self.client: Client

    # --- members ------------------------------------------------------------------------------------------------------

    async def start(self, *members: Member) -> None:
        """Start members in this process, and wait until those that beat are heard."""
        known = {
            member.name: len(self._incarnations.get(member.name, ()))
            for member in members
            if member.service != "monitor"
        }
        for member in members:
            assert member.name not in self._members, member.name
            bus, store = await self.backend.connect(member.name)
            context = Context(bus, store, {**self.env, **member.env})
            stop = asyncio.Event()
            running = self._services[member.service](context).run(stop)
            task = asyncio.create_task(running, name=member.name)
            self._members[member.name] = _Running(task, stop, bus, store)
        await self.until(
            lambda: all(len(self._incarnations.get(n, ())) > count for n, count in known.items()),
            f"word of {', '.join(known)}",
            timeout_s=40.0,
        )

    async def stop(self, *names: str) -> None:
        """End members in order, as SIGTERM does."""
        members = [self._members.pop(name) for name in names]
        for member in members:
            member.stop.set()
        for member in members:
            async with asyncio.timeout(LEAVE_S):
                await member.task
            await self.backend.disconnect(member.bus, member.store)

    async def crash(self, name: str) -> None:
        """Have a member vanish without a word on the bus; its connections break."""
        member = self._members.pop(name)
        await self.backend.disconnect(member.bus, member.store)
        member.task.cancel()
        await asyncio.wait([member.task], timeout=LEAVE_S)

    async def start_process(self, member: Member) -> None:
        """Start a member as a process of its own."""
        command = {"psshard": "elps-shard", "worker": "elps-worker", "scheduler": "elps-scheduler"}
        self._processes[member.name] = await asyncio.create_subprocess_exec(
            str(Path(sys.executable).parent / command[member.service]),
            env={**os.environ, **self.env, **self.backend.env(), **member.env},
            stdout=asyncio.subprocess.DEVNULL,
        )

    async def kill_process(self, name: str) -> None:
        """Kill -9."""
        process = self._processes.pop(name)
        process.send_signal(signal.SIGKILL)
        await process.wait()

    @property
    def names(self) -> list[str]:
        """Members in this process, in the order of their start."""
        return list(self._members)

    def check_alive(self) -> None:
        """Raise what ended a member that should be running."""
        for name, member in self._members.items():
            if member.task.done():
                member.task.result()
                raise AssertionError(f"{name} ended by itself")

    # --- jobs ---------------------------------------------------------------------------------------------------------

    def document(self, **fields: Any) -> JobDocument:
        """A checked document, with an id of its own."""
        name = str(fields.pop("id", "job"))
        self._numbers[name] = self._numbers.get(name, 0) + 1
        number = self._numbers[name]
        fields["id"] = name if number == 1 else f"{name}-{number}"
        return parse_job(fields)

    async def submit(self, document: JobDocument | None = None, /, **fields: Any) -> Job:
        """Hand in a job and follow it from the start."""
        document = document or self.document(**fields)
        job = await self.follow(document)
        reply = await self.client.submit(document)
        assert reply.ok, reply
        return job

    async def follow(self, document: JobDocument) -> Job:
        """Follow a job that is not handed in yet."""
        job = Job(document, self.store, self.client.follow(str(document.id), logs=True))
        await job.start()
        self._jobs.append(job)
        return job

    async def ask(self, what: str, job: Job) -> Reply:
        """Kill, pause or resume a job; the answer must be a yes."""
        reply: Reply = await getattr(self.client, what)(job.id, "asked by the test")
        assert reply.ok, reply
        return reply

    async def end_jobs(self) -> None:
        """Kill what a failed test left behind; nothing to do after one that passed."""
        for job in self._jobs:
            if not job.states[-1:] or not job.states[-1].ended:
                await self.client.kill(job.id, "left behind")

    async def open(self) -> None:
        self.bus, self.store = await self.backend.connect("test")
        self.client = Client(self.bus, timeout_s=ANSWER_S)
        keys = (AGENT_BEAT, SHARD_BEAT, SCHEDULER_BEAT)
        queue = Queue("elps.test.members", tuple((MEMBERS, key) for key in keys))
        await self.bus.subscribe(queue, self._hear)

    async def _hear(self, delivery: Delivery) -> None:
        beat: MemberMessage = decode(delivery.body, MemberMessage)  # type: ignore[arg-type]  # a union
        name = "scheduler"
        async with self._heard:
            if isinstance(beat, AgentBeat):
                name = beat.agent
                self.agents[name] = beat
            elif isinstance(beat, ShardBeat):
                name = beat.shard
                for hosted in beat.jobs:
                    held = self.held_bytes.setdefault(hosted.job, {})
                    held[name] = max(held.get(name, 0), hosted.bytes_held)
            self._incarnations.setdefault(name, set()).add(beat.incarnation)
            self._heard.notify_all()

    async def until(
        self, condition: Callable[[], bool], what: str, timeout_s: float = 20.0
    ) -> None:
        """Wait until heartbeats show something."""
        try:
            async with asyncio.timeout(timeout_s), self._heard:
                await self._heard.wait_for(condition)
        except TimeoutError:
            raise AssertionError(f"not within {timeout_s:g} s: {what}; {self.agents}") from None

    async def until_reason(self, job: Job, text: str, timeout_s: float = 20.0) -> None:
        """Wait until a job's record gives a reason with this text, looking at each heartbeat."""
        async with asyncio.timeout(timeout_s):
            while text not in (await job.record()).reason:
                async with self._heard:
                    await self._heard.wait()

    def trainers(self, job: Job | None = None) -> dict[str, int]:
        """Living trainers and their process ids."""
        return {
            t.worker: t.pid
            for beat in self.agents.values()
            for t in beat.trainers
            if t.state != "exited" and (job is None or t.job == job.id)
        }

    async def close(self) -> None:
        """End everything, in the order in which a stack does."""
        for job in self._jobs:
            await job.close()
        for process in self._processes.values():
            process.send_signal(signal.SIGKILL)
            await process.wait()
        for kind in ("agent", "shard", ""):
            names = [name for name in self._members if name.startswith(kind)]
            try:
                await self.stop(*names)
            except TimeoutError:
                for name in [n for n in names if n in self._members]:
                    await self.crash(name)
        await self.backend.disconnect(self.bus, self.store)


def scheduler() -> Member:
    return Member("scheduler", "scheduler", {})


def shard(number: int, slots: int = 64) -> Member:
    name = f"shard-{number}"
    return Member("psshard", name, {"ELPS_SHARD_ID": name, "ELPS_SHARD_SLOTS": str(slots)})


def agent(number: int, slots: int = 4) -> Member:
    name = f"agent-{number}"
    return Member("worker", name, {"ELPS_AGENT_ID": name, "ELPS_WORKER_SLOTS": str(slots)})


def size(workers: int, shards: int) -> dict[str, dict[str, int]]:
    """Fields of a document for exactly so many workers and shards."""
    return {
        "workers": {"min": workers, "max": workers},
        "shards": {"min": shards, "max": shards},
    }


def without(document: JobDocument, **task_args: Any) -> JobDocument:
    """The same job with other arguments of the task: as the plain loop is to run it."""
    return msgspec.structs.replace(document, task_args={**document.task_args, **task_args})


@asynccontextmanager
async def running(
    *members: Member, backend: Backend | None = None, **env: str
) -> AsyncIterator[Cluster]:
    """A cluster of these members."""
    services = installed_services(["scheduler", "psshard", "worker", "monitor"])
    cluster = Cluster(backend or InMemory(), services, {**PROMPT, **env})
    await cluster.open()
    try:
        await cluster.start(*members)
        yield cluster
        cluster.check_alive()
    finally:
        await cluster.close()
