"""What replicas cost, and what they save when a shard is killed.

Jobs of 64 MB with iterations of 0.3 s train with and without replicas in turns: the rates are compared. Then shards are
killed under a job, with replicas and without, the leading one and another: how long no iteration was finished, beside
the time of an iteration, and how many were computed again.
"""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
from functools import partial
from itertools import pairwise
from typing import Any

from bench_elastic import Watched
from measuring import arguments, emit, say
from private_stack import Told, in_stack, run_job, stack_to_start

from elps.client.control import Client
from elps.client.http import MonitorHttp
from elps.local.record import StackRecord

MEGABYTES, ITERATION_S, BATCH = 64, 0.3, 64
WARM_UP, ITERATIONS, PAIRS = 5, 25, 2
KILL_AT, GO_ON = 40, 40
"""Iterations before a kill, and after it."""


def job(
    name: str, replicas: int, iterations: int, megabytes: int, iteration_s: float
) -> dict[str, Any]:
    """A job on two shards whose two workers sleep over their samples."""
    size = megabytes * 250_000
    return {
        "id": name,
        "task": "idle:Idle",
        "task_args": {"size": size, "sample_s": iteration_s * 2 / BATCH},
        "iterations": iterations,
        "batch": {"global": BATCH, "policy": "fixed"},
        "optimizer": {"name": "sgd", "lr": 0.01},
        "replicas": replicas,
        "workers": {"min": 2, "max": 2},
        "shards": {"min": 2, "max": 2},
        "checkpoint": {"every": 25, "every_s": 0} if megabytes < MEGABYTES else {"every_s": 0},
    }


async def rates(client: Client) -> None:
    """With and without, in turns."""
    found: dict[int, list[float]] = {0: [], 1: []}
    for pair in range(PAIRS):
        for replicas in (0, 1):
            say(f"replicas: {replicas}, {pair + 1} of {PAIRS}")
            name = f"rate-{pair}-{replicas}"
            told = await run_job(client, job(name, replicas, ITERATIONS, MEGABYTES, ITERATION_S))
            found[replicas] += _even(told)
    without, having = (statistics.median(found[n]) for n in (0, 1))
    emit(
        "replicas.iteration",
        having * 1e3,
        "ms",
        ratio=without / having,
        to="the rate without replicas; aim: 0.9 or more",
        without_ms=without * 1e3,
        megabytes=MEGABYTES,
    )


def _even(told: Told) -> list[float]:
    return [row.duration_s for row in told.rows if row.iteration >= WARM_UP]


async def kill(client: Client, record: StackRecord, replicas: int, leader: bool) -> None:
    """Kill a shard under a job, and see how it goes on."""
    name = f"killed-{replicas}-{'leader' if leader else 'other'}"
    say(f"replicas: {name}")
    watched = Watched(client, name)
    following = asyncio.create_task(watched.follow())
    try:
        reply = await client.submit(job(name, replicas, 1_000_000, 1, 0.05))
        if not reply.ok:
            raise RuntimeError(reply.reason)
        await watched.until(lambda: len(watched.rows) >= KILL_AT, f"{KILL_AT} iterations")
        monitor = MonitorHttp(record.monitor_url)
        shown = await asyncio.to_thread(monitor.job, name)
        other = next(s for s in shown["holders"] if s != shown["leader"])
        usual = statistics.median(row.duration_s for row in watched.rows[WARM_UP:])
        last = watched.rows[-1]
        os.kill(record.services[shown["leader"] if leader else other].pid, signal.SIGKILL)
        await watched.until(
            lambda: watched.rows[-1].iteration >= last.iteration + GO_ON, "recovery"
        )
        times = [row.at for row in watched.rows if row.at >= last.at]
        gap = max(b - a for a, b in pairwise(times))
        again = (await asyncio.to_thread(monitor.job, name))["redone_iterations"]
        emit(
            f"recovery.{'leading_shard' if leader else 'shard'}",
            gap,
            "s",
            ratio=gap / usual,
            to="an iteration of the job",
            replicas=replicas,
            computed_again=again,
        )
        await client.kill(name)
    finally:
        following.cancel()


def main() -> None:
    """Run all."""
    arguments(__doc__ or "")
    with stack_to_start() as stack:
        in_stack(stack.up(2, 3), rates)
        for replicas in (1, 0):
            for leader in (False, True):
                record = stack.up(2, 3)  # what was killed is started again
                in_stack(record, partial(kill, record=record, replicas=replicas, leader=leader))


if __name__ == "__main__":
    main()
