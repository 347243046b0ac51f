"""A hundred small jobs handed in at once on eight emulated workers and three shards.

    .venv/bin/python tests/bench/bench_crowd.py        # about a minute and a half; --full: under every policy

All must end right, no slot may be given twice at any moment, and nothing may be left over: else it fails. Told are the
time until all are accepted, the mean time to early feedback and to the end, and the time until all have ended, beside
that of computing alone.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from measuring import arguments, emit, say

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from realstack.crowding import crowd, delete_all
from realstack.footprint import Footprint, at_rest
from realstack.site import Site

from elps.contracts.state import JobState
from elps.scheduler.core.policies import POLICIES
from elps.storage.redis import RedisStore

JOBS, WORKERS, SHARDS, SHARD_SLOTS = 100, 8, 3, 4
TASKS = Path(__file__).resolve().parent / "tasks"
SETTINGS = {"ELPS_TASK_PATH": str(TASKS), "ELPS_BEAT_S": "1", "ELPS_LOST_S": "5"}
"""The usual beat, and not that of tests."""
ITERATIONS, BATCH, SAMPLE_S = 15, 32, 0.004
"""Two seconds of computing each."""


def document(name: str) -> dict[str, Any]:
    """A job for one worker or two."""
    return {
        "id": name,
        "task": "idle:Idle",
        "task_args": {"size": 10_000, "sample_s": SAMPLE_S},
        "iterations": ITERATIONS,
        "batch": {"global": BATCH, "policy": "fixed"},
        "optimizer": {"name": "sgd", "lr": 0.01},
        "workers": {"min": 1, "max": 2},
        "checkpoint": {"every_s": 0},
        "feedback": {"iterations": 3},
    }


async def measure(site: Site, policy: str) -> None:
    """Under one policy."""
    await site.up()
    url, slots = site.record.amqp_url, {"worker_slots": 1, "shard_slots": SHARD_SLOTS}
    await crowd(url, [document("first")], **slots)  # what is opened on first use is open
    before = await Footprint.of(site)
    jobs = [f"small-{n}" for n in range(JOBS)]
    began_at = time.time()
    accounts, accepted_s = await crowd(url, [document(job) for job in jobs], **slots)
    wrong = [
        f"{j}: {r.reason}" for j, r in accounts.ended.items() if r.state is not JobState.FINISHED
    ]
    if problems := [*accounts.problems, *wrong]:
        raise RuntimeError(f"{len(problems)} things are wrong: {problems[:5]}")
    store = await RedisStore.connect(site.record.redis_url, timeout_s=20.0)
    try:
        await at_rest(site, store, before)
        await delete_all(url, jobs)
        await at_rest(site, store, before)
    finally:
        await store.close()
    ends = [record.ended_at - began_at for record in accounts.ended.values() if record.ended_at]
    ideal_s = JOBS * ITERATIONS * BATCH * SAMPLE_S / WORKERS
    about: dict[str, Any] = {"jobs": JOBS, "workers": WORKERS, "shards": SHARDS, "policy": policy}
    emit(
        f"crowd.{policy}.makespan",
        max(ends),
        "s",
        ratio=max(ends) / ideal_s,
        to="computing alone, evenly on all workers",
        changes_accounted_for=accounts.changes,
        most_slots_given=accounts.most,
        **about,
    )
    fed = [at - began_at for at in accounts.fed_at.values()]
    for what, seconds in (
        ("accepted", accepted_s),
        ("feedback", statistics.fmean(fed)),
        ("completion", statistics.fmean(ends)),
    ):
        ratio = seconds / max(ends)
        emit(f"crowd.{policy}.{what}", seconds, "s", ratio=ratio, to="the makespan", **about)


def main() -> None:
    """Run it."""
    full = arguments(__doc__ or "").full
    for policy in POLICIES if full else ("fifo", "eps"):
        say(f"crowd: {policy}")
        with tempfile.TemporaryDirectory(prefix="elps-bench-") as folder:
            site = Site(Path(folder), WORKERS, SHARDS, **SETTINGS, ELPS_POLICY=policy)
            try:
                asyncio.run(measure(site, policy))
            finally:
                site.stack.down()


if __name__ == "__main__":
    main()
