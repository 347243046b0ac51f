"""Batches follow the speed of their workers, and the result stays that of the plain loop."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import fmean, median
from typing import Any

import pytest
from cluster import Cluster, agent, running, scheduler, shard, size, without
from comparing import assert_trained_as_plain_loop
from jobs import Job

from elps.cli.composing import Member
from elps.contracts.ids import WorkerId
from elps.contracts.telemetry import IterationRow

MONITOR = Member("monitor", "monitor", {"ELPS_MONITOR_PORT": "0"})
MEMBERS = [scheduler(), shard(1), shard(2), MONITOR, agent(1), agent(2), agent(3)]
LONG_S = 60.0
BATCH, WORKERS = 48, 3


def say(folder: Path, first_ms: float, other_ms: float) -> None:
    """How fast trainers are from now on; replaced in one step, since they read it at any time."""
    (folder / "new").write_text(f"{first_ms} {other_ms}")
    (folder / "new").replace(folder / "pace")


def document(folder: Path, **fields: Any) -> dict[str, Any]:
    batch = {"global": BATCH, **fields.pop("batch", {})}
    return {
        "id": "uneven", "task": "uneven:Uneven", "task_args": {"folder": str(folder)},
        "optimizer": {"lr": 0.001}, "dtype": "float64", "batch": batch, "iterations": 1200,
        **size(WORKERS, 2), **fields,
    }  # fmt: skip


def slowest(rows: list[IterationRow]) -> WorkerId:
    """Who takes longest for a sample."""
    per_s: dict[WorkerId, list[float]] = {}
    for row in rows:
        for t in row.workers:
            if t.samples:
                per_s.setdefault(t.worker, []).append(t.compute_s / t.samples)
    return max(per_s, key=lambda worker: median(per_s[worker]))


def share(row: IterationRow, worker: WorkerId) -> float:
    """A worker's batch over the mean of the others'; 0 if it had nothing to do."""
    sizes = {t.worker: t.samples for t in row.workers}
    return sizes.pop(worker, 0) / fmean(sizes.values())


async def until_share(job: Job, worker: WorkerId, low: float, high: float) -> int:
    """Wait until a worker's share keeps between two bounds; the rows that there are then."""

    def keeps() -> bool:
        newest = job.rows[-5:]
        return len(newest) == 5 and all(low <= share(row, worker) <= high for row in newest)

    await job.until(keeps, f"a share of {low} to {high} of {worker}", LONG_S)
    return len(job.rows)


@asynccontextmanager
async def uneven(
    folder: Path, first_ms: float = 6.0, **env: str
) -> AsyncIterator[tuple[Cluster, Job, WorkerId]]:
    """A job, and its worker that is three times slower; at last all are quick, and the result must be exact."""
    say(folder, first_ms, 2.0)
    async with running(*MEMBERS, **env) as cluster:
        job = await cluster.submit(cluster.document(**document(folder)))
        await job.until(lambda: len(job.rows) >= 3, "rows", LONG_S)
        yield cluster, job, slowest(job.rows[:3])
        say(folder, 0.0, 0.0)
        plain = without(job.document, folder="")
        await assert_trained_as_plain_loop(job, cluster.env, document=plain, timeout_s=LONG_S)


async def test_a_slow_worker_gets_less_iterations_get_shorter_and_it_gets_its_share_back(
    tmp_path: Path,
) -> None:
    async with uneven(tmp_path) as (_, job, slow):
        equal = [row for row in job.rows if 0.9 <= share(row, slow) <= 1.1][:5]
        assert equal, "the first iterations are not cut equally"
        at = await until_share(job, slow, 0.0, 0.6)
        balanced_s = median(row.duration_s for row in job.rows[at - 5 : at])
        assert balanced_s < 0.85 * median(row.duration_s for row in equal)
        assert job.told("rebalanced")
        say(tmp_path, 2.0, 2.0)
        await until_share(job, slow, 0.75, 1.34)


@pytest.mark.thorough
async def test_a_worker_on_an_emulated_slow_machine_gets_less(tmp_path: Path) -> None:
    emulated = {"ELPS_WORKER_SLOWDOWN": "agent-2=factor:3; factor:1"}
    async with uneven(tmp_path, 2.0, **emulated) as (cluster, job, slow):
        assert slow in {trainer.worker for trainer in cluster.agents["agent-2"].trainers}

        def shown() -> list[float | None]:
            return [t.cpu_process for r in job.rows for t in r.workers if t.worker == slow]

        await job.until(lambda: shown()[-1] is not None, "what its machine has left", LONG_S)
        assert all(cpu is None or cpu <= 1 / 3 for cpu in shown())
        await until_share(job, slow, 0.0, 0.6)


async def test_fixed_batches_stay_equal_however_slow_a_worker_is(tmp_path: Path) -> None:
    say(tmp_path, 1.0, 0.2)
    fields = document(tmp_path, batch={"policy": "fixed"}, iterations=60)
    async with running(*MEMBERS) as cluster:
        job = await cluster.submit(cluster.document(**fields))
        await job.finished(LONG_S)
        whole = [row for row in job.rows if len(row.workers) == WORKERS]
        assert {t.samples for row in whole for t in row.workers} == {BATCH // WORKERS}
        assert not job.told("rebalanced")


async def test_training_goes_on_by_the_last_plan_without_monitor_and_scheduler(
    tmp_path: Path,
) -> None:
    async with uneven(tmp_path) as (cluster, job, slow):
        at = await until_share(job, slow, 0.0, 0.6)
        await cluster.crash("monitor")
        await cluster.crash("scheduler")
        await job.until(lambda: len(job.rows) >= at + 15, "training goes on", LONG_S)
        assert all(share(row, slow) <= 0.6 for row in job.rows[-5:])
        await cluster.start(scheduler())
