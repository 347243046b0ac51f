"""Time to a loss with a barrier and without, on emulated uneven machines: one model, one data set, all modes at once.

Four agents, one of them slowed by 2 and one by 4 (`ELPS_WORKER_SLOWDOWN`). Jobs of all modes train on them at the same
time, so that a drift of this machine meets all alike; a computation is mostly sleep, or they would not fit a few cores.
Each job is evaluated every few iterations and ends when the held-out loss is at the target. Time counts from its
first row on; the ratio is the time of ``bsp`` with equal batches over a mode's own.
"""

from __future__ import annotations

import asyncio
from typing import Any

from measuring import arguments, emit, say
from private_stack import Told, connected, private_stack, run_job

from elps.local.record import StackRecord

WORKERS = 4
BATCH = 64
SLOWDOWN = "agent-3=factor:2;agent-4=factor:4"
SAMPLE_MS = 2.0
"""On an unburdened machine: equal batches then take 128 ms on the slowest, 32 ms on the fastest."""
EVERY = 10
"""Iterations between evaluations, at which no mode lets anybody run ahead."""
MODES: dict[str, dict[str, Any]] = {
    "bsp-fixed": {"batch": {"global": BATCH, "policy": "fixed"}},
    "bsp-lb": {"batch": {"global": BATCH, "policy": "lb-bsp"}},
    "ssp-1": {"batch": {"global": BATCH}, "sync": "ssp", "staleness": 1},
    "ssp-3": {"batch": {"global": BATCH}, "sync": "ssp", "staleness": 3},
    "asp": {"batch": {"global": BATCH}, "sync": "asp"},
}


def job(mode: str, target: float) -> dict[str, Any]:
    """A job that ends at a loss."""
    return {
        "id": mode,
        "task": "digits:Digits",
        "task_args": {"sample_ms": SAMPLE_MS},
        "iterations": 5_000,
        "optimizer": {"name": "momentum", "lr": 0.05, "momentum": 0.9},
        "workers": {"min": WORKERS, "max": WORKERS},
        "checkpoint": {"every_s": 0},
        "evaluate": {"every": EVERY, "at_end": False},
        "stop": {"metric": "loss", "target": target, "mode": "min"},
        **MODES[mode],
    }


def seconds(told: Told) -> float:
    """From the first row to the evaluation that reached the target."""
    last = max(event.at for event in told.events if event.what == "evaluated")
    return last - told.first_row_at


async def measure(record: StackRecord, target: float) -> None:
    """All modes at once."""
    async with connected(record) as client, asyncio.TaskGroup() as jobs:
        running = {mode: jobs.create_task(run_job(client, job(mode, target))) for mode in MODES}
    told = {mode: task.result() for mode, task in running.items()}
    took = {mode: seconds(about) for mode, about in told.items()}
    for mode, about in told.items():
        reached = [event for event in about.events if event.what == "evaluated"][-1]
        emit(
            f"sync.{mode}",
            took[mode],
            f"s to a held-out loss of {target:g}",
            ratio=took["bsp-fixed"] / took[mode],
            to="speed of bsp with equal batches",
            iterations=reached.iteration,
            loss=reached.metrics.get("loss"),
            accuracy=reached.metrics.get("accuracy"),
            iteration_ms=took[mode] / max(reached.iteration or 1, 1) * 1e3,
            workers=WORKERS,
            slowdown=SLOWDOWN,
        )


def main() -> None:
    """Run all."""
    targets = (0.3, 0.2, 0.15) if arguments(__doc__ or "").full else (0.25,)
    settings = {"ELPS_WORKER_SLOWDOWN": SLOWDOWN, "ELPS_WORKER_SLOTS": str(len(MODES))}
    for target in targets:
        say(f"sync: to a loss of {target:g}, {SLOWDOWN}")
        with private_stack(WORKERS, 1, **settings) as record:
            asyncio.run(measure(record, target))


if __name__ == "__main__":
    main()
