"""How soon a newcomer on a full cluster computes, what that costs the donors, and who has its workers after its end.

    .venv/bin/python tests/bench/bench_giving_way.py        # about two minutes

Two long jobs have all eight emulated workers under `eps`, an iteration of theirs takes 0.4 s. A third one arrives,
trains, and is killed; that several times. Told are the time from handing it in to the end of its first iteration, what
the donors lose meanwhile beside even iterations of as many workers, and, after the kill, the time until the first of
its workers, and until the last, has joined another job, and until they compute there. At last jobs that cannot be made
smaller fill the cluster, and one is killed for which another waits: the time until that one computes.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from lives import Life, must
from measuring import arguments, emit, say
from private_stack import in_stack, private_stack

from elps.client.control import Client
from elps.contracts.telemetry import IterationRow

WORKERS, SHARDS, BATCH = 8, 3, 64
SAMPLE_S = 0.025
"""An iteration takes 0.4 s with four workers, 0.2 s with eight."""
NEWCOMERS_BATCH = 16
"""Its iterations take 0.4 s at most, too, with however few workers it begins."""
TIMES = 6
EVEN = 6
"""Iterations at rest before each newcomer."""
GROWN = 8
"""Iterations of a newcomer after which it has its share."""
CALM_S = 2.0
"""Longer than a job is left alone before it grows."""
ENDLESS = 1_000_000
AIM_FIRST_S, AIM_LOST, AIM_RUNS_S = 2.0, 1.0, 1.0


def document(name: str, batch: int = BATCH, **fields: Any) -> dict[str, Any]:
    """A job that takes one worker to all of them."""
    return {
        "id": name,
        "task": "idle:Idle",
        "task_args": {"size": 10_000, "sample_s": SAMPLE_S},
        "iterations": ENDLESS,
        "batch": {"global": batch, "policy": "fixed"},
        "optimizer": {"name": "sgd", "lr": 0.01},
        "workers": {"min": 1, "max": WORKERS},
        "checkpoint": {"every_s": 0},
        "feedback": {"iterations": 2},
        **fields,
    }


@dataclass
class Found:
    """Of all newcomers."""

    first_s: list[float] = field(default_factory=list)
    spans: list[tuple[float, float]] = field(default_factory=list)
    """From each one's arrival until its donors train evenly again; Unix times."""
    runs_s: list[tuple[float, float]] = field(default_factory=list)
    """From each kill to the first and the last of its workers' computing for another job."""
    joined_s: list[tuple[float, float]] = field(default_factory=list)
    """To their being ready for it."""
    next_s: list[float] = field(default_factory=list)
    """From each kill to the first iteration of the job that has waited for it."""


def workers_of(row: IterationRow) -> set[str]:
    """Who took part in an iteration."""
    return {timing.worker for timing in row.workers}


async def at_work(lives: list[Life], workers: int) -> None:
    """Wait until the long jobs have so many workers together, and train evenly."""
    counts = [len(life.rows) for life in lives]

    def holds() -> bool:
        newest = [life.rows[n:][-EVEN:] for life, n in zip(lives, counts, strict=True)]
        sizes = [{len(row.workers) for row in rows} for rows in newest]
        even = all(len(rows) == EVEN for rows in newest) and all(len(some) == 1 for some in sizes)
        return even and sum(sum(some) for some in sizes) == workers

    await lives[0].until(holds, f"even iterations of {workers} workers of all")


async def once(client: Client, number: int, lives: list[Life], found: Found) -> None:
    """One newcomer."""
    say(f"giving way: {number + 1} of {TIMES}")
    await at_work(lives, WORKERS)
    async with Life(client, f"newcomer-{number}") as new:
        asked_at = time.time()
        await must(client.submit(document(new.name, NEWCOMERS_BATCH)))
        await new.until(lambda: new.rows, "first iteration")
        found.first_s.append(new.rows[0].at - asked_at)
        await new.until(lambda: new.rows[-1].iteration >= GROWN, "iterations of its share")
        size = len(new.rows[-1].workers)
        await at_work(lives, WORKERS - size)
        found.spans.append((asked_at, time.time()))
        await asyncio.sleep(CALM_S)  # else what is measured is how long a job is left alone
        known = [workers_of(life.rows[-1]) for life in lives]
        asked_at = time.time()
        await must(client.kill(new.name))

    def began() -> list[float]:
        """When each worker that is new to a job began its first iteration there."""
        first: dict[str, float] = {}
        for life, before in zip(lives, known, strict=True):
            for row in (row for row in life.rows if row.at > asked_at):
                for worker in workers_of(row) - before:
                    first.setdefault(f"{life.name} {worker}", row.at - row.duration_s)
        return sorted(first.values())

    await lives[0].until(lambda: len(began()) >= size, f"{size} workers in other jobs")
    found.runs_s.append((began()[0] - asked_at, began()[size - 1] - asked_at))
    joined = sorted(
        e.at - asked_at
        for life in lives
        for e in life.events
        if e.what == "worker_joined" and e.at > asked_at
    )
    found.joined_s.append((joined[0], joined[size - 1]))


async def in_turn(client: Client, found: Found) -> None:
    """Jobs of half the cluster each, of which two run: one is killed, and the next one has its place."""
    half = WORKERS // 2
    async with AsyncExitStack() as stack:
        names = [f"half-{n}" for n in range(TIMES + 2)]
        lives = [await stack.enter_async_context(Life(client, name)) for name in names]
        for name in names:
            wanted = document(name, workers={"min": half, "max": half})
            await must(client.submit(wanted))
        for ends, begins in zip(lives, lives[2:], strict=False):
            await ends.until(lambda life=ends: len(life.rows) >= EVEN, "some iterations")
            asked_at = time.time()
            await must(client.kill(ends.name))
            await begins.until(lambda life=begins: len(life.rows) >= EVEN, "some iterations")
            usual = statistics.median(row.duration_s for row in begins.rows[1:])
            found.next_s.append(begins.rows[0].at - usual - asked_at)
        for life in lives[-2:]:
            await must(client.kill(life.name))


def lost(life: Life, span: tuple[float, float], usual: dict[int, float]) -> float:
    """Of a donor while a newcomer came, in its iterations at its size afterwards."""
    rows = [r for r in life.rows if span[0] <= r.at <= span[1] and len(r.workers) in usual]
    beyond = sum(row.duration_s - usual[len(row.workers)] for row in rows)
    return beyond / usual[len(rows[-1].workers)]


def usual_s(lives: list[Life]) -> dict[int, float]:
    """Seconds of an even iteration by number of workers."""
    times: dict[int, list[float]] = {}
    for life in lives:
        for before, row in pairwise(life.rows):
            if workers_of(before) == workers_of(row):
                times.setdefault(len(row.workers), []).append(row.duration_s)
    return {n: statistics.median(some) for n, some in times.items()}


async def measure(client: Client) -> None:
    """All of it."""
    found = Found()
    async with AsyncExitStack() as stack:
        came = asyncio.Condition()
        lives = [
            await stack.enter_async_context(Life(client, f"long-{n}", came=came)) for n in range(2)
        ]
        for life in lives:
            await must(client.submit(document(life.name)))
        for life in lives:
            await life.told("feedback")
        for number in range(TIMES):
            await once(client, number, lives, found)
        usual = usual_s(lives)
        losses = [lost(life, span, usual) for life in lives for span in found.spans]
        for life in lives:
            await must(client.kill(life.name))
    await in_turn(client, found)
    about: dict[str, Any] = {"workers": WORKERS, "jobs": len(lives), "times": TIMES}
    tell("first_iteration", found.first_s, "s", AIM_FIRST_S, about)
    tell("donors_lose", losses, "iterations", AIM_LOST, about)
    for name, spans in (("joined", found.joined_s), ("running", found.runs_s)):
        tell(f"killed_to_first_{name}", [first for first, _ in spans], "s", AIM_RUNS_S, about)
        tell(f"killed_to_all_{name}", [last for _, last in spans], "s", AIM_RUNS_S, about)
    tell("killed_to_next_running", found.next_s, "s", AIM_RUNS_S, about)


def tell(name: str, values: list[float], unit: str, aim: float, about: dict[str, Any]) -> None:
    """The middle and the worst, beside what is aimed at."""
    emit(
        f"giving_way.{name}",
        statistics.median(values),
        unit,
        ratio=statistics.median(values) / aim,
        to="the aim",
        aim=aim,
        worst=max(values),
        within=sum(value <= aim for value in values) / len(values),
        **about,
    )


def main() -> None:
    """Run it."""
    arguments(__doc__ or "")
    with private_stack(WORKERS, SHARDS, ELPS_POLICY="eps") as record:
        in_stack(record, measure)


if __name__ == "__main__":
    main()
