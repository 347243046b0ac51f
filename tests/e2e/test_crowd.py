"""A hundred small jobs at once on a small cluster: all of them end right, and nothing of them is left over."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from realstack.crowding import crowd, delete_all
from realstack.footprint import Footprint, at_rest
from realstack.site import Site

from elps.contracts.ids import JobId
from elps.contracts.state import JobState
from elps.contracts.topology import job_prefix
from elps.storage.port import Store
from elps.storage.redis import RedisStore

JOBS, ITERATIONS = 100, 12
WORKERS, SHARDS, SHARD_SLOTS = 8, 3, 4
GONE_S = 20.0

pytestmark = [pytest.mark.thorough, pytest.mark.e2e, pytest.mark.timeout(400)]


def document(name: str) -> dict[str, object]:
    return {
        "id": name, "task": "softmax", "data": {"source": "digits", "scale": "standard"},
        "iterations": ITERATIONS, "batch": {"global": 64}, "dtype": "float64",
        "optimizer": {"name": "sgd", "lr": 0.1},
        "workers": {"min": 1, "max": 3}, "shards": {"min": 1, "max": 2},
        "checkpoint": {"every_s": 0}, "feedback": {"iterations": 3},
    }  # fmt: skip


async def keys_of(store: Store, jobs: list[str]) -> list[str]:
    """What the store has of these jobs besides their records."""
    prefixes = tuple(job_prefix(JobId(job)) for job in jobs)
    return [key async for key in store.scan("elps:job:") if key.startswith(prefixes)]


@pytest.mark.parametrize("policy", ["fifo", "eps"])
async def test_a_hundred_small_jobs_at_once_all_end_right_and_leave_nothing(
    tmp_path: Path, policy: str
) -> None:
    site = Site(tmp_path, WORKERS, SHARDS, ELPS_POLICY=policy)
    try:
        await site.up()
        url = site.record.amqp_url
        slots = {"worker_slots": 1, "shard_slots": SHARD_SLOTS}
        await crowd(url, [document("first")], **slots)  # what is opened on first use is open
        before = await Footprint.of(site)
        jobs = [f"small-{n:03}" for n in range(JOBS)]
        accounts, _ = await crowd(url, [document(job) for job in jobs], **slots)
        assert accounts.problems == []
        assert accounts.most == WORKERS, "all slots were used, and none twice"
        assert {record.state for record in accounts.ended.values()} == {JobState.FINISHED}
        records = [accounts.ended[job] for job in jobs]
        assert {record.progress.iteration for record in records} == {ITERATIONS}
        losses = [record.progress.loss or 0.0 for record in records]
        assert losses == pytest.approx([losses[0]] * JOBS, rel=1e-9), "the same, whoever computed"
        store = await RedisStore.connect(site.record.redis_url, timeout_s=20.0)
        try:
            await at_rest(site, store, before)
            await delete_all(url, jobs)
            async with asyncio.timeout(GONE_S):
                while await keys_of(store, jobs):  # noqa: ASYNC110 - the store tells nobody
                    await asyncio.sleep(0.2)
            await at_rest(site, store, before)
        finally:
            await store.close()
    finally:
        await site.down()
