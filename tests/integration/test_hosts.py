"""Members on other hosts: they are told where the broker and the store are, and nothing else.

The hosts are network namespaces; the broker and the store listen on this host's loopback and are reached through a
forwarder at the address that the hosts see. This host runs the scheduler and the monitor.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from network_hosts import Host, Network, NotPermitted, forwarded, network
from realstack.training import Training

from elps.client.control import Client
from elps.contracts.codec import decode, parse_job
from elps.contracts.errors import ElpsError
from elps.contracts.messages import ShardBeat
from elps.contracts.requests import Query
from elps.contracts.state import JobRecord
from elps.contracts.topology import MEMBERS, SHARD_BEAT
from elps.local import processes
from elps.local.processes import Handle, is_alive
from elps.messaging.amqp import AmqpBus
from elps.messaging.memory import MemoryBroker, MemoryBus
from elps.messaging.port import Delivery, Queue
from elps.psshard.app import ShardService
from elps.runtime.service import Context
from elps.storage.memory import MemoryStore
from elps.storage.redis import RedisStore

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

WAIT_S = 40.0
LOOK_S = 0.1
ENDS_S = 20.0
ITERATIONS = 2400
CUT_S = 8.0
"""Longer than the silence after which a member counts as lost."""


@pytest.fixture
def hosts() -> Iterator[Network]:
    with ExitStack() as stack:
        try:
            made = stack.enter_context(network(2))
        except NotPermitted as reason:
            pytest.skip(f"hosts of network namespaces: {reason}")
        yield made


class Cluster:
    """Services on this host and on others."""

    def __init__(
        self,
        folder: Path,
        marks: Mapping[str, str],
        told: Mapping[str, str],
        bus: AmqpBus,
        store: RedisStore,
    ) -> None:
        self.client = Client(bus, timeout_s=20.0)
        self._folder, self._store = folder, store
        self._told = told  #: what members on the hosts are told
        self._env = {k: v for k, v in os.environ.items() if not k.startswith("ELPS_")} | marks
        self._handles: dict[str, Handle] = {}
        self._trainings: list[Training] = []

    def start(self, name: str, program: str, host: Host | None = None, **env: str) -> None:
        command = [str(Path(sys.executable).parent / program)]
        told = {"ELPS_LOG_DIR": str(self._folder), **env}
        self._handles[name] = processes.spawn(
            name,
            command if host is None else host.inside(*command),
            env={**self._env, **told},
            log=self._folder / f"{name}.log",
            cwd=self._folder,
        )

    def join(self, number: int, host: Host) -> None:
        """Start a shard and an agent there."""
        shard, agent = f"shard-{number}", f"agent-{number}"
        self.start(shard, "elps-shard", host, ELPS_SHARD_ID=shard, **self._told)
        self.start(agent, "elps-worker", host, ELPS_AGENT_ID=agent, **self._told)

    async def knows(self, shards: Mapping[str, Host], agents: int) -> None:
        """Wait until the monitor has heard of these shards, at the addresses of their hosts, and of so many agents."""
        expected = {name: host.address for name, host in shards.items()}

        async def look() -> tuple[dict[str, str], int]:
            listed = (await self.client.query(Query(what="shards")))["shards"]
            workers = (await self.client.query(Query(what="workers")))["workers"]
            return {s["shard"]: s["data_host"] for s in listed}, len(workers)

        await self._shows(look, (expected, agents))

    async def spread(self, training: Training, shards: set[str]) -> None:
        """Wait until partitions of a job lie on exactly these shards and none is on its way."""

        async def look() -> tuple[set[str], str]:
            listed = (await self.client.query(Query(what="shards")))["shards"]
            held = {(s["shard"], j["job"]) for s in listed for j in s["jobs"] if j["bytes_held"]}
            job = await self.client.query(Query(what="job", job=training.id))
            return {shard for shard, name in held if name == training.id}, job["moving"]

        await self._shows(look, (shards, ""))

    async def _shows(self, look: Callable[[], Awaitable[Any]], expected: Any) -> None:
        found: Any = None
        try:
            async with asyncio.timeout(WAIT_S):
                while True:
                    try:
                        found = await look()
                    except ElpsError as error:  # the monitor is starting
                        found = error
                    if found == expected:
                        return
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            raise AssertionError(f"{found}, not {expected}\n{self.logs()}") from None

    async def submit(self, name: str, **fields: Any) -> Training:
        """A digits perceptron of some seconds: one call of the task for every eight samples makes it slow."""
        shown: dict[str, Any] = {
            "id": name,
            "task": "mlp",
            "task_args": {"hidden": [64]},
            "data": {
                "source": "digits",
                "test_fraction": 0.2,
                "split_seed": 0,
                "scale": "standard",
            },
            "optimizer": {"name": "adam", "lr": 0.002},
            "batch": {"global": 240, "granule": 8, "policy": "fixed"},  # so that nobody is idled
            "dtype": "float64",
            "evaluate": {"every": 200},
            "workers": {"min": 2, "max": 3},
            "shards": {"min": 2, "max": 3},
        }
        document = parse_job(shown | fields)
        training = Training(document, self._store, self.client.follow(name))
        await training.follow()
        self._trainings.append(training)
        reply = await self.client.submit(document)
        assert reply.ok, reply
        return training

    async def leave(self, *names: str) -> None:
        """SIGTERM; they must end in order."""
        leaving = [self._handles.pop(name) for name in names]
        for handle in leaving:
            assert processes.send(handle, signal.SIGTERM), f"{handle.name} was not there"
        ended = await asyncio.to_thread(
            processes.wait_until, lambda: not any(map(is_alive, leaving)), ENDS_S
        )
        assert ended, [h.name for h in leaving if is_alive(h)]
        for name in names:
            assert "service_stopped" in (self._folder / f"{name}.log").read_text()

    async def close(self) -> None:
        for training in self._trainings:
            await training.close()
        await asyncio.to_thread(self._end)

    def _end(self) -> None:
        handles = list(self._handles.values())
        children = processes.descendants(handles)
        processes.end(handles, grace_s=3.0)
        processes.end(children, grace_s=1.0)

    def logs(self) -> str:
        return "\n".join(
            f"--- {log.name}\n" + "\n".join(processes.tail(log, 15))
            for log in sorted(self._folder.glob("*.log"))
        )


@pytest.fixture
async def stack(
    hosts: Network, tmp_path: Path, run_folder: Path, fresh_amqp_url: str, fresh_redis_url: str
) -> AsyncIterator[Cluster]:
    """Scheduler and monitor here, and a shard and an agent on each of the hosts, known to the monitor."""
    async with cluster(hosts, tmp_path, run_folder.name, fresh_amqp_url, fresh_redis_url) as made:
        for host in hosts.hosts:
            made.join(host.number, host)
        await made.knows({f"shard-{host.number}": host for host in hosts.hosts}, agents=2)
        yield made


@asynccontextmanager
async def cluster(
    net: Network, folder: Path, run: str, amqp_url: str, redis_url: str
) -> AsyncIterator[Cluster]:
    """Scheduler and monitor here."""
    async with AsyncExitStack() as stack:
        told = {
            "ELPS_AMQP_URL": await stack.enter_async_context(forwarded(amqp_url, net.address)),
            "ELPS_REDIS_URL": await stack.enter_async_context(forwarded(redis_url, net.address)),
        }
        bus = await AmqpBus.connect(amqp_url, name="test", timeout_s=20.0)
        stack.push_async_callback(bus.close)
        store = await RedisStore.connect(redis_url, timeout_s=20.0)
        stack.push_async_callback(store.close)
        marks = {processes.STACK_VARIABLE: run, processes.PART_VARIABLE: "service"}
        made = Cluster(folder, marks, told, bus, store)
        here = {"ELPS_AMQP_URL": amqp_url, "ELPS_REDIS_URL": redis_url, "ELPS_MONITOR_PORT": "0"}
        try:
            made.start("scheduler", "elps-scheduler", **here)
            made.start("monitor", "elps-monitor", **here)
            yield made
        finally:
            await made.close()


def working(training: Training, count: int) -> Callable[[], bool]:
    """Whether so many trainers took part in the newest iteration."""
    return lambda: len({w.worker for w in training.rows[-1].workers if w.samples}) == count


def on(record: JobRecord) -> tuple[set[str], set[str]]:
    """Shards on which the partitions are to lie, and agents."""
    held = record.allocation
    assert held is not None
    return set(held.targets or held.shards), set(held.workers.values())


@pytest.mark.thorough
async def test_members_on_other_hosts_join_and_leave_a_job_that_trains(
    hosts: Network, stack: Cluster
) -> None:
    one, two = hosts.hosts
    training = await stack.submit("spread", iterations=ITERATIONS)
    await training.reaches(20)
    assert on(await training.record()) == ({"shard-1", "shard-2"}, {"agent-1", "agent-2"})
    await training.until(working(training, 2), "iteration of both hosts")

    # A third pair joins from the second host, and the job takes it in.
    stack.join(3, two)
    await stack.knows({"shard-1": one, "shard-2": two, "shard-3": two}, agents=3)
    reply = await stack.client.scale(training.id, workers=3, shards=3)
    assert reply.ok, reply
    await training.until(working(training, 3), "iteration of three trainers")
    await stack.spread(training, {"shard-1", "shard-2", "shard-3"})

    # One host's first pair leaves, and the job goes on without.
    record = await training.record()
    assert record.allocation is not None
    gone = 2 if record.allocation.shards[0] == "shard-1" else 1
    await stack.leave(f"shard-{gone}", f"agent-{gone}")
    await training.rises(20)
    record = await training.record()
    assert not record.state.ended
    assert on(record) == (
        {f"shard-{n}" for n in (1, 2, 3) if n != gone},
        {f"agent-{n}" for n in (1, 2, 3) if n != gone},
    )

    record = await training.equals_the_plain_loop()
    assert record.terms == 1
    assert record.progress.redone_iterations == 0


@pytest.mark.long
async def test_a_job_waits_for_a_host_that_is_cut_off_and_goes_on_when_it_is_back(
    hosts: Network, stack: Cluster
) -> None:
    one, two = hosts.hosts
    training = await stack.submit("cut", iterations=200, checkpoint={"every": 20, "every_s": 0})
    await training.saved(20)
    record = await training.record()
    assert record.allocation is not None
    cut_off = two if record.allocation.shards[0] == "shard-1" else one

    cut_off.pull_cable()
    await asyncio.sleep(CUT_S)
    queued = training.told("queued")[-1]
    assert f"shard-{cut_off.number} not heard" in queued.reason
    waiting = await training.record()
    assert "needs 2 shards" in waiting.reason
    cut_off.plug_cable()

    running = await training.event("running", 2)
    assert running.iteration is not None
    assert running.iteration >= 20
    record = await training.equals_the_plain_loop()
    assert record.terms == 2


async def test_a_shard_on_a_bus_in_memory_stays_on_the_loopback_whatever_broker_is_named() -> None:
    broker, heard = MemoryBroker(), asyncio.Queue[bytes]()

    async def beat(delivery: Delivery) -> None:
        heard.put_nowait(delivery.body)

    bus, stop = MemoryBus(broker, "shard"), asyncio.Event()
    await MemoryBus(broker, "test").subscribe(Queue("beats", ((MEMBERS, SHARD_BEAT),)), beat)
    env = {"ELPS_AMQP_URL": "amqp://192.0.2.1/"}
    service = ShardService(Context(bus, MemoryStore(), env))
    async with asyncio.timeout(WAIT_S), asyncio.TaskGroup() as tasks:
        tasks.create_task(service.run(stop))
        told = decode(await heard.get(), ShardBeat)
        stop.set()
    assert told.data_host == "127.0.0.1"
    assert told.data_port > 0
