"""A whole stack of the benchmark's own: real broker and store, services as processes, all of it gone afterwards."""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from measuring import say

from elps.client.control import Client
from elps.contracts.messages import JobEvent
from elps.contracts.telemetry import IterationRow
from elps.local.home import FOLDER, elps_home
from elps.local.ports import free_ports
from elps.local.record import StackRecord
from elps.local.stack import Stack
from elps.messaging.amqp import AmqpBus

HERE = Path(__file__).parent
WAIT_S = 120.0
PHASES = ("lease", "wait", "pull", "compute", "push")


@contextmanager
def private_stack(workers: int, shards: int, **settings: str) -> Iterator[StackRecord]:
    """Start a stack of this size; it ends, with all that it wrote, when the block is left.

    `settings` are variables of its services.
    """
    with stack_to_start(**settings) as stack:
        yield stack.up(workers, shards)


@contextmanager
def stack_to_start(**settings: str) -> Iterator[Stack]:
    """A stack that is still to be started, for those who also start again what they have killed."""
    folder = Path(tempfile.mkdtemp(prefix="elps-bench-"))
    home = folder / FOLDER
    home.mkdir()
    binaries = elps_home(HERE, os.environ) / "binaries"
    if binaries.is_dir():  # RabbitMQ and Redis as `make setup` has unpacked them
        (home / "binaries").symlink_to(binaries)
    left_out = ("ELPS_AMQP_URL", "ELPS_REDIS_URL", "ELPS_HOME")
    env = {name: value for name, value in os.environ.items() if name not in left_out}
    env["ELPS_MONITOR_PORT"] = str(free_ports(1)[0])
    env["ELPS_TASK_PATH"] = str(HERE / "tasks")
    env |= settings
    stack = Stack(home, env, say=say)
    try:
        yield stack
    finally:
        stack.down()
        shutil.rmtree(folder, ignore_errors=True)


@asynccontextmanager
async def connected(record: StackRecord) -> AsyncIterator[Client]:
    """A client of the stack."""
    bus = await AmqpBus.connect(record.amqp_url, name="bench", timeout_s=20.0)
    try:
        yield Client(bus, timeout_s=20.0)
    finally:
        await bus.close()


@dataclass
class Told:
    """What was told of a job, and when."""

    submitted_at: float = 0.0
    """Unix time just before the message was published."""
    events: list[JobEvent] = field(default_factory=list)
    rows: list[IterationRow] = field(default_factory=list)
    first_row_at: float = 0.0
    """Unix time at which the first row was here."""

    def event(self, what: str) -> JobEvent | None:
        """The first event of a kind."""
        return next((e for e in self.events if e.what == what), None)


async def run_job(client: Client, document: dict[str, Any]) -> Told:
    """Submit a job and follow it to its end, which must be a good one; where it stops early the last rows may lack."""
    told = Told()
    iterations = int(document["iterations"])
    async with client.follow(document["id"]) as stream:
        told.submitted_at = time.time()
        reply = await client.submit(document)
        if not reply.ok:
            raise RuntimeError(f"job {document['id']} was refused: {reply}")
        while True:
            item = await stream.next(WAIT_S)
            if item is None:
                raise TimeoutError(f"nothing was told of {document['id']} for {WAIT_S:g} s: {told}")
            if isinstance(item, IterationRow):
                told.first_row_at = told.first_row_at or time.time()
                told.rows.append(item)
            elif isinstance(item, JobEvent):
                told.events.append(item)
                if item.what in ("failed", "killed"):
                    raise RuntimeError(f"job {document['id']}: {item.what}: {item.reason}")
            done = told.event("finished") is not None
            whole = bool(told.rows) and told.rows[-1].iteration + 1 >= iterations
            if done and (whole or "stop" in document):
                return told


@dataclass(frozen=True)
class Iterations:
    """Times of a job's iterations, in seconds, without those of the warm-up."""

    duration_s: list[float]
    phases_s: dict[str, list[float]]
    """Of each phase, mean over the workers."""

    @classmethod
    def of(cls, rows: list[IterationRow], warm_up: int) -> Iterations:
        """From a job's rows."""
        rows = [row for row in rows if row.iteration >= warm_up and row.workers]
        return cls(
            [row.duration_s for row in rows],
            {
                phase: [
                    statistics.fmean(getattr(w, f"{phase}_s") for w in row.workers) for row in rows
                ]
                for phase in PHASES
            },
        )

    def shares(self) -> dict[str, float]:
        """Median time of each phase over the median iteration. They overlap, so that they may sum to more than 1."""
        whole = statistics.median(self.duration_s)
        return {phase: statistics.median(v) / whole for phase, v in self.phases_s.items()}


def idle_job(name: str, size: int, iterations: int, workers: int) -> dict[str, Any]:
    """A job that computes nothing, on `size` float32 parameters, without checkpoints on the way."""
    return {
        "id": name,
        "task": "idle:Idle",
        "task_args": {"size": size},
        "iterations": iterations,
        "batch": {"global": 64},
        "optimizer": {"name": "sgd", "lr": 0.01},
        "workers": {"min": workers, "max": workers},
        "checkpoint": {"every_s": 0},
    }


def digits_job(name: str, iterations: int, workers: int) -> dict[str, Any]:
    """A perceptron of 10,210 parameters on handwritten digits, batch 64."""
    return {
        "id": name,
        "task": "mlp",
        "task_args": {"hidden": [136]},
        "data": {"source": "digits", "scale": "standard"},
        "iterations": iterations,
        "batch": {"global": 64},
        "optimizer": {"name": "adam", "lr": 0.01},
        "workers": {"min": workers, "max": workers},
        "checkpoint": {"every_s": 0},
    }


def in_stack(record: StackRecord, work: Any) -> Any:
    """Run a coroutine function with a client of the stack."""

    async def run() -> Any:
        async with connected(record) as client:
            return await work(client)

    return asyncio.run(run())
