"""A full cluster gives way to a newcomer, under the policy that has early feedback first."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from cluster import agent, running, scheduler, shard
from comparing import assert_trained_as_plain_loop
from jobs import Job
from test_balance import say, without

MEMBERS = [scheduler(), shard(1, 2), shard(2, 2), *(agent(n, 1) for n in range(1, 5))]
POLICY = {"ELPS_POLICY": "eps"}
LONG_S = 60.0


def document(folder: Path, name: str, **fields: Any) -> dict[str, Any]:
    return {
        "id": name, "task": "uneven:Uneven", "task_args": {"folder": str(folder)},
        "optimizer": {"lr": 0.001}, "dtype": "float64",
        "batch": {"global": 48, "policy": "fixed"}, "iterations": 1200,
        "workers": {"min": 1, "max": 4}, "shards": {"min": 1, "max": 2},
        "feedback": {"iterations": 20}, **fields,
    }  # fmt: skip


async def has_workers(job: Job, number: int) -> None:
    await job.until(
        lambda: bool(job.rows) and len(job.rows[-1].workers) == number,
        f"iteration of {number} workers",
        LONG_S,
    )


async def all_compute(job: Job) -> int:
    """Wait until no more rows come, since everybody has a long lease in hand; how many came."""
    while True:
        known = len(job.rows)
        await asyncio.sleep(1)
        if len(job.rows) == known:
            return known


@pytest.mark.thorough
@pytest.mark.timeout(200)
async def test_a_newcomer_gets_its_feedback_from_a_full_cluster_and_nothing_is_lost(
    tmp_path: Path,
) -> None:
    say(tmp_path, 2.0, 2.0)
    async with running(*MEMBERS, **POLICY) as cluster:
        old = await cluster.submit(cluster.document(**document(tmp_path, "old")))
        await has_workers(old, 4)
        await old.event("feedback")
        new = await cluster.submit(cluster.document(**document(tmp_path, "new")))
        fed = await new.event("feedback", timeout_s=LONG_S)
        assert fed.reason.startswith("2"), "20 iterations or a few more"
        assert "loss" in fed.reason
        assert (await new.record()).fed_at is not None
        gave = [e for e in old.told("resizing") if "gives way to new" in e.reason]
        assert gave
        await has_workers(old, 2)
        await has_workers(new, 2)
        await cluster.client.kill(new.id)
        await has_workers(old, 4)
        assert (await old.record()).terms == 1
        say(tmp_path, 0.0, 0.0)
        plain = without(old.document, folder="")
        await assert_trained_as_plain_loop(old, cluster.env, document=plain, timeout_s=LONG_S)


@pytest.mark.timeout(200)
async def test_a_newcomer_does_not_wait_for_the_end_of_long_iterations(tmp_path: Path) -> None:
    """Who leaves gives back what it has not computed within its agent's grace, and others are lent it in parts."""
    old_pace, new_pace = tmp_path / "old", tmp_path / "new"
    old_pace.mkdir()
    new_pace.mkdir()
    say(old_pace, 2.0, 2.0)
    say(new_pace, 2.0, 2.0)
    async with running(*MEMBERS, **POLICY) as cluster:
        patient = document(old_pace, "old", limits={"floor_s": 600.0})
        old = await cluster.submit(cluster.document(**patient))
        await has_workers(old, 4)
        await old.event("feedback")
        say(old_pace, 10_000.0, 10_000.0)  # 12 samples: two minutes
        done = await all_compute(old)
        new = await cluster.submit(cluster.document(**document(new_pace, "new")))
        await new.event("feedback", timeout_s=LONG_S)
        assert len(old.rows) == done, "it came long before any of the old leases could end"
        assert old.told("released")
        await cluster.client.kill(old.id)
