"""What it costs a running job to change its size, beside stopping it and starting it again from a checkpoint.

A job trains on and on: a perceptron that reads digits on workers that compute as slowly as if each had a machine of its
own, and not a share of this one; the same at full speed, so that all processors are busy and its iterations short; and
a job that computes nothing, an iteration of which is only what elps itself does, so that any pause is many of them. It
gets a worker and gives it back, gets a shard and gives it back; then it makes the same changes by pausing, which writes
a checkpoint, and resuming at the other size. What is told is the time lost beside an even run at the two sizes, in
iterations of the job, and how long it took from the request to the newcomer's first finished iteration.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from measuring import arguments, emit, say
from private_stack import WAIT_S, idle_job, in_stack, private_stack

from elps.client.control import Client
from elps.contracts.messages import JobEvent
from elps.contracts.telemetry import IterationRow

CHANGES = (
    ("workers_2_to_3", {"workers": 3}),
    ("workers_3_to_2", {"workers": 2}),
    ("shards_1_to_2", {"shards": 2}),
    ("shards_2_to_1", {"shards": 1}),
)
NOTHING: tuple[str, dict[str, int]] = ("nothing", {})
"""The same reckoning while nothing is changed: what the machine's own unrest makes of it."""
TIMES = 5
BATCHES = {
    "perceptron": {1: 768, 16: 64, 64: 32},
    "crowded": {1: 256, 16: 64, 64: 32},
}
"""The global batch by kind of job and megabytes of parameters."""
SLOWER = {1: 16, 16: 16, 64: 3}
"""Emulated machines of these factors leave most of the processors' time to whoever comes or goes; by megabytes, so that
an iteration takes a fraction of a second."""
DIGITS_WIDTH = 64 + 1 + 10
"""Parameters of a perceptron on the digits for each hidden unit."""
EVEN = 12
"""Iterations at rest, before and after a change."""


@dataclass
class Watched:
    """A job's rows and events as they come."""

    client: Client
    name: str
    rows: list[IterationRow] = field(default_factory=list)
    events: list[JobEvent] = field(default_factory=list)
    came: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def follow(self) -> None:
        """Until it is cancelled."""
        async with self.client.follow(self.name) as stream:
            while True:
                item = await stream.next(WAIT_S)
                async with self.came:
                    if isinstance(item, IterationRow):
                        self.rows.append(item)
                    elif isinstance(item, JobEvent):
                        self.events.append(item)
                        if item.what in ("failed", "killed", "finished"):
                            raise RuntimeError(f"the job has {item.what}: {item.reason}")
                    self.came.notify_all()

    async def until(self, holds: Any, what: str) -> None:
        """Wait for something to be told."""
        async with asyncio.timeout(WAIT_S), self.came:
            await self.came.wait_for(holds)
            say(f"  {what}")

    async def even(self) -> None:
        """Some iterations more."""
        count = len(self.rows) + EVEN
        await self.until(lambda: len(self.rows) >= count, f"{count} iterations")

    def since(self, at: float, what: str) -> JobEvent | None:
        """The first event of a kind after a time."""
        return next((e for e in self.events if e.at >= at and e.what == what), None)


def workers_of(row: IterationRow) -> set[str]:
    """Who took part in an iteration."""
    return {timing.worker for timing in row.workers}


def lost(rows: list[IterationRow], asked_at: float, done_at: float) -> tuple[float, float]:
    """Seconds lost between two times beside an even run at the size before; and the even iteration after."""
    before = [r.duration_s for r in rows if r.at < asked_at][-EVEN:]
    after = [r.duration_s for r in rows if r.at - r.duration_s >= done_at][:EVEN]
    usual = statistics.fmean(before)
    between = [r.duration_s for r in rows if r.at >= asked_at and r.at - r.duration_s < done_at]
    return sum(between) - usual * len(between), statistics.median(after)


@dataclass
class Change:
    """What one change of size cost."""

    lost_s: float
    iteration_s: float
    """At the new size."""
    done_s: float
    newcomer_s: float | None = None
    """From the request to the end of a newcomer's first iteration."""


async def change(job: Watched, size: dict[str, int], name: str) -> Change:
    """Change the size while it trains; with no size, let as much time pass as a change takes."""
    await job.even()
    asked_at, known = time.time(), workers_of(job.rows[-1])
    if size:
        reply = await job.client.scale(job.name, **size)
        if not reply.ok:
            raise RuntimeError(reply.reason)
    if "workers" in size:
        wanted = size["workers"]
        await job.until(lambda: len(workers_of(job.rows[-1])) == wanted, name)
        done_at = next(r.at for r in job.rows if r.at > asked_at and len(workers_of(r)) == wanted)
    elif "shards" in size:
        await job.until(lambda: job.since(asked_at, "partitions_moved") is not None, name)
        moved = job.since(asked_at, "partitions_moved")
        assert moved is not None
        done_at = moved.at
    else:
        await job.even()
        done_at = job.rows[-1].at
    await job.even()
    await job.even()
    seconds, iteration = lost(job.rows, asked_at, done_at)
    new = next((r for r in job.rows if r.at > asked_at and workers_of(r) - known), None)
    return Change(seconds, iteration, done_at - asked_at, new.at - asked_at if new else None)


def tell(name: str, changes: list[Change], about: dict[str, Any]) -> None:
    """The middle of some changes of one kind, and how far they lie apart."""
    ratios = sorted(c.lost_s / c.iteration_s for c in changes)
    emit(
        f"elastic.{name}",
        statistics.median(c.lost_s for c in changes) * 1e3,
        "ms",
        ratio=statistics.median(ratios),
        to="an iteration of the job; aim: below 1",
        least=round(ratios[0], 2),
        most=round(ratios[-1], 2),
        times=len(changes),
        done_in_s=statistics.median(c.done_s for c in changes),
        **about,
    )
    if newcomers := [c for c in changes if c.newcomer_s is not None]:
        emit(
            f"elastic.{name}.first_iteration_of_newcomer",
            statistics.median(c.newcomer_s or 0 for c in newcomers),
            "s",
            ratio=statistics.median((c.newcomer_s or 0) / c.iteration_s for c in newcomers),
            to="an iteration of the job",
            **about,
        )


async def restart(job: Watched, size: dict[str, int], about: dict[str, Any], name: str) -> None:
    """The same by a checkpoint, a stop and a start."""
    await job.even()
    asked_at = time.time()
    await job.client.pause(job.name)
    await job.until(lambda: job.since(asked_at, "paused") is not None, f"{name}: paused")
    term = job.rows[-1].term
    await job.client.scale(job.name, **size)
    await job.client.resume(job.name)
    await job.until(lambda: job.rows[-1].term > term, f"{name}: training again")
    last = max((r for r in job.rows if r.term == term), key=lambda r: r.at)
    first = min((r for r in job.rows if r.term > term), key=lambda r: r.at)
    await job.even()
    iteration = statistics.median(r.duration_s for r in job.rows[-EVEN:])
    seconds = first.at - last.at - iteration
    emit(
        f"elastic.{name}.by_restart",
        seconds * 1e3,
        "ms",
        ratio=seconds / iteration,
        to="an iteration of the job: what a checkpoint and a new start cost",
        **about,
    )


def perceptron(name: str, megabytes: int, batch: int) -> dict[str, Any]:
    """A job with as many parameters; the batch says how long an iteration is."""
    return {
        "id": name,
        "task": "mlp",
        "task_args": {"hidden": [megabytes * 250_000 // DIGITS_WIDTH]},
        "data": {"source": "digits", "scale": "standard"},
        "iterations": 1_000_000,
        "batch": {"global": batch, "policy": "fixed"},
        "optimizer": {"name": "sgd", "lr": 0.001},
        "checkpoint": {"every_s": 0},
    }


async def measure(client: Client, kind: str, megabytes: int) -> None:
    """One job of one size."""
    name = f"elastic-{kind}-{megabytes}"
    if kind == "idle":
        document: dict[str, Any] = idle_job(name, megabytes * 250_000, 1_000_000, 2)
    else:
        document = perceptron(name, megabytes, BATCHES[kind][megabytes])
    document["workers"], document["shards"] = {"min": 1, "max": 3}, {"min": 1, "max": 2}
    job = Watched(client, name)
    following = asyncio.create_task(job.follow())
    reply = await client.submit(document)
    if not reply.ok:
        raise RuntimeError(reply.reason)
    about: dict[str, Any] = {"job": kind, "megabytes": megabytes, "optimizer": "sgd"}
    try:
        await client.scale(name, workers=2, shards=1)
        await job.until(
            lambda: job.rows and len(workers_of(job.rows[-1])) == 2, "two workers, one shard"
        )
        await asyncio.sleep(3)
        found: dict[str, list[Change]] = {}
        for n in range(TIMES):
            for what, size in (NOTHING, *CHANGES):
                say(f"elastic: {kind}, {megabytes} MB, {what}, {n + 1} of {TIMES}")
                found.setdefault(what, []).append(await change(job, size, what))
        for what, changes in found.items():
            tell(what, changes, about)
        for what, size in CHANGES:
            say(f"elastic: {kind}, {megabytes} MB, {what}, by a restart")
            await restart(job, size, about, what)
        await client.kill(name)
    finally:
        following.cancel()


def main() -> None:
    """Run all."""
    options = arguments(__doc__ or "")
    sizes = (1, 16, 64) if options.full else (1, 16)
    for kinds, slower in (
        (("perceptron",), SLOWER),
        (("crowded", "idle"), dict.fromkeys(sizes, 1)),
    ):
        for megabytes in sizes:
            slowdown = f"factor:{slower[megabytes]}"
            with private_stack(workers=3, shards=2, ELPS_WORKER_SLOWDOWN=slowdown) as record:
                for kind in kinds:
                    in_stack(record, partial(measure, kind=kind, megabytes=megabytes))


if __name__ == "__main__":
    main()
