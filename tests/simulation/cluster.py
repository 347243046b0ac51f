"""The services of a simulation: the real ones, each as a process that can be killed and started again."""

from __future__ import annotations

import asyncio
import random
import traceback
from typing import Any

from simulation.clockwork import UNIX_S, Process, VirtualLoop, current
from simulation.network import Network
from simulation.outside import Bus, Store
from simulation.story import Story
from simulation.threads import Threads

from elps.messaging.faults import Faults
from elps.messaging.memory import MemoryBroker
from elps.psshard.app import ShardService
from elps.runtime.service import Context, Service
from elps.runtime.settings import read
from elps.scheduler.app import Scheduler
from elps.scheduler.settings import Settings
from elps.storage.memory import MemoryStore
from elps.worker.app import WorkerAgent

SCHEDULER = "scheduler"


class Clock:
    """The clock that services are given."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def monotonic(self) -> float:
        return self._loop.now

    def time(self) -> float:
        return UNIX_S + self._loop.now


class Running:
    """One process of a service."""

    def __init__(self, process: Process, bus: Bus, service: Service) -> None:
        self.process, self.bus, self.service = process, bus, service
        self.stop = asyncio.Event()
        self.task: asyncio.Task[None] | None = None


class Cluster:
    """All of them. Names: `scheduler`, `scheduler-2`, `shard-N`, `agent-N`."""

    def __init__(
        self,
        loop: VirtualLoop,
        threads: Threads,
        network: Network,
        story: Story,
        faults: Faults,
        policy: str,
    ) -> None:
        self.loop, self.threads, self.network, self.story = loop, threads, network, story
        self._policy = policy
        self.rng = random.Random(loop.rng.random())
        self.broker, self.store = MemoryBroker(faults), MemoryStore()
        self.running: dict[str, Running] = {}
        self.user_bus = Bus(self.broker, current())

    def start(self, name: str) -> None:
        """Start a service, under the same name as the one before."""
        number = int(name.rpartition("-")[2]) if "-" in name else 1
        process = Process(name, f"10.0.0.{number}")
        self.running[name] = process.run_in(self._begin, process)
        self.story.tell("started", name=name)

    def _begin(self, process: Process) -> Running:
        bus = Bus(self.broker, process)
        store = Store(self.store, process, self.rng)
        context = Context(bus=bus, store=store, env=self._env(process), clock=Clock(self.loop))
        running = Running(process, bus, self._service(process.name, context))
        running.task = asyncio.ensure_future(self._serve(running))
        return running

    def _env(self, process: Process) -> dict[str, str]:
        name = process.name
        if name.startswith("shard"):
            return {"ELPS_SHARD_ID": name, "ELPS_HOST": process.host, "ELPS_LEAVE_S": "20"}
        if name.startswith("agent"):
            return {"ELPS_AGENT_ID": name, "ELPS_WORKER_SLOTS": "2"}
        return {"ELPS_POLICY": self._policy}

    def _service(self, name: str, context: Context) -> Any:
        if name.startswith(SCHEDULER):
            return Scheduler(context, read(Settings, context.env))
        return ShardService(context) if name.startswith("shard") else WorkerAgent(context)

    async def _serve(self, running: Running) -> None:
        name, process = running.process.name, running.process
        try:
            await running.service.run(running.stop)
        except asyncio.CancelledError:
            if not process.dead:
                self.story.wrong(f"{name} was cancelled")
        except BaseException as error:  # noqa: BLE001 - told, and a fault of the seed
            if not process.dead:
                self.story.wrong(f"{name} has ended: {_told(error)}")
        else:
            self.story.tell("ended")
        if not process.dead:
            await running.bus.close()
            self.loop.call_soon(process.kill)

    def kill(self, name: str) -> None:
        """As kill -9."""
        self.story.tell("killed", name=name)
        self.running[name].process.kill()

    def is_up(self, name: str) -> bool:
        return name in self.running and not self.running[name].process.dead


def _told(error: BaseException) -> str:
    return "".join(traceback.format_exception(error, limit=-8))
