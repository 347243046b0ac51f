"""Broken messages over every queue of a real broker to all services, each in its turn with messages that are sound.

Nothing dies; what no contract can read is a dead letter with a reason, once for each queue it came by; what can be read
is handled, and no handler meets what it did not expect. Queues go on, and nothing is left behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aio_pika
import pytest
from data_plane import descriptors, resident_bytes
from fuzzing import AGENT, AIMS, SHARD, Armoury, Shot

from elps.client.control import Client
from elps.client.reading import jobs_of
from elps.contracts import topology
from elps.contracts.beats import read_beat
from elps.contracts.codec import decode, encode
from elps.contracts.errors import InvalidDocument
from elps.contracts.messages import AgentBeat, ShardBeat
from elps.contracts.requests import JobCommand, Query, Reply
from elps.messaging import receiving
from elps.messaging.amqp import AmqpBus
from elps.messaging.port import DEAD_QUEUE, QUEUE_HEADER, REASON_HEADER, Delivery, Queue
from elps.monitor.app import create as monitor
from elps.psshard.app import create as shard
from elps.runtime.service import Context
from elps.scheduler.app import create as scheduler
from elps.storage.memory import MemoryStore
from elps.worker.app import WorkerAgent

pytestmark = pytest.mark.integration

BOUND_S = 60.0
SEED = 4
ROUND = 500
"""Messages until it is looked whether all went on: far fewer than any queue drops the oldest of."""
GROWTH_BYTES = 80 * 1024 * 1024
"""What 20,000 messages may leave in four services and the test: a few KB of each, kept whole, would be as much."""
QUIET = frozenset({"by", "obeys"})
"""Left out: whoever says that a later scheduler is in charge is to be believed, and this one would give way to it."""


def an_agent(context: Context) -> WorkerAgent:
    return WorkerAgent(context, trainer="worker_scripted_trainer:run", preload=("numpy",))


SERVICES: dict[str, tuple[Callable[[Context], Any], dict[str, str]]] = {
    "scheduler": (scheduler, {}),
    "monitor": (monitor, {"ELPS_MONITOR_PORT": "0"}),
    "shard": (shard, {"ELPS_SHARD_ID": SHARD}),
    "agent": (an_agent, {"ELPS_AGENT_ID": AGENT, "PYTHONPATH": str(Path(__file__).parent)}),
}


@dataclass
class Stack:
    """All services in this process, each with its own connection to the broker; and someone from outside."""

    bus: AmqpBus
    foreign: aio_pika.abc.AbstractChannel
    buses: dict[str, AmqpBus]
    running: dict[str, asyncio.Task[None]]
    letters: dict[str, dict[str, str]] = field(default_factory=dict)
    """By message id: the reason of each dead letter by the queue that it came from."""
    shard: ShardBeat = None  # type: ignore[assignment]  # until it is heard
    agent: AgentBeat = None  # type: ignore[assignment]
    """Newest heartbeats."""

    @property
    def client(self) -> Client:
        return Client(self.bus, timeout_s=BOUND_S)

    async def until(self, holds: Callable[[], object], what: str) -> None:
        """Wait for what other tasks bring about."""
        try:
            async with asyncio.timeout(BOUND_S):
                while not holds():
                    self.assert_alive()
                    await asyncio.sleep(0.005)
        except TimeoutError:
            raise AssertionError(f"{what} did not come about within {BOUND_S:g} s") from None

    def assert_alive(self) -> None:
        for name, task in self.running.items():
            assert not task.done(), f"{name} has ended: {task}"

    async def fire(self, name: str, shot: Shot) -> None:
        exchange = await self.foreign.get_exchange(shot.aim.exchange, ensure=False)
        await exchange.publish(aio_pika.Message(shot.body, message_id=name), shot.aim.key)

    def buried(self, name: str, shot: Shot) -> bool:
        """Whether all who had it to read have given it up."""
        queues = self.letters.get(name, {})
        return all(any(q.startswith(reader) for q in queues) for reader in shot.aim.readers)

    async def note_letter(self, message: aio_pika.abc.AbstractIncomingMessage) -> None:
        found = self.letters.setdefault(message.message_id or "", {})
        queue = str(message.headers.get(QUEUE_HEADER))
        found[queue] = "twice" if queue in found else str(message.headers.get(REASON_HEADER) or "")

    async def note_beat(self, delivery: Delivery) -> None:
        try:
            beat = read_beat(delivery.body)
        except InvalidDocument:  # one of the broken ones
            return
        if isinstance(beat, ShardBeat) and beat.shard == SHARD:
            self.shard = beat
        elif isinstance(beat, AgentBeat) and beat.agent == AGENT:
            self.agent = beat

    async def answers(self) -> None:
        """Both who are asked by users still answer."""
        reply = decode(
            await self.bus.request(
                topology.JOBS, topology.KILL, encode(JobCommand(job="nobody")), timeout_s=BOUND_S
            ),
            Reply,
        )
        assert (reply.ok, reply.reason) == (False, "there is no job 'nobody'")
        jobs_of(await self.client.query(Query(what="jobs", limit=1)))

    async def trains(self, id_: str) -> None:
        """A job goes its way from the scheduler to the shard and the agent, once those that were let in are gone."""
        for job in jobs_of(await self.client.query(Query(what="jobs"))):
            if not job.state.ended:
                assert (await self.client.kill(job.id)).ok
        document = {"id": id_, "task": "linear", "iterations": 5, "task_args": {"script": "wait"}}
        assert (await self.client.submit(document)).ok
        await self.until(
            lambda: (
                any(hosted.job == id_ for hosted in self.shard.jobs)
                and any(t.job == id_ and t.state == "running" for t in self.agent.trainers)
            ),
            "a job on the shard and its trainer",
        )
        assert (await self.client.kill(id_)).ok
        await self.until(lambda: not self.agent.trainers, "the end of the job's trainer")


@asynccontextmanager
async def everything(url: str) -> AsyncIterator[Stack]:
    """All services, heard and ready."""
    store, stop = MemoryStore(), asyncio.Event()
    bus = await AmqpBus.connect(url, name="test", timeout_s=BOUND_S)
    buses = {name: await AmqpBus.connect(url, name=name, timeout_s=BOUND_S) for name in SERVICES}
    env = {"ELPS_BEAT_S": "0.2", "ELPS_LOST_S": "2"}
    running = {
        name: asyncio.create_task(create(Context(buses[name], store, env | own)).run(stop))
        for name, (create, own) in SERVICES.items()
    }
    async with await aio_pika.connect(url) as foreign:
        channel = await foreign.channel(publisher_confirms=False)
        stack = Stack(bus, channel, buses, running)
        try:
            dead = await channel.get_queue(DEAD_QUEUE)
            await dead.consume(stack.note_letter, no_ack=True)
            await bus.subscribe(Queue("heard", ((topology.MEMBERS, "#"),)), stack.note_beat)
            await stack.until(lambda: stack.shard and stack.agent, "the members' heartbeats")
            await stack.answers()
            yield stack
        finally:
            stop.set()
            async with asyncio.timeout(BOUND_S):
                ends = await asyncio.gather(*running.values(), return_exceptions=True)
                await asyncio.gather(bus.close(), *(b.close() for b in buses.values()))
    assert ends == [None] * len(ends)


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Errors that a handler did not expect of a message, though it may have done with it at the next try."""
    seen: list[str] = []

    class Log:
        """Stands for the log of all that is received."""

        def warning(self, event: str, **fields: Any) -> None:
            if event == "handler_failed" and not str(fields["error"]).startswith("RetryLater"):
                seen.append(str(fields))

        def __getattr__(self, name: str) -> Callable[..., None]:
            return lambda *_, **__: None

    monkeypatch.setattr(receiving, "log", Log())
    return seen


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "count",
    [
        300,
        pytest.param(4_000, marks=pytest.mark.thorough),
        pytest.param(20_000, marks=pytest.mark.long),
    ],
)
async def test_broken_messages_are_dead_with_their_reason_and_everything_goes_on(
    count: int, fresh_amqp_url: str, tmp_path: Path, faults: list[str]
) -> None:
    trap = tmp_path / "executed"
    armoury = Armoury(SEED, trap, QUIET)
    print(f"seed {SEED}")
    unreadable = 0
    async with everything(fresh_amqp_url) as stack:
        await stack.trains("before")
        tasks, files, memory = len(asyncio.all_tasks()), descriptors(), resident_bytes()
        for first in range(0, count, ROUND):
            some = range(first, min(first + ROUND, count))
            shots = {f"{n}": armoury.shot() for n in some}
            if first % 2_000 == 0:
                shots["huge"] = armoury.huge(AIMS[first // 2_000 % len(AIMS)])
            broken = {name: shot for name, shot in shots.items() if shot.unreadable}
            unreadable += len(broken)
            for name, shot in shots.items():
                if name in broken or shot.aim.key != topology.SUSPEND:  # which is for good
                    await stack.fire(name, shot)
            await stack.answers()
            await stack.until(
                lambda broken=broken: all(map(stack.buried, broken, broken.values())),
                f"a dead letter of each of {len(broken)} messages",
            )
            stack.letters.pop("huge", None)
        await stack.trains("after")

        grown = resident_bytes() - memory
        reasons = [reason for found in stack.letters.values() for reason in found.values()]
        assert all(reason and reason != "twice" for reason in reasons)
        assert sum(bus.stats.dead_lettered for bus in stack.buses.values()) >= len(reasons)
        for name, bus in stack.buses.items():
            assert bus.stats.reconnects == 0, name
        assert faults == []
        assert not trap.exists()
        await stack.until(lambda: len(asyncio.all_tasks()) <= tasks + 5, "the end of all handlers")
        await stack.until(lambda: descriptors() <= files + 4, "the end of all connections")
        assert grown < GROWTH_BYTES
    print(f"{unreadable} of {count} unreadable, {len(reasons)} letters, {grown >> 20} MB more")
    assert unreadable > 0.7 * count
