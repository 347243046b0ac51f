"""Tail leases: they come where speeds jump and a lease is cheap, and nowhere else.

Jobs with and without them train at the same time on the same agents: whatever else this machine does meets both.
"""

from __future__ import annotations

import asyncio
from statistics import fmean, median
from typing import Any

import numpy as np
import pytest
from cluster import agent, running, scheduler, shard, size

from elps.cli.composing import Member
from elps.contracts.telemetry import IterationRow

WORKERS, BATCH, ITERATIONS = 4, 400, 90
LEARNED = 40
"""Iterations after which trials are over and a tail, if any, is there."""
MONITOR = Member("monitor", "monitor", {"ELPS_MONITOR_PORT": "0"})
MEMBERS = [scheduler(), shard(1), MONITOR, *(agent(n, slots=2) for n in range(1, WORKERS + 1))]
LONG_S = 120.0


def document(
    policy: str, call_ms: float, sample_ms: float, iterations: int = ITERATIONS
) -> dict[str, Any]:
    return {
        "id": policy, "task": "jumpy:Jumpy", "iterations": iterations, "dtype": "float64",
        "task_args": {"call_ms": call_ms, "sample_ms": sample_ms, "jump": 0.5},
        "batch": {"global": BATCH, "policy": policy}, "optimizer": {"name": "sgd", "lr": float(BATCH)},
        "checkpoint": {"every_s": 0}, **size(WORKERS, 1),
    }  # fmt: skip


def extra(row: IterationRow) -> float:
    """Leases beyond one for each worker."""
    return sum(t.extra.leases for t in row.workers if t.extra)


async def both(
    call_ms: float, sample_ms: float, iterations: int = ITERATIONS
) -> tuple[list[IterationRow], float]:
    """Rows of the job that may have tails, and its time for an iteration over that of the one that may not."""
    async with running(*MEMBERS) as cluster:
        jobs = [
            await cluster.submit(
                cluster.document(**document(policy, call_ms, sample_ms, iterations))
            )
            for policy in ("lb-bsp", "auto")
        ]
        await asyncio.gather(*(job.finished(LONG_S) for job in jobs))
        took_s = [median(row.duration_s for row in job.rows[LEARNED:]) for job in jobs]
        np.testing.assert_allclose((await jobs[0].values())["count"], BATCH * iterations)
        assert not any(map(extra, jobs[1].rows))
        return jobs[0].rows, took_s[0] / took_s[1]


@pytest.mark.thorough
@pytest.mark.timeout(180)
async def test_a_task_whose_calls_take_long_whatever_their_size_gets_no_tail() -> None:
    rows, ratio = await both(call_ms=30.0, sample_ms=0.0)
    assert fmean(map(extra, rows[LEARNED:])) < 0.3
    assert ratio < 1.6  # with a tail, 3 and more


@pytest.mark.timeout(180)
async def test_machines_that_jump_about_get_a_tail_and_every_sample_counts_once() -> None:
    async with running(*MEMBERS) as cluster:
        fields = document("lb-bsp", 0.0, 1.0, iterations=100_000)
        job = await cluster.submit(cluster.document(**fields))
        some = [0]

        def tailed() -> bool:
            some[0] = sum(extra(row) >= WORKERS for row in job.rows)
            return some[0] >= 3

        await job.until(tailed, "iterations with a tail", LONG_S)
        await cluster.ask("pause", job)
        await job.paused()
        done = (await job.manifest()).iteration
        np.testing.assert_allclose((await job.values())["count"], BATCH * done)
        await cluster.ask("kill", job)


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_iterations_are_shorter_for_a_tail_where_machines_jump_about() -> None:
    _, ratio = await both(call_ms=0.0, sample_ms=1.8, iterations=200)
    assert ratio < 1.0
