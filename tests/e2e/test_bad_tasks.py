"""Tasks that fail, lie, die or hang: in bounded time, with a message that helps, and nobody else notices."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from cluster import Cluster, agent, running, scheduler, shard, size, without
from comparing import assert_equal_to_plain_loop
from gates import Ask, Gate, gate
from jobs import Job

from elps.stream.interval import Interval
from elps.stream.order import permutation

pytestmark = pytest.mark.asyncio(loop_scope="module")

SAMPLES, BATCH = 60, 12


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster() -> AsyncIterator[Cluster]:
    members = [scheduler(), shard(1), shard(2), agent(1, 8), agent(2, 8)]
    async with running(*members) as cluster:
        yield cluster


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def other_jobs_go_on(cluster: Cluster) -> AsyncIterator[None]:
    """Beside every bad job a good one, which must come to its end as if it were alone."""
    job = await cluster.submit(
        id="good",
        task="counting:Counting",
        task_args={"samples": 32},
        optimizer={"name": "sgd", "lr": 8.0},
        batch={"global": 8},
        passes=20,
        **size(2, 2),
    )
    yield
    record = await job.finished()
    assert (await job.values())["count"].tolist() == [20] * 32
    assert record.progress.samples == 20 * 32
    assert not job.told("worker_lost"), job
    assert not job.told("released"), job


def directed(gate: Gate, at: dict[str, list[int]], **fields: Any) -> dict[str, Any]:
    """A job that asks at the gate."""
    return {
        "id": "bad",
        "task": "directed:Directed",
        "task_args": {"gate": gate.path, "at": at, "samples": SAMPLES},
        "optimizer": {"name": "momentum", "lr": 0.05},
        "batch": {"global": BATCH},
        "iterations": 24,
        "dtype": "float64",
        "evaluate": {"every": 8},
        "limits": {"first_iteration_s": 4.0, "floor_s": 2.0, "slack": 2.0},
        **size(2, 2),
        **fields,
    }


def sample_of(iteration: int, k: int = 1) -> int:
    """The `k`-th sample of an iteration."""
    pass_, number = divmod(iteration, SAMPLES // BATCH)
    return int(permutation(0, pass_, SAMPLES)[number * BATCH + k])


def at_first(answer: str | None, count: int = 1) -> Callable[[Ask], str | None]:
    """So many times this answer, then "go"."""
    return lambda ask: answer if ask.number <= count else "go"


async def assert_equal_although(job: Job, cluster: Cluster, **fields: Any) -> None:
    """It equals the plain loop of a task that was not told to do anything wrong."""
    document = without(job.document, gate="")
    await assert_equal_to_plain_loop(job, cluster.env, document=document, **fields)


# --- failing at once --------------------------------------------------------------------------------------------------

FAULTS = {
    ("init", "raise"): "init: ArithmeticError: told to fail in init",
    ("data", "raise"): "ArithmeticError: told to fail in data",
    ("compute", "raise"): "ArithmeticError: told to fail in compute",
    ("compute", "shape"): "gradient of 'weights' has shape (5,), expected (6,)",
    ("compute", "missing"): "'bias'",
    ("compute", "unknown"): "'weight'",
    ("compute", "text"): "the loss",
    ("compute", "write"): "read-only",
}


@pytest.mark.parametrize(("stage", "answer"), FAULTS)
async def test_a_faulty_task_fails_the_job_at_once_and_says_where(
    cluster: Cluster, stage: str, answer: str
) -> None:
    whole = 1 if stage == "init" else 2  # while opening, single samples are looked at
    async with gate(lambda ask: answer if len(ask.samples) >= whole else "go") as it:
        job = await cluster.submit(**directed(it, {stage: [sample_of(3)]}))
        reason = await job.failed(timeout_s=15)
        assert FAULTS[stage, answer] in reason
        assert "'directed:Directed'" in reason
        assert f"worker {job.id}-w" in reason
        if stage != "init":
            assert "iteration 3" in reason
            assert max((row.iteration for row in job.rows), default=0) <= 3
        if answer in ("raise", "write"):
            assert "Traceback" in reason
            assert "directed.py" in reason
        assert not any(e.what == "worker_joined" and e.worker == f"{job.id}-w3" for e in job.events)


async def test_a_message_of_any_length_leaves_the_traceback_to_be_seen(cluster: Cluster) -> None:
    async with gate(lambda ask: "rant" if len(ask.samples) > 1 else "go") as it:
        job = await cluster.submit(**directed(it, {"compute": [sample_of(3)]}))
        reason = await job.failed(timeout_s=15)
    assert "told to fail at length" in reason
    assert len(reason) < 5_000
    await job.until(lambda: any("directed.py" in line for line in job.lines), "traceback in logs")
    assert max(map(len, job.lines)) < 10_000


async def test_an_evaluation_that_raises_fails_the_job_and_names_the_version(
    cluster: Cluster,
) -> None:
    async with gate(lambda _: "raise") as it:
        job = await cluster.submit(**directed(it, {"evaluate": [3]}))
        reason = await job.failed(timeout_s=15)
    assert "evaluation of version 8" in reason
    assert "told to fail in evaluate" in reason
    assert f"worker {job.id}-w" in reason


# --- not a number -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wide", [0, 900_000])
@pytest.mark.parametrize("answer", ["nan", "inf"])
async def test_a_bad_gradient_is_skipped_on_all_partitions_and_shown(
    cluster: Cluster, answer: str, wide: int
) -> None:
    """With one small partition, and with eight on two shards."""
    async with gate(at_first(answer)) as it:
        document = directed(it, {"compute": [sample_of(3)]}, iterations=12)
        document["task_args"]["wide"] = wide
        job = await cluster.submit(**document)
        record = await job.finished()
        skips = [Interval(lo, hi) for lo, hi in (await job.manifest()).skips]
        assert len(skips) == 1
        assert 3 * BATCH <= skips[0].lo <= 3 * BATCH + 1 < skips[0].hi <= 4 * BATCH
        assert record.progress.skipped_samples == skips[0].size
        assert record.progress.samples == 12 * BATCH - skips[0].size
        (event,) = job.told("skipped")
        assert event.iteration == 3
        assert "NaN or infinite" in event.reason
        assert (job.rows[3].skipped, job.rows[3].samples) == (skips[0].size, BATCH - skips[0].size)
        await assert_equal_although(job, cluster, skips=skips)


async def test_an_iteration_that_is_skipped_whole_makes_no_step(cluster: Cluster) -> None:
    everyone = [sample_of(3, k) for k in range(BATCH)]

    def answer(ask: Ask) -> str:
        return "nan" if ask.number <= 2 else "go"

    async with gate(answer) as it:
        document = directed(it, {"compute": everyone}, schedule={"name": "step", "step_size": 5})
        job = await cluster.submit(**document)
        record = await job.finished()
        skips = [Interval(lo, hi) for lo, hi in (await job.manifest()).skips]
        assert sum(skip.size for skip in skips) == BATCH == record.progress.skipped_samples
        assert job.losses()[3] is None
        expected = await assert_equal_to_plain_loop(
            job, cluster.env, document=without(job.document, gate=""), skips=skips
        )
        assert expected.steps == 23


async def test_a_job_whose_gradients_stay_bad_fails_and_says_so(cluster: Cluster) -> None:
    async with gate(lambda _: "nan") as it:
        document = directed(it, {"compute": list(range(SAMPLES))}, iterations=60)
        job = await cluster.submit(**document)
        reason = await job.failed(timeout_s=20)
        assert "iterations in a row had samples skipped" in reason
        assert len(job.told("skipped")) >= 10
        assert np.isfinite((await job.record()).progress.skipped_samples)


async def test_an_infinite_loss_is_shown_as_none_and_training_goes_on(cluster: Cluster) -> None:
    async with gate(lambda _: "inf loss") as it:
        job = await cluster.submit(**directed(it, {"compute": [sample_of(3)]}))
        record = await job.finished()
        losses = job.losses()
        assert losses[3] is None
        assert losses[2] is not None
        assert record.progress.loss is not None
        assert record.progress.skipped_samples == 0


# --- dying ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", ["exit", "memory"])
async def test_a_trainer_that_dies_once_is_replaced_and_nothing_is_lost(
    cluster: Cluster, answer: str
) -> None:
    answers = iter([answer, "go", None])  # then it waits until the replacement is there
    async with gate(lambda _: next(answers, "go")) as it:
        patient = {"first_iteration_s": 30.0, "floor_s": 30.0}
        document = directed(it, {"compute": [sample_of(4)]}, limits=patient)
        job = await cluster.submit(**document)
        lost = await job.event("worker_lost")
        assert lost.iteration == 4
        assert (await job.event("released")).worker == lost.worker
        await it.asked(3)
        assert (await job.event("worker_joined", 3)).worker == f"{job.id}-w3"
        await it.open()
        await assert_equal_although(job, cluster)
        assert f"{job.id}-w3" in {t.worker for t in job.rows[-1].workers}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
async def test_a_trainer_killed_from_outside_is_replaced_and_nothing_is_lost(
    cluster: Cluster, number: signal.Signals
) -> None:
    async with gate(at_first(None)) as it:
        job = await cluster.submit(**directed(it, {"compute": [sample_of(4)]}))
        os.kill((await it.asked()).pid, number)
        await job.finished()
        assert (await job.event("worker_lost")).iteration == 4
        await assert_equal_although(job, cluster)


async def test_the_only_worker_may_die_too(cluster: Cluster) -> None:
    async with gate(at_first("exit", 2)) as it:
        document = directed(it, {"compute": [sample_of(4)]}, **size(1, 1))
        job = await cluster.submit(**document)
        await job.finished()
        assert [e.worker for e in job.told("worker_joined")] == [
            f"{job.id}-w{n}" for n in (1, 2, 3)
        ]
        await assert_equal_although(job, cluster)


async def test_the_third_death_on_the_same_samples_fails_the_job_and_names_them(
    cluster: Cluster,
) -> None:
    async with gate(lambda _: "exit") as it:
        job = await cluster.submit(**directed(it, {"compute": [sample_of(4)]}))
        reason = await job.failed(timeout_s=25)
        assert "3 workers died" in reason
        assert "iteration 4" in reason
        assert "exit code 3" in reason
        assert f"{job.id}-w" in reason
        position = 4 * BATCH + 1
        interval = reason.split("samples [")[1].split(")")[0].split(", ")
        assert int(interval[0]) <= position < int(interval[1])
        assert len(it.asks) == 3
        await job.until(lambda: "this is the end" in " ".join(job.lines), "last words")


# --- hanging ----------------------------------------------------------------------------------------------------------


async def test_a_trainer_that_hangs_is_dismissed_and_replaced(cluster: Cluster) -> None:
    async with gate(at_first(None)) as it:
        job = await cluster.submit(**directed(it, {"compute": [sample_of(4)]}))
        await job.finished(timeout_s=25)
        lost = await job.event("worker_lost")
        assert "hung" in lost.reason
        assert lost.iteration == 4
        await assert_equal_although(job, cluster)
        hung = it.asks[0].pid
        await cluster.until(lambda: hung not in cluster.trainers().values(), "its end")


async def test_a_trainer_that_hangs_in_its_first_iteration_or_in_an_evaluation_is_replaced(
    cluster: Cluster,
) -> None:
    def answer(ask: Ask) -> str | None:
        return None if [a.stage for a in it.asks].count(ask.stage) == 1 else "go"

    async with gate(answer) as it:
        at = {"compute": [sample_of(0)], "evaluate": [4]}
        job = await cluster.submit(**directed(it, at))
        await job.finished(timeout_s=35)
        reasons = [e.reason for e in job.told("worker_lost")]
        assert len(reasons) == 2
        assert "iteration 0" in reasons[0]
        assert "the evaluation of version 8" in reasons[1]
        await assert_equal_although(job, cluster)


async def test_a_task_that_always_hangs_fails_the_job_in_bounded_time(cluster: Cluster) -> None:
    async with gate(lambda _: None) as it:
        job = await cluster.submit(**directed(it, {"compute": [sample_of(4)]}))
        reason = await job.failed(timeout_s=35)
        assert "3 workers died" in reason
        assert "hung" in reason
        assert "iteration 4" in reason


async def test_a_frozen_trainer_is_dismissed_and_does_no_harm_when_it_wakes(
    cluster: Cluster,
) -> None:
    async with gate(at_first(None)) as it:
        job = await cluster.submit(**directed(it, {"compute": [sample_of(4)]}, iterations=48))
        pid = (await it.asked()).pid
        os.kill(pid, signal.SIGSTOP)
        await it.open()  # it would go on now, if it could
        lost = await job.event("worker_lost", timeout_s=15)
        assert lost.iteration is not None
        await job.iteration(lost.iteration + 1)  # else it may complete it, and take its loss along
        try:
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            pass  # its agent was quicker
        await job.finished()
        assert "hung" in lost.reason
        await assert_equal_although(job, cluster)


# --- loud -------------------------------------------------------------------------------------------------------------


async def test_a_task_that_prints_far_too_much_trains_all_the_same(cluster: Cluster) -> None:
    job = await cluster.submit(
        id="loud", task="directed:Printing", batch={"global": 20}, iterations=40, **size(2, 1)
    )
    record = await job.finished()
    assert record.progress.iteration == 40
    await job.until(lambda: any("sample" in line for line in job.lines), "printed line")
