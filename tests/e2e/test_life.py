"""The life of jobs: killed, paused, resumed, queued, and what they outlive."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import pytest
import pytest_asyncio
from cluster import Cluster, agent, running, scheduler, shard, size, without
from comparing import assert_equal_to_plain_loop, assert_trained_as_plain_loop, plain
from gates import Gate, gate
from jobs import Job
from pids import alive

from elps.contracts.codec import encode
from elps.contracts.state import JobState
from elps.contracts.topology import JOB_INDEX, JOBS, SUBMIT
from elps.scheduler.core.users import derived_id

pytestmark = pytest.mark.asyncio(loop_scope="module")

SAMPLES, BATCH = 60, 12


MEMBERS = [scheduler(), shard(1), shard(2), agent(1, 2), agent(2, 2)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack() -> AsyncIterator[Cluster]:
    async with running(*MEMBERS) as cluster:
        yield cluster


@pytest_asyncio.fixture(loop_scope="module")
async def cluster(stack: Cluster) -> AsyncIterator[Cluster]:
    """What every test finds: two agents of two slots, two shards, whatever others did to them."""
    await stack.start(*(m for m in MEMBERS if m.name not in stack.names))
    yield stack
    await stack.end_jobs()


def regression(gate: Gate | None = None, **fields: Any) -> dict[str, Any]:
    """A job of 50 passes that stands at the gate once in each."""
    task_args = {"gate": gate.path, "at": {"compute": [7]}} if gate is not None else {}
    return {
        "id": "wave",
        "task": "directed:Directed",
        "task_args": {"samples": SAMPLES, "wide": 40, **task_args},  # a part on each shard
        "optimizer": {"name": "adam", "lr": 0.02},
        "schedule": {"name": "cosine", "warmup": 5},
        "batch": {"global": BATCH},
        "passes": 40,
        "dtype": "float64",
        "evaluate": {"every": 20},
        "limits": {"first_iteration_s": 60.0, "floor_s": 60.0},
        **size(2, 2),
        **fields,
    }


async def assert_undisturbed(job: Job, cluster: Cluster) -> None:
    """It ends as if nothing had happened."""
    document = without(job.document, gate="")
    await assert_equal_to_plain_loop(job, cluster.env, document=document)


async def assert_recovered(job: Job, cluster: Cluster) -> None:
    """It ends with the same values, though a part was done again."""
    document = without(job.document, gate="")
    await assert_trained_as_plain_loop(job, cluster.env, document=document)


# --- at a user's wish -------------------------------------------------------------------------------------------------


async def test_kill_acts_at_once_though_the_task_hangs(cluster: Cluster) -> None:
    async with gate() as it:
        job = await cluster.submit(**regression(it))
        await it.asked()
        pids = set(cluster.trainers(job).values())
        began = time.monotonic()
        await cluster.ask("kill", job)
        record = await job.ended(JobState.KILLED, timeout_s=5)
        assert time.monotonic() - began < 5
        assert record.reason == "asked by the test"
        assert record.allocation is None
        await cluster.until(lambda: not cluster.trainers(job), "the end of its trainers")
        assert it.asks[0].pid in pids
        assert not any(alive(pid) for pid in pids)


async def test_a_paused_job_rests_at_a_boundary_and_goes_on_exactly(cluster: Cluster) -> None:
    async with gate() as it:
        job = await cluster.submit(**regression(it))
        await it.asked()
        reply = await cluster.ask("pause", job)
        assert "next iteration boundary" in reply.reason
        await it.open()
        await job.paused()
        paused = await job.record()
        at = paused.progress.iteration
        assert 0 < at < 200
        assert paused.allocation is None
        assert (await job.manifest()).iteration == at == paused.progress.checkpoint
        assert max(r.iteration for r in job.rows) == at - 1
        await cluster.until(lambda: not cluster.trainers(job), "the end of its trainers")
        rows = len(job.rows)
        await cluster.ask("resume", job)
        await job.iteration(at + 1)
        resumed = await job.record()
        assert resumed.progress.training_s >= paused.progress.training_s > 0
        assert resumed.started_at == paused.started_at
        await assert_undisturbed(job, cluster)
        ended = await job.record()
        assert ended.progress.redone_iterations == 0
        assert ended.progress.samples == 40 * SAMPLES
        assert ended.progress.training_s > paused.progress.training_s
        assert job.rows[rows].iteration == at
        assert job.rows[rows].term > job.rows[rows - 1].term
        shown = [e.record.progress.iteration for e in job.events if e.record is not None]
        assert all(a <= b for a, b in pairwise(shown))


async def test_a_pause_that_is_taken_back_changes_nothing_however_late(cluster: Cluster) -> None:
    async with gate() as it:
        job = await cluster.submit(**regression(it))
        await it.asked()
        await cluster.ask("pause", job)
        await cluster.ask("resume", job)
        await it.open()
        await assert_undisturbed(job, cluster)
        assert JobState.PAUSED not in job.states


async def test_a_job_may_be_paused_again_and_again(cluster: Cluster) -> None:
    async with gate() as it:
        job = await cluster.submit(**regression(it))
        seen = 0
        for number in range(1, 5):
            await it.asked(seen + 1)
            await cluster.ask("pause", job)
            await it.open()
            await job.paused(number)
            it.answerer, seen = lambda _: None, len(it.asks)
            await cluster.ask("resume", job)
        await it.asked(seen + 1)
        await it.open()
        await assert_undisturbed(job, cluster)
        assert len({row.term for row in job.rows}) == 5


async def test_a_queued_job_can_be_paused_and_killed(cluster: Cluster) -> None:
    async with gate() as it:
        first = await cluster.submit(**regression(it, **size(4, 2)))
        await it.asked()
        second = await cluster.submit(**regression(None, passes=2))
        await cluster.ask("pause", second)
        await second.paused()
        third = await cluster.submit(**regression(None, passes=2))
        await cluster.ask("kill", third)
        await third.ended(JobState.KILLED)
        await cluster.ask("resume", second)
        await it.open()
        await first.finished()
        await assert_undisturbed(second, cluster)
        assert third.rows == []


# --- ends -------------------------------------------------------------------------------------------------------------


async def test_a_job_stops_when_its_metric_reaches_the_target(cluster: Cluster) -> None:
    document = regression(None, evaluate={"every": 5})
    course = (await plain(cluster.document(**document), cluster.env)).evaluations
    target = course[60]["square"]
    first = min(i for i, metrics in course.items() if metrics["square"] <= target)
    stop = {"metric": "square", "target": target * (1 + 1e-9), "mode": "min"}
    job = await cluster.submit(**document, stop=stop)
    record = await job.finished()
    at = record.progress.iteration
    assert first <= at <= first + 2
    assert "square" in record.reason
    assert "target" in record.reason
    assert record.progress.iterations == at == (await job.manifest()).iteration
    assert (record.progress.metrics["square"] or 0.0) <= target * (1 + 1e-9)


async def test_a_job_stops_when_its_metric_gets_no_better(cluster: Cluster) -> None:
    document = regression(None, evaluate={"every": 5, "at_end": False})
    course = (await plain(cluster.document(**document), cluster.env)).evaluations
    best, waited, end = float("inf"), 0, 0
    for at, metrics in sorted(course.items()):
        better = metrics["square"] < best - 0.02
        best, waited = (metrics["square"], 0) if better else (best, waited + 1)
        if waited == 2:
            end = at
            break
    assert 10 < end < 190
    stop = {"metric": "square", "patience": 2, "min_delta": 0.02, "mode": "min"}
    job = await cluster.submit(**document, stop=stop)
    record = await job.finished()
    assert end <= record.progress.iteration <= end + 2
    assert "square has been no better than" in record.reason
    manifest = await job.manifest()
    for told in (record.progress, manifest):
        assert (told.best, told.best_iteration, told.stale) == (pytest.approx(best), end - 10, 2)


async def test_a_job_stops_when_its_time_is_over(cluster: Cluster) -> None:
    job = await cluster.submit(**regression(None, passes=100_000, stop={"time_s": 1.0}))
    record = await job.finished()
    assert 1.0 <= record.progress.training_s < 10.0
    assert "1 s" in record.reason
    assert 0 < record.progress.iteration < 500_000
    assert (await job.manifest()).iteration == record.progress.iteration


# --- the queue --------------------------------------------------------------------------------------------------------


async def test_jobs_wait_for_their_turn_and_come_in_order(cluster: Cluster) -> None:
    async with gate() as it:
        document = regression(it, passes=3, **size(4, 2))
        jobs = [await cluster.submit(**document) for _ in range(4)]
        await it.asked()
        waiting = [await job.record() for job in jobs]
        assert [r.state for r in waiting[1:]] == [JobState.QUEUED] * 3
        assert "needs 2 shards and 4 worker slots" in waiting[1].reason
        assert "behind earlier jobs" in waiting[2].reason
        await it.open()
        for job in jobs:
            await assert_undisturbed(job, cluster)
        started = [(await job.record()).started_at for job in jobs]
        assert all(a is not None and b is not None and a < b for a, b in pairwise(started))


async def test_the_same_message_twice_is_one_job(cluster: Cluster) -> None:
    document = cluster.document(**regression(None, passes=4))
    job = await cluster.submit(document)
    again = await cluster.client.submit(document)
    assert again.ok
    assert "already there" in again.reason
    await assert_undisturbed(job, cluster)
    assert (await cluster.client.submit(document)).ok
    assert job.states.count(JobState.QUEUED) == 1

    message = "the-same-message"
    origin = derived_id(document.task, message.encode())
    nameless = await cluster.follow(
        cluster.document(**{**regression(None, passes=4), "id": origin})
    )
    for _ in range(3):
        body = encode({**regression(None, passes=4), "id": None})
        await cluster.bus.publish(JOBS, SUBMIT, body, message_id=message)
    await assert_undisturbed(nameless, cluster)
    assert nameless.states.count(JobState.QUEUED) == 1
    known = await cluster.store.hash_all(JOB_INDEX)
    assert [name for name in known if name.startswith("directed-")] == [origin]


# --- what a job outlives ----------------------------------------------------------------------------------------------


async def test_training_goes_on_untouched_while_the_scheduler_is_restarted(
    cluster: Cluster,
) -> None:
    async with gate() as it:
        job = await cluster.submit(**regression(it))
        await it.asked()
        await cluster.stop("scheduler")
        await it.let_through()
        await it.asked(2)  # a whole pass without it
        await cluster.start(scheduler())
        await it.asked(2)
        await it.open()
        await assert_undisturbed(job, cluster)
        assert {row.term for row in job.rows} == {1}
        assert not job.told("worker_lost")
        assert (await job.record()).progress.redone_iterations == 0


async def test_a_job_ends_while_the_scheduler_is_away_and_is_finished_when_it_is_back(
    cluster: Cluster,
) -> None:
    async with gate() as it:
        job = await cluster.submit(**regression(it, passes=3))
        await it.asked()
        await cluster.stop("scheduler")
        await it.open()
        await job.event("checkpointed")
        assert (await job.record()).state is JobState.RUNNING
        await cluster.start(scheduler())
        await assert_undisturbed(job, cluster)


async def test_jobs_go_on_from_their_checkpoints_when_everything_is_started_again(
    cluster: Cluster,
) -> None:
    async with gate() as it:
        job = await cluster.submit(**regression(it, checkpoint={"every": 10, "every_s": 0}))
        await it.asked()
        await it.let_through()
        for number in range(2, 8):
            await it.asked(number)
            await it.let_through()
        await it.asked(8)
        await job.event("checkpointed", 3)
        before = await job.record()
        names = cluster.names
        for name in names:
            await cluster.crash(name)
        await it.open()
        await cluster.start(scheduler(), shard(1), shard(2), agent(1, 2), agent(2, 2))
        await assert_recovered(job, cluster)
        record = await job.record()
        assert record.progress.training_s >= before.progress.training_s
        second = [row for row in job.rows if row.term > 1]
        assert second[0].iteration % 10 == 0
        assert second[0].iteration >= 30
        assert record.progress.redone_iterations <= 15


async def test_a_lost_shard_sends_the_job_back_to_its_checkpoint_on_what_is_left(
    cluster: Cluster,
) -> None:
    async with gate() as it:
        pools = {"workers": {"min": 2, "max": 2}, "shards": {"min": 1, "max": 2}}
        document = regression(it, checkpoint={"every": 10, "every_s": 0}, **pools)
        job = await cluster.submit(**document)
        for number in range(1, 6):
            await it.asked(number)
            await it.let_through()
        await it.asked(6)
        await job.event("checkpointed", 2)
        allocation = (await job.record()).allocation
        assert allocation is not None
        _leader, other = allocation.shards
        await cluster.crash(other)
        await it.open()
        await assert_recovered(job, cluster)
        (back,) = job.told("rolled_back")
        assert f"{other} lost" in back.reason
        assert {row.term for row in job.rows} == {1}, "its leader goes on"
        assert job.states.count(JobState.QUEUED) == 1
        iterations = [row.iteration for row in job.rows]
        again = next(b for a, b in pairwise(iterations) if b <= a)
        assert again >= 20, "from the newest checkpoint"


async def test_a_job_that_needs_a_lost_shard_waits_for_another_and_says_so(
    cluster: Cluster,
) -> None:
    async with gate() as it:
        job = await cluster.submit(**regression(it, checkpoint={"every": 5, "every_s": 0}))
        await it.asked()
        await it.let_through()
        await it.asked(2)
        await cluster.crash("shard-1")  # the leader
        await it.open()
        await job.until(lambda: job.states.count(JobState.QUEUED) == 2, "queueing")
        await cluster.until_reason(job, "needs 2 shards")
        await cluster.start(shard(1))
        await assert_recovered(job, cluster)


async def test_without_workers_a_job_waits_and_goes_on_when_one_comes(cluster: Cluster) -> None:
    async with gate() as it:
        job = await cluster.submit(**regression(it))
        await it.asked()
        for name in ("agent-1", "agent-2"):
            await cluster.crash(name)
        await it.open()
        await job.until(lambda: job.states[-1] is JobState.WAITING, "waiting")
        assert "worker" in job.told("waiting")[-1].reason
        await cluster.start(agent(1, 2), agent(2, 2))
        await assert_undisturbed(job, cluster)
        assert {row.term for row in job.rows} == {1}
        assert job.states[-2] is JobState.RUNNING


async def test_a_job_killed_between_a_checkpoint_and_the_evaluation_of_it_evaluates_after_all(
    cluster: Cluster,
) -> None:
    """Both are due at one version; the checkpoint comes first, and is all that is left."""
    async with gate() as it:
        document = regression(it, passes=8, checkpoint={"every": 20, "every_s": 0})
        document["task_args"]["at"] = {"evaluate": [4]}
        job = await cluster.submit(**document)
        await it.asked()
        await job.event("checkpointed")
        assert not job.told("evaluated")
        await cluster.crash("shard-1")
        await cluster.start(shard(1))
        await it.asked(2)
        await it.open()
        await assert_recovered(job, cluster)
        first = job.rows[0].standing
        assert next(row for row in job.rows if row.standing > first).iteration == 20
