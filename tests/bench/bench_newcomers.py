"""How soon newcomers give their early feedback on a full cluster, under each policy.

One workload, fixed beforehand: a long job takes all eight emulated workers, and shorter ones arrive while it trains.
The same jobs at the same times under `fifo` and under `eps`. Told are the time from handing a job in to its feedback,
the time to its end, and the time until all have ended.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any

from measuring import arguments, emit, say
from private_stack import Told, in_stack, private_stack, run_job

from elps.client.control import Client

WORKERS, SHARDS, BATCH = 8, 3, 64
SAMPLE_S = 0.01
"""An iteration takes 0.64 s with one worker, 0.08 s with eight."""
FEEDBACK = 10
LONG, SHORT = 300, 60
"""Iterations."""
ARRIVALS_S = (4.0, 6.0, 6.5, 14.0, 20.0)
"""Of the short jobs, after the long one."""


def job(name: str, iterations: int) -> dict[str, Any]:
    """A job that takes one worker to all of them."""
    return {
        "id": name,
        "task": "idle:Idle",
        "task_args": {"size": 10_000, "sample_s": SAMPLE_S},
        "iterations": iterations,
        "batch": {"global": BATCH, "policy": "fixed"},
        "optimizer": {"name": "sgd", "lr": 0.01},
        "workers": {"min": 1, "max": WORKERS},
        "shards": {"min": 1, "max": 2},
        "checkpoint": {"every_s": 0},
        "feedback": {"iterations": FEEDBACK},
    }


async def workload(client: Client) -> dict[str, Told]:
    """All jobs at their times."""

    async def at(delay_s: float, name: str, iterations: int) -> Told:
        await asyncio.sleep(delay_s)
        say(f"newcomers: {name}")
        return await run_job(client, job(name, iterations))

    async with asyncio.TaskGroup() as group:
        tasks = {"long": group.create_task(at(0.0, "long", LONG))}
        for n, delay_s in enumerate(ARRIVALS_S):
            name = f"short-{n}"
            tasks[name] = group.create_task(at(delay_s, name, SHORT))
    return {name: task.result() for name, task in tasks.items()}


def figures(told: dict[str, Told], took_s: float) -> dict[str, float]:
    """Seconds."""
    waits, ends = [], []
    for one in told.values():
        fed, finished = one.event("feedback"), one.event("finished")
        assert fed is not None
        assert finished is not None
        waits.append(fed.at - one.submitted_at)
        ends.append(finished.at - one.submitted_at)
    short = waits[1:]
    return {
        "feedback": statistics.fmean(short),
        "feedback_longest": max(short),
        "completion": statistics.fmean(ends),
        "makespan": took_s,
    }


def main() -> None:
    """Run all."""
    arguments(__doc__ or "")
    found: dict[str, dict[str, float]] = {}
    for policy in ("fifo", "eps"):
        say(f"newcomers: {policy}")
        with private_stack(WORKERS, SHARDS, ELPS_POLICY=policy) as record:
            began = time.monotonic()
            told = in_stack(record, workload)
            found[policy] = figures(told, time.monotonic() - began)
    for what, seconds in found["eps"].items():
        emit(
            f"newcomers.{what}",
            seconds,
            "s",
            ratio=found["fifo"][what] / seconds,
            to="how many times as long it takes first come, first served",
            fifo_s=found["fifo"][what],
            workers=WORKERS,
            jobs=1 + len(ARRIVALS_S),
        )


if __name__ == "__main__":
    main()
