"""How many jobs a second the scheduler takes in, with ever more of them queued, and how long each answer takes.

    .venv/bin/python tests/bench/bench_submissions.py        # about half a minute

A job holds the only worker, and computes as rarely as if it did so on a machine of its own; a thousand others are
handed in, fifty at a time. An answer comes when a record is in the store. Beside it, in turns, what no scheduler could
go below: the same bytes into the store by the same client, and a request to a process that does nothing but answer.
At last the scheduler's own time at a processor for each job, which says what it could take in on an idle machine.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any

import psutil
from measuring import arguments, emit, say
from private_stack import connected, private_stack

from elps.client.control import Client
from elps.contracts.codec import encode
from elps.local.record import StackRecord
from elps.messaging.amqp import AmqpBus
from elps.messaging.port import Delivery, Queue
from elps.storage.redis import RedisStore

JOBS, BLOCKS, AT_ONCE = 1000, 10, 50
AIM_PER_S = 200


def document(name: str) -> dict[str, Any]:
    """A job that takes the one worker that there is, for long."""
    return {
        "id": name,
        "task": "idle:Idle",
        "task_args": {"size": 10, "sample_s": 0.02},
        "iterations": 1_000_000_000,
        "optimizer": {"name": "sgd", "lr": 0.01},
        "checkpoint": {"every_s": 0},
    }


async def at_once(count: int, act: Callable[[int], Awaitable[None]]) -> tuple[float, list[float]]:
    """Do something so many times, some at once; returns how many a second, and how long each took, in seconds."""
    took: list[float] = []
    numbers = iter(range(count))

    async def work() -> None:
        for n in numbers:
            began = time.perf_counter()
            await act(n)
            took.append(time.perf_counter() - began)

    began = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(AT_ONCE)))
    return count / (time.perf_counter() - began), took


def cpu_s(record: StackRecord) -> float:
    """The scheduler's time at a processor so far."""
    times = psutil.Process(record.services["scheduler"].pid).cpu_times()
    return float(times.user + times.system)


async def measure(client: Client, record: StackRecord) -> None:
    """Blocks of submissions and of the bare way, in turns."""
    bus = await AmqpBus.connect(record.amqp_url, name="echo", timeout_s=20.0)
    store = await RedisStore.connect(record.redis_url, timeout_s=20.0)
    queue = Queue("bench.echo", prefetch=AT_ONCE)

    async def echo(delivery: Delivery) -> None:
        await bus.respond(delivery, delivery.body)

    await bus.subscribe(queue, echo)
    body, each = encode(document("bare")), JOBS // BLOCKS
    rates, bare, waits = list[float](), list[float](), list[list[float]]()
    costs = list[float]()  # at a processor, for each submission of a block, s

    async def bare_way(n: int) -> None:
        await store.hash_put("bench:bare", str(n), body)
        await bus.request("", queue.name, body)

    try:
        for block in range(BLOCKS):

            async def submit(n: int, block: int = block) -> None:
                reply = await client.submit(document(f"job-{block}-{n}"))
                if not reply.ok:
                    raise RuntimeError(reply.reason)

            before_s = cpu_s(record)
            rate, took = await at_once(each, submit)
            costs.append((cpu_s(record) - before_s) / each)
            rates.append(rate)
            waits.append(took)
            bare.append((await at_once(each, bare_way))[0])
            say(f"submissions: {(block + 1) * each} jobs, {rate:.0f} a second")
    finally:
        await store.close()
        await bus.close()
    for name, some in (("first", slice(0, 2)), ("last", slice(-2, None))):
        rate = statistics.fmean(rates[some])
        answers = sorted(t for took in waits[some] for t in took)
        emit(
            f"submissions.{name}_{2 * each}_of_{JOBS}",
            rate,
            "jobs/s",
            ratio=rate / statistics.fmean(bare[some]),
            to="a write to the store and a request that is only answered, in turns",
            aim=AIM_PER_S,
            answer_ms_median=round(statistics.median(answers) * 1e3, 1),
            answer_ms_p95=round(answers[int(0.95 * len(answers))] * 1e3, 1),
            at_once=AT_ONCE,
        )
        cost_s = statistics.fmean(costs[some])
        emit(
            f"submissions.{name}_{2 * each}_of_{JOBS}.scheduler",
            cost_s * 1e3,
            "ms at a processor for each job",
            ratio=1 / cost_s / AIM_PER_S,
            to="so many times the jobs a second that are aimed at would take up one processor",
        )


def main() -> None:
    """Run it."""
    arguments(__doc__ or "")

    async def run(record: StackRecord) -> None:
        async with connected(record) as client:
            await client.submit(document("holds"))
            await measure(client, record)

    with private_stack(workers=1, shards=1) as record:
        asyncio.run(run(record))


if __name__ == "__main__":
    main()
