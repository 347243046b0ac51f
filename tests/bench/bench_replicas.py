"""What replicas cost: jobs of 64 MB with iterations of 0.3 s train with and without, in turns; the rates are compared.

What they save is told by `bench_recovery`.
"""

from __future__ import annotations

import statistics
from typing import Any

from measuring import arguments, emit, say
from private_stack import Told, in_stack, private_stack, run_job

from elps.client.control import Client

MEGABYTES, ITERATION_S, BATCH = 64, 0.3, 64
WARM_UP, ITERATIONS, PAIRS = 5, 25, 2


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


def main() -> None:
    """Run all."""
    arguments(__doc__ or "")
    with private_stack(workers=2, shards=3) as record:
        in_stack(record, rates)


if __name__ == "__main__":
    main()
