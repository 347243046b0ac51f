"""What a simulation has to know of a machine, measured on it: iterations by number of workers, and what changes cost.

One job under `fifo`: it starts on the idle cluster, is made smaller and larger, is stopped and started again, and is
killed while another one waits for all that it has.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from lives import Life, must
from newcomers_workload import WORKERS, document

from elps.client.control import Client
from elps.contracts.telemetry import IterationRow

SIZES = (8, 4, 2, 1)
"""As it shrinks; it grows the other way round."""
EVEN = {8: 25, 4: 12, 2: 8, 1: 5}
"""Iterations at each size: some two or three seconds."""
SETTLED = 5
"""Iterations after a start of which the first may have begun before all workers were there."""
CALM_S = 20.0
ENDLESS = 1_000_000


@dataclass(frozen=True)
class Calibrated:
    """Seconds."""

    iteration_s: dict[int, float]
    """By number of workers."""
    costs: dict[str, float]
    """As `[costs]` in a workload for `elps simulate`."""


async def calibrate(client: Client) -> Calibrated:
    """Takes about 25 s; the cluster is idle before and after."""
    async with Life(client, "calibration-0") as first, Life(client, "calibration-1") as second:
        await must(client.submit(document(first.name, ENDLESS)))
        await first.even(WORKERS, EVEN[WORKERS])
        changes = [await _resized(first, n) for n in SIZES[1:]]
        ready = [(await _resized(first, n))[0] for n in SIZES[-2::-1]]
        changes = [at for _, at in changes]
        iteration_s = _by_workers(first.rows)
        stop_s, restart_s = await _restarted(first, iteration_s)
        waits = {**document(second.name, ENDLESS), "workers": {"min": WORKERS, "max": WORKERS}}
        await must(client.submit(waits))
        await must(client.kill(first.name))
        killed, placed = await first.told("killed"), await second.told("starting")
        await second.even(WORKERS, 2 * SETTLED)
        await must(client.kill(second.name))
        await second.told("killed")
        starts = [_started(life, iteration_s[WORKERS]) for life in (first, second)]
        lost = [_lost(first.rows, at, iteration_s) for at in changes]
    await idle(client)
    costs = {
        "start_s": statistics.fmean(starts),
        "ready_s": statistics.fmean(ready),
        "change_most_s": max(0.0, statistics.fmean(lost)),
        "free_s": max(0.0, placed.at - killed.at),
        "stop_s": stop_s,
        "restart_s": restart_s,
        "restart_iterations": 0.0,
    }
    return Calibrated(iteration_s, costs)


async def idle(client: Client) -> None:
    """Wait until no member has anything of a job."""
    async with asyncio.timeout(CALM_S):
        while any(member.used for member in (*await client.workers(), *await client.shards())):  # noqa: ASYNC110
            await asyncio.sleep(0.1)  # nobody tells of it


async def _resized(life: Life, workers: int) -> tuple[float, float]:
    """Until the first iteration with the new workers began, and when that was."""
    asked_at = time.time()
    await must(life.client.scale(life.name, workers=workers))
    await life.even(workers, EVEN[workers])
    row = next(r for r in life.rows if r.at > asked_at and len(r.workers) == workers)
    began_at = row.at - row.duration_s
    return began_at - asked_at, began_at


async def _restarted(life: Life, iteration_s: dict[int, float]) -> tuple[float, float]:
    """Until a job that is stopped rests; and between its last iteration and the next at the same size."""
    asked_at, term = time.time(), life.rows[-1].term
    await must(life.client.pause(life.name))
    paused = await life.told("paused", asked_at)
    await must(life.client.resume(life.name))
    await life.until(lambda: len(_of_later(life, term)) > SETTLED, "training again")
    last = max(row.at for row in life.rows if row.term == term)
    gap_s = _of_later(life, term)[SETTLED].at - last - (SETTLED + 1) * iteration_s[WORKERS]
    return paused.at - asked_at, gap_s


def _of_later(life: Life, term: int) -> list[IterationRow]:
    return [row for row in life.rows if row.term > term]


def _started(life: Life, iteration_s: float) -> float:
    """From its place to its first iteration, with what is lost until all workers are there."""
    placed = life.event("starting")
    assert placed is not None
    return life.rows[SETTLED].at - placed.at - (SETTLED + 1) * iteration_s


def _by_workers(rows: list[IterationRow]) -> dict[int, float]:
    """Medians; the first iteration after a change is none of an even run."""
    found: dict[int, list[float]] = {}
    for before, row in pairwise(rows):
        if len(before.workers) == len(row.workers):
            found.setdefault(len(row.workers), []).append(row.duration_s)
    return {n: statistics.median(found[n]) for n in sorted(SIZES)}


def _lost(rows: list[IterationRow], at: float, iteration_s: dict[int, float]) -> float:
    """By a change: what the iterations around it took beyond even ones of so many workers."""
    around: list[Any] = [r for r in rows if abs(r.at - at) < 1.0 and len(r.workers) in iteration_s]
    return sum(row.duration_s - iteration_s[len(row.workers)] for row in around)
