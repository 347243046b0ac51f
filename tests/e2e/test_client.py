"""The client as a program uses it, and the program that shows how."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType

import pytest
import pytest_asyncio
from cluster import Cluster, Member, agent, running, scheduler, shard

from elps.client import QueryRefused
from elps.contracts.state import JobState

pytestmark = pytest.mark.asyncio(loop_scope="module")

EXAMPLE = Path(__file__).parents[2] / "examples" / "client.py"
MONITOR = Member("monitor", "monitor", {"ELPS_MONITOR_PORT": "0"})
BOUND_S = 50.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster() -> AsyncIterator[Cluster]:
    async with running(scheduler(), shard(1), agent(1), MONITOR) as cluster:
        yield cluster


def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("client_example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def test_the_example_trains_a_job_tells_of_it_and_kills_another(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    program = example()
    async with asyncio.timeout(BOUND_S):
        await program.train(cluster.client)
        await program.give_up(cluster.client)
    told = capsys.readouterr().out
    assert "has finished with {'" in told
    assert "iteration 0: 64 samples, computed in" in told
    assert "is killed: " in told
    jobs = await cluster.client.jobs()
    assert [job.state for job in jobs] == [JobState.FINISHED, JobState.KILLED]


async def test_every_answer_has_its_type(cluster: Cluster) -> None:
    client = cluster.client
    job = await cluster.submit(
        task="softmax", data={"source": "digits", "test_fraction": 0.2}, iterations=30
    )
    async with asyncio.timeout(BOUND_S):
        ended = await client.ended(job.id)
        assert (ended.state, ended.iteration) == (JobState.FINISHED, 30)
        while True:  # rows and evaluations come by other ways than the end of the job
            rest = await client.iterations(job.id, since=10)
            if rest.evaluations and [row.iteration for row in rest.rows] == list(range(10, 30)):
                break
            await asyncio.sleep(0.02)
    assert [evaluation.iteration for evaluation in rest.evaluations] == [30]
    page = await client.iterations(job.id, since=10, limit=5)
    assert (len(page.rows), page.next, page.more) == (5, 15, True)
    assert (await client.logs(job.id)).more is False
    first = await client.events(job.id, limit=1)
    second = await client.events(job.id, after=first.next, limit=1)
    assert [event.what for event in first.events + second.events] == ["queued", "starting"]
    (worker,) = await client.workers()
    (kept,) = await client.shards()
    assert (worker.liveness, kept.liveness) == ("alive", "alive")
    health = await client.health()
    assert set(health.parts) >= {"broker", "store", "scheduler", "workers", "shards"}
    with pytest.raises(QueryRefused, match="there is no job"):
        await client.ended("nobody")
