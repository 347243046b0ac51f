"""How long it takes from the row of a finished iteration to the plan of the coming batches, and where the time goes.

The same messages that the services get are listened to: rows from the leader, timings from the monitor, plans from the
scheduler. A plan is counted from the newest row whose timings came before it. Beside it, over the same broker and in
the same seconds, goes the bare way: a message from this process to two others, one after the other, and back, each of
which does nothing but pass it on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.synchronize import Event
from typing import Any

from measuring import arguments, emit, median, p90, say
from private_stack import private_stack, run_job

from elps.client.control import Client
from elps.contracts import topology
from elps.contracts.codec import decode
from elps.contracts.telemetry import IterationRows, IterationTimings
from elps.local.record import StackRecord
from elps.messaging.amqp import AmqpBus
from elps.messaging.port import Delivery, Queue

WORKERS, WARM_UP = 2, 5
AIM_MS = 10.0
"""From the row to the plan, at the median."""
ITERATIONS_MS = (250, 20, 5)
SLOWDOWN = "agent-1=square:1:3@0.7s; agent-2=square:3:1@0.9s"
"""Machines that jump about, so that plans change all the time."""


BARE = ("bare.a", "bare.b", "bare.c")
"""Keys of the bare way's three legs: to the first process, to the second, and back."""
BARE_EACH_S = 0.05
BODY = b'{"bare": "%s"}' % (b"x" * 800)
"""About as large as a row of two workers."""


def pass_on(url: str, leg: int, ready: Event) -> None:
    """A process that hands on whatever comes by one leg, by the next."""

    async def run() -> None:
        bus = await AmqpBus.connect(url, name=f"bare-{leg}", timeout_s=20.0)

        async def hand_on(delivery: Delivery) -> None:
            await bus.publish(topology.TELEMETRY, BARE[leg + 1], delivery.body, confirm=False)

        queue = Queue(f"bench.{BARE[leg]}", ((topology.TELEMETRY, BARE[leg]),))
        await bus.subscribe(queue, hand_on)
        ready.set()
        await asyncio.Event().wait()

    asyncio.run(run())


@asynccontextmanager
async def bare_way(url: str, bus: AmqpBus) -> AsyncIterator[list[float]]:
    """Trips over the bare way in milliseconds, one after the other as long as the block is open."""
    context, took_ms = get_context("spawn"), list[float]()
    ready = [context.Event() for _ in BARE[:-1]]
    others = [
        context.Process(target=pass_on, args=(url, leg, ready[leg]), daemon=True)
        for leg in range(len(ready))
    ]
    back: asyncio.Queue[float] = asyncio.Queue()

    async def came(_: Delivery) -> None:
        back.put_nowait(time.perf_counter())

    async def travel() -> None:
        while True:
            began = time.perf_counter()
            await bus.publish(topology.TELEMETRY, BARE[0], BODY, confirm=False)
            async with asyncio.timeout(20.0):
                took_ms.append((await back.get() - began) * 1e3)
            await asyncio.sleep(BARE_EACH_S)

    queue = Queue(f"bench.{BARE[-1]}", ((topology.TELEMETRY, BARE[-1]),))
    held = await bus.subscribe(queue, came)
    for process in others:
        process.start()
    try:
        for event in ready:
            assert await asyncio.to_thread(event.wait, 30.0)
        travelling = asyncio.create_task(travel())
        yield took_ms
        travelling.cancel()
    finally:
        for process in others:
            process.kill()
        await held.cancel()


@dataclass
class Heard:
    """What was heard of one job, by Unix times."""

    told_at: dict[int, float] = field(
        default_factory=dict
    )  #: iteration to when its leader made the row
    rows_at: dict[int, float] = field(default_factory=dict)  #: newest row of a message
    timings_at: dict[int, float] = field(default_factory=dict)
    bare_ms: list[float] = field(default_factory=list)
    plans: list[tuple[int, float]] = field(
        default_factory=list
    )  #: newest iteration timed, when it came
    taken_s: list[float] = field(default_factory=list)  #: iterations

    async def on_rows(self, delivery: Delivery) -> None:
        message = decode(delivery.body, IterationRows)
        self.told_at |= {row.iteration: row.at for row in message.rows}
        self.taken_s += [row.duration_s for row in message.rows if row.iteration >= WARM_UP]
        self.rows_at[message.rows[-1].iteration] = time.time()

    async def on_timings(self, delivery: Delivery) -> None:
        self.timings_at[decode(delivery.body, IterationTimings).iteration] = time.time()

    async def on_command(self, delivery: Delivery) -> None:
        if b'"batch_plan"' in delivery.body and self.timings_at:
            self.plans.append((max(self.timings_at), time.time()))

    def stages_ms(self) -> dict[str, list[float]]:
        """Of each plan once its job is warm; a plan that is said again is not counted."""
        out: dict[str, list[float]] = {"row": [], "timings": [], "plan": [], "whole": []}
        seen: set[int] = set()
        for t, at in self.plans:
            if t < WARM_UP or t in seen or t not in self.told_at or t not in self.rows_at:
                continue
            seen.add(t)
            told, rows, timings = self.told_at[t], self.rows_at[t], self.timings_at[t]
            stages = (rows - told, timings - rows, at - timings, at - told)
            for name, took in zip(out, stages, strict=True):
                out[name].append(took * 1e3)
        return out


def job(name: str, iteration_ms: int, iterations: int) -> dict[str, Any]:
    """Iterations of about this length."""
    batch = 64
    return {
        "id": name,
        "task": "sleeping:Sleeping",
        "task_args": {"sample_ms": iteration_ms * WORKERS / batch},
        "iterations": iterations + WARM_UP,
        "batch": {"global": batch, "policy": "last"},
        "optimizer": {"name": "sgd", "lr": 0.01},
        "workers": {"min": WORKERS, "max": WORKERS},
        "checkpoint": {"every_s": 0},
    }


async def measure(record: StackRecord, repeats: int, seconds: float) -> None:
    """Jobs of all lengths in turns."""
    found: dict[int, list[Heard]] = {each: [] for each in ITERATIONS_MS}
    bus = await AmqpBus.connect(record.amqp_url, name="bench", timeout_s=20.0)
    try:
        async with bare_way(record.amqp_url, bus) as trips_ms:
            for turn in range(repeats):
                for each in ITERATIONS_MS:
                    name, known = f"bench-{each}-{turn}", len(trips_ms)
                    heard = await listen(bus, job(name, each, round(seconds * 1e3 / each)))
                    heard.bare_ms = trips_ms[known:]
                    found[each].append(heard)
    finally:
        await bus.close()
    for each, all_heard in found.items():
        show(each, all_heard)


async def listen(bus: AmqpBus, document: dict[str, Any]) -> Heard:
    """Run a job and hear what is said of it."""
    heard, name = Heard(), document["id"]
    queues = (
        ("rows", (topology.TELEMETRY, topology.telemetry_key(name)), heard.on_rows),
        ("timings", (topology.TELEMETRY, topology.timings_key(name)), heard.on_timings),
        ("plans", (topology.COMMANDS, "shard-1"), heard.on_command),
    )
    held = [
        await bus.subscribe(Queue(f"{name}.{what}", (binding,)), handler)
        for what, binding, handler in queues
    ]
    await run_job(Client(bus, timeout_s=20.0), document)
    for subscription in held:
        await subscription.cancel()
    return heard


def show(each: int, all_heard: list[Heard]) -> None:
    """Print what jobs of one length have shown."""
    taken_ms = median([s for heard in all_heard for s in heard.taken_s]) * 1e3
    bare_ms = [took for heard in all_heard for took in heard.bare_ms]
    stages: dict[str, list[float]] = {}
    for heard in all_heard:
        for name, took in heard.stages_ms().items():
            stages.setdefault(name, []).extend(took)
    about = {"iteration_ms": taken_ms, "plans": len(stages["whole"]), "workers": WORKERS}
    about |= {"bare_ms": median(bare_ms), "bare_p90_ms": p90(bare_ms), "aim_ms": AIM_MS}
    for name, took in stages.items() if stages["whole"] else ():
        emit(
            f"plan.{each}ms.{name}",
            median(took),
            "ms",
            ratio=median(took) / median(bare_ms),
            to="the bare way over the same broker",
            p90=p90(took),
            **about,
        )


def main() -> None:
    """Run all."""
    full = arguments(__doc__ or "").full
    with private_stack(WORKERS, 1, ELPS_WORKER_SLOWDOWN=SLOWDOWN) as record:
        say("plan: from the row of an iteration to the plan of the coming batches")
        asyncio.run(measure(record, 6 if full else 2, 10.0 if full else 5.0))


if __name__ == "__main__":
    main()
