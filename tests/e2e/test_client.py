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
from described_messages import channels_of, faults

from elps.client import QueryRefused
from elps.contracts import topology
from elps.contracts.state import JobState
from elps.messaging.port import EXCHANGES, Delivery, Queue

pytestmark = pytest.mark.asyncio(loop_scope="module")

EXAMPLE = Path(__file__).parents[2] / "examples" / "client.py"
MONITOR = Member("monitor", "monitor", {"ELPS_MONITOR_PORT": "0"})
BOUND_S = 50.0
SAID = {"submit", "pause", "explain", "kill", "agent_beats", "shard_beats", "scheduler_beats"}
SAID |= {"commands", "events", "rows", "queries"}
"""Channels of which every job makes use."""


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


async def test_all_that_is_said_between_the_parts_is_as_docs_describe_it(cluster: Cluster) -> None:
    """docs/asyncapi.json against what travels while a job trains, is asked about and is paused."""
    wrong, heard = list[str](), set[str]()

    async def overhear(delivery: Delivery) -> None:
        found = faults(delivery.exchange, delivery.routing_key, delivery.body)
        wrong.extend(found)
        if not found:
            (channel,) = channels_of(delivery.exchange, delivery.routing_key)
            heard.add(channel.name)

    members = tuple((topology.COMMANDS, name) for name in ("shard-1", "agent-1"))
    topics = tuple((name, "#") for name, kind in EXCHANGES.items() if kind == "topic")
    overheard = await cluster.bus.subscribe(Queue("overheard", members + topics), overhear)
    job = await cluster.submit(
        task="softmax", data={"source": "digits", "test_fraction": 0.2}, passes=100_000
    )
    async with asyncio.timeout(BOUND_S):
        while not (await cluster.client.iterations(job.id)).rows:  # noqa: ASYNC110
            await asyncio.sleep(0.02)  # asked from outside
        for ask in (cluster.client.pause, cluster.client.explain, cluster.client.kill):
            assert (await ask(job.id)).ok
        await cluster.client.ended(job.id)
    await overheard.cancel()
    assert wrong == []
    assert heard >= SAID


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
