"""How many iteration rows a second the monitor takes in, from jobs whose iterations are short.

First in one process and without a broker: what the monitor does with a message, beside reading the same bytes and
nothing else. Then a whole monitor of a private stack, over its broker, while it also writes the histories to the store;
beside it, in turns, a process that takes the same messages from the same broker and does nothing but read them. Last
as many rows a second as are aimed at, to see whether the monitor keeps up and what that takes of a processor.
Messages are as leaders send them: every 100 ms, or every 20 ms where the scheduler balances batches by the timings in
them, which the monitor then passes on.
"""

from __future__ import annotations

import asyncio
import itertools
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from typing import Any

import psutil
from measuring import arguments, emit, in_turns, median, say
from private_stack import private_stack

from elps.contracts import topology
from elps.contracts.codec import decode, encode
from elps.contracts.epoch import Term
from elps.contracts.ids import JobId, WorkerId
from elps.contracts.job import JobDocument
from elps.contracts.messages import JobEvent
from elps.contracts.state import JobRecord, JobState
from elps.contracts.telemetry import IterationRow, IterationRows, TelemetryMessage, WorkerTiming
from elps.local.record import StackRecord
from elps.messaging.amqp import AmqpBus
from elps.messaging.memory import MemoryBroker, MemoryBus
from elps.messaging.port import Delivery, Queue
from elps.monitor.core.state import State
from elps.monitor.desk import Desk
from elps.runtime.service import SystemClock
from elps.storage.memory import MemoryStore
from elps.storage.redis import RedisStore

AIM_PER_S = 20_000
ROWS_AT_ONCE = 20_000
JOBS, WORKERS = 20, 2
TERM = Term(1, 1)
BARE = "bench.bare"
"""A key of telemetry that the monitor does not listen to."""
WAIT_S = 60.0
LOOK_S = 0.25
"""Between questions to the monitor: with 40 jobs each costs it as much as 2,000 rows."""


@dataclass(frozen=True)
class Kind:
    """How the messages are, at 1,000 iterations a second of each job."""

    name: str
    rows: int
    """In one message."""
    balanced: bool


KINDS = (Kind("fixed", 100, False), Kind("balanced", 20, True))


def message(kind: Kind, job: JobId, first: int) -> bytes:
    """One message of a leader, from iteration `first` on."""
    parts = [
        WorkerTiming(
            worker=WorkerId(f"{job}-w{n}"),
            samples=32,
            compute_s=0.00061 + n * 1e-5,
            pull_s=0.00012,
            wait_s=0.00003,
            push_s=0.00017,
            lease_s=0.00005,
            cpu_process=1.5,
            cpu_host=0.5,
            memory_bytes=12_345_678_912,
        )
        for n in range(WORKERS)
    ]
    rows = [
        IterationRow(
            iteration=first + n,
            passes=(first + n) / 23,
            samples=64,
            skipped=0,
            loss=2.3 / (first + n + 1),
            duration_s=0.001,
            at=1.7e9 + (first + n) / 1000,
            term=1,
            plan=3,
            lr=0.01,
            workers=parts,
        )
        for n in range(kind.rows)
    ]
    return encode(IterationRows(job=job, rows=rows, balanced=kind.balanced))


def messages(kind: Kind, rows: int, first: int) -> list[tuple[JobId, bytes]]:
    """So many rows of all jobs in turns, from iteration `first` of each on."""
    made: list[tuple[JobId, bytes]] = []
    for at in itertools.count(first, kind.rows):
        for job in jobs(kind):
            made.append((job, message(kind, job, at)))
            if len(made) * kind.rows >= rows:
                return made
    raise AssertionError


def jobs(kind: Kind) -> list[JobId]:
    """Those that send messages of a kind."""
    return [JobId(f"{kind.name}-{n}") for n in range(JOBS)]


def alone(kind: Kind, rows: int, times: int) -> None:
    """Without a broker: what the monitor does with a message, beside reading it."""
    numbers = itertools.count(0, rows)
    desk = Desk(
        State(lost_s=5.0, run="bench"),
        MemoryBus(MemoryBroker()),
        MemoryStore(),
        SystemClock(),
        "bench",
    )

    async def take(made: list[tuple[JobId, bytes]]) -> float:
        deliveries = [
            Delivery(body, topology.TELEMETRY, topology.telemetry_key(job), str(n))
            for n, (job, body) in enumerate(made, next(numbers))
        ]
        began = time.perf_counter()
        for delivery in deliveries:
            await desk.on_telemetry(delivery)
        return time.perf_counter() - began

    def monitor() -> float:
        return asyncio.run(take(messages(kind, rows, next(numbers))))

    def reading() -> float:
        made = messages(kind, rows, next(numbers))
        began = time.perf_counter()
        for _, body in made:
            decode(body, TelemetryMessage)  # type: ignore[arg-type]  # a union
        return time.perf_counter() - began

    took = in_turns(times, {"monitor": monitor, "reading": reading})
    rate, bare = rows / median(took["monitor"]), rows / median(took["reading"])
    emit(
        f"ingest.{kind.name}.alone",
        rate,
        "rows/s",
        ratio=rate / bare,
        to="reading the same messages and nothing else, in turns",
        aim=AIM_PER_S,
        rows_in_a_message=kind.rows,
        workers=WORKERS,
    )


def read_only(url: str, ready: Event, count: Synchronized[int]) -> None:
    """A process that takes messages from the broker and only reads them."""

    async def run() -> None:
        bus = await AmqpBus.connect(url, name="bare", timeout_s=20.0)

        async def take(delivery: Delivery) -> None:
            found: Any = decode(delivery.body, TelemetryMessage)  # type: ignore[arg-type]
            count.value += len(found.rows)

        await bus.subscribe(
            Queue("bench.bare", ((topology.TELEMETRY, BARE),), max_length=10_000, prefetch=256),
            take,
        )
        ready.set()
        await asyncio.Event().wait()

    asyncio.run(run())


@contextmanager
def reader(url: str) -> Iterator[Synchronized[int]]:
    """That process, and how many rows it has read."""
    context = get_context("spawn")
    ready, count = context.Event(), context.Value("q", 0)
    process = context.Process(target=read_only, args=(url, ready, count), daemon=True)
    process.start()
    try:
        if not ready.wait(WAIT_S):
            raise RuntimeError("the process that only reads did not start")
        yield count
    finally:
        process.kill()
        process.join()


def rows_taken(monitor_url: str) -> int:
    """As the monitor counts them."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{monitor_url}/metrics", timeout=WAIT_S) as response:
        for line in response.read().decode().splitlines():
            if line.startswith("elps_monitor_rows_total "):
                return int(float(line.split()[1]))
    raise RuntimeError("the monitor does not count its rows")


async def make_known(stack: StackRecord, kinds: tuple[Kind, ...]) -> None:
    """Jobs that train, as far as the monitor knows."""
    bus = await AmqpBus.connect(stack.amqp_url, name="bench", timeout_s=20.0)
    store = await RedisStore.connect(stack.redis_url, timeout_s=20.0)
    for seq, job in enumerate(job for kind in kinds for job in jobs(kind)):
        record = JobRecord(
            id=job,
            document=JobDocument(task="softmax", iterations=2**40),
            state=JobState.RUNNING,
            reason="",
            seq=1000 + seq,
            submitted_at=1.0,
            changed_at=1.0,
            terms=1,
        )
        await store.hash_put(topology.JOB_INDEX, job, encode(record))
        event = JobEvent(job=job, what="running", at=1.0, state=JobState.RUNNING, record=record)
        await bus.publish(topology.EVENTS, topology.event_key(job, "running"), encode(event))
    await store.close()
    await bus.close()


async def send(url: str, made: list[tuple[str, bytes]], per_s: float = 0.0) -> tuple[float, float]:
    """So many messages a second, or as fast as the broker takes them; when that began and ended."""
    bus = await AmqpBus.connect(url, name="bench", timeout_s=20.0)
    began = time.perf_counter()
    for n, (key, body) in enumerate(made):
        early_s = n / per_s - (time.perf_counter() - began) if per_s else 0.0
        if early_s > 0:
            await asyncio.sleep(early_s)
        await bus.publish(topology.TELEMETRY, key, body, confirm=False)
    await bus.close()
    return began, time.perf_counter()


def await_rows(taken: Callable[[], int], rows: int, began: float, look_s: float) -> float:
    """Until so many are taken in all; when that was."""
    while (found := taken()) < rows:
        if time.perf_counter() - began > WAIT_S:
            raise RuntimeError(f"{rows - found} rows have not come through within {WAIT_S:g} s")
        time.sleep(look_s)
    return time.perf_counter()


def keyed(made: list[tuple[JobId, bytes]]) -> list[tuple[str, bytes]]:
    """Under the keys of their jobs."""
    return [(topology.telemetry_key(job), body) for job, body in made]


def processor_s(stack: StackRecord, service: str) -> float:
    """What a service has had of the processors so far."""
    times = psutil.Process(stack.services[service].pid).cpu_times()
    return float(times.user + times.system)


def at_once(stack: StackRecord, kind: Kind, numbers: Iterator[int], rows: int, times: int) -> None:
    """A whole monitor, and a process that only reads, in turns: as fast as they can."""
    used: list[float] = []

    def timed(made: list[tuple[str, bytes]], taken: Callable[[], int], look_s: float) -> float:
        before = taken()
        began, _ = asyncio.run(send(stack.amqp_url, made))
        return await_rows(taken, before + rows, began, look_s) - began

    with reader(stack.amqp_url) as count:

        def monitor() -> float:
            made = keyed(messages(kind, rows, next(numbers)))
            before = processor_s(stack, "monitor")
            took = timed(made, lambda: rows_taken(stack.monitor_url), LOOK_S)
            used.append(processor_s(stack, "monitor") - before)
            return took

        def bare() -> float:
            made = messages(kind, rows, next(numbers))
            return timed([(BARE, body) for _, body in made], lambda: count.value, LOOK_S / 25)

        took = in_turns(times, {"monitor": monitor, "bare": bare})
    rate = rows / median(took["monitor"])
    emit(
        f"ingest.{kind.name}.over_broker",
        rate,
        "rows/s",
        ratio=rate * median(took["bare"]) / rows,
        to="a process that takes the same messages and only reads them, in turns",
        aim=AIM_PER_S,
        rows_in_a_message=kind.rows,
        workers=WORKERS,
        jobs=JOBS,
        rows_for_a_second_of_a_processor=rows / median(used[1:]),
    )


def steadily(stack: StackRecord, kind: Kind, numbers: Iterator[int], seconds: float) -> None:
    """At the rate that is aimed at: whether it keeps up, and what it takes of a processor."""
    made, rows = [], 0
    while rows < AIM_PER_S * seconds:
        made += messages(kind, ROWS_AT_ONCE, next(numbers))
        rows += ROWS_AT_ONCE
    before, used = rows_taken(stack.monitor_url), processor_s(stack, "monitor")
    began, ended = asyncio.run(send(stack.amqp_url, keyed(made), AIM_PER_S / kind.rows))
    behind = before + rows - rows_taken(stack.monitor_url)
    done = await_rows(lambda: rows_taken(stack.monitor_url), before + rows, began, LOOK_S)
    emit(
        f"ingest.{kind.name}.steady",
        rows / (done - began),
        "rows/s",
        ratio=(ended - began) / (done - began),
        to="the rate at which they were sent",
        aim=AIM_PER_S,
        seconds=ended - began,
        rows_behind_at_the_end=behind,
        of_a_processor=(processor_s(stack, "monitor") - used) / (done - began),
        rows_in_a_message=kind.rows,
        workers=WORKERS,
        jobs=JOBS,
    )


def main() -> None:
    """Run it."""
    full = arguments(__doc__ or "").full
    rows, times, seconds = (100_000, 5, 15.0) if full else (3 * ROWS_AT_ONCE, 3, 5.0)
    for kind in KINDS:
        alone(kind, rows, times)
    with private_stack(workers=1, shards=1) as stack:
        asyncio.run(make_known(stack, KINDS))
        for kind in KINDS:
            numbers = itertools.count(0, rows)
            say(f"ingest: {rows} rows {kind.rows} at a time, {times} times")
            at_once(stack, kind, numbers, rows, times)
            say(f"ingest: {AIM_PER_S} rows a second, {kind.rows} at a time, for {seconds:g} s")
            steadily(stack, kind, numbers, seconds)


if __name__ == "__main__":
    main()
