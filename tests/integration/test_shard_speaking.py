"""How a shard speaks, and stops speaking, to the broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from msgspec import structs

from elps.contracts.codec import decode, encode
from elps.contracts.epoch import Term
from elps.contracts.ids import JobId, ShardId, WorkerId
from elps.contracts.job import JobDocument
from elps.contracts.messages import Address, DropJob, HostJob, Refusal, ShardBeat, ShardCommand
from elps.contracts.state import Progress
from elps.contracts.telemetry import IterationRow, WorkerTiming
from elps.messaging.memory import MemoryBroker, MemoryBus
from elps.messaging.port import Delivery, Queue
from elps.psshard import app
from elps.psshard.app import ShardService
from elps.psshard.bridge import Bridge
from elps.psshard.hosting import Hosting
from elps.runtime.service import Context
from elps.storage.memory import MemoryStore

BOUND_S = 30.0
"""A shard makes its kernels ready before it says a word; for each of the waits."""
ROW = IterationRow(
    iteration=0, passes=0.0, samples=1, skipped=0, loss=None, duration_s=0.0, at=0.0, term=1, plan=1,
    lr=1.0, workers=[],
)  # fmt: skip


@asynccontextmanager
async def speaking() -> AsyncIterator[tuple[Bridge, asyncio.Task[None], asyncio.Semaphore]]:
    """A shard that speaks, its bridge, and what it has said: beats each minute, rows each minute."""
    bus, said = MemoryBus(MemoryBroker()), asyncio.Semaphore(0)

    async def heard(_: Delivery) -> None:
        said.release()

    await bus.subscribe(Queue("q", (("elps.members", "#"), ("elps.telemetry", "#"))), heard)
    service = ShardService(Context(bus, MemoryStore(), {"ELPS_BEAT_S": "60"}))
    bridge = Bridge(MemoryStore(), asyncio.get_running_loop())
    task = asyncio.create_task(service._speak(bridge, Hosting(ShardId("s1"), bridge), 1))
    try:
        async with asyncio.timeout(BOUND_S):
            await said.acquire()  # the first beat: from now on it waits
            await asyncio.sleep(0)
        yield bridge, task, said
    finally:
        task.cancel()
        await asyncio.wait([task], timeout=BOUND_S)
        await bus.close()


async def ends(task: asyncio.Task[None]) -> None:
    done, _ = await asyncio.wait([task], timeout=BOUND_S)
    assert done, "it goes on although it was cancelled"
    assert task.cancelled()


async def test_it_ends_when_it_is_cancelled_as_something_to_say_comes() -> None:
    async with speaking() as (bridge, task, _):
        bridge.wake.set()
        task.cancel()
        await ends(task)


async def test_it_ends_when_it_is_cancelled_as_something_urgent_comes_between_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(app, "ROWS_S", 60.0)
    async with speaking() as (bridge, task, said):
        bridge.row(JobId("job"), ROW)
        async with asyncio.timeout(BOUND_S):
            await said.acquire()
        bridge.row(JobId("job"), ROW)  # which waits for its time
        for _ in range(5):
            await asyncio.sleep(0)
        assert not task.done()
        bridge.urgent.set()
        task.cancel()
        await ends(task)


async def test_it_ends_when_it_is_cancelled_while_nothing_is_to_be_said() -> None:
    async with speaking() as (_, task, _):
        task.cancel()
        await ends(task)


def row_of(workers: int, iteration: int = 0) -> IterationRow:
    timing = WorkerTiming(
        worker=WorkerId("a-worker-of-some-job-1"), samples=64, compute_s=0.0123456789012345, pull_s=0.0123456789012345,
        wait_s=0.0123456789012345, push_s=0.0123456789012345, lease_s=0.0123456789012345, cpu_process=1.2345678,
        cpu_host=3.4567891, memory_bytes=16_000_000_000,
    )  # fmt: skip
    return structs.replace(ROW, iteration=iteration, workers=[timing] * workers)


async def test_what_was_held_back_of_a_job_with_many_workers_goes_in_parts_and_what_never_can_is_dropped() -> (
    None
):
    async with speaking() as (bridge, task, said):
        for iteration in range(100):
            bridge.row(JobId("wide"), row_of(200, iteration))
        bridge.row(JobId("wider"), row_of(30_000))
        bridge.beat()
        async with asyncio.timeout(BOUND_S):
            for _ in range(1 + 8):
                await said.acquire()
        assert not task.done()
        bridge.beat()
        async with asyncio.timeout(BOUND_S):
            await said.acquire()


# --- what it will not do ----------------------------------------------------------------------------------------------


def host(number: int, nonce: int = 9) -> HostJob:
    """To take part in a job that another shard leads."""
    return HostJob(
        job=JobId("job"), document=JobDocument(task="linear", iterations=5), term=Term(number, nonce),
        secret="s", shards=[Address(shard=ShardId("s2"), host="127.0.0.1", port=1)], workers=[],
        progress=Progress(),
    )  # fmt: skip


async def test_a_job_whose_term_before_is_still_at_the_store_is_shown_under_the_new_one_last() -> (
    None
):
    asked, answers = asyncio.Event(), asyncio.Event()

    class Slow(MemoryStore):
        async def hash_all(self, key: str) -> dict[str, bytes]:
            asked.set()
            await answers.wait()
            return await super().hash_all(key)

    me = ShardId("s2")  # which leads, so that it asks the store
    bridge = Bridge(Slow(), asyncio.get_running_loop())
    hosting = Hosting(me, bridge)
    hosting.host(host(5))
    async with asyncio.timeout(BOUND_S):
        await asked.wait()
    hosting.drop(DropJob(job=JobId("job"), term=Term(5, 9)))
    hosting.host(host(6))
    assert [shown.term.number for shown in hosting.status()] == [5, 6]
    answers.set()
    hosting.close("the test is over")


async def test_a_term_that_is_over_is_refused_in_the_beat_until_a_higher_one_comes() -> None:
    bus, beats, stop = MemoryBus(MemoryBroker()), asyncio.Queue[ShardBeat](), asyncio.Event()

    async def heard(delivery: Delivery) -> None:
        await beats.put(decode(delivery.body, ShardBeat))

    async def says(command: ShardCommand) -> None:
        await bus.publish("elps.commands", "s1", encode(command))

    async def shows(terms: list[Term], refused: list[Refusal]) -> None:
        async with asyncio.timeout(BOUND_S):
            while True:
                beat = await beats.get()
                shown = [hosted.term for hosted in beat.jobs], list(beat.refused.values())
                if shown == (terms, refused):
                    return

    await bus.subscribe(Queue("q", (("elps.members", "shard"),)), heard)
    env = {"ELPS_SHARD_ID": "s1", "ELPS_BEAT_S": "60"}  # so that each change must show at once
    running = asyncio.create_task(ShardService(Context(bus, MemoryStore(), env)).run(stop))
    try:
        await shows([], [])
        await says(host(5))
        await shows([Term(5, 9)], [])
        await says(DropJob(job=JobId("job"), term=Term(5, 9)))
        await shows([], [])
        for term in (Term(3, 9), Term(5, 8)):
            await says(host(term.number, term.nonce))
            await shows([], [Refusal(term=term, highest=Term(5, 9))])
        await says(host(6))
        await shows([Term(6, 9)], [])
        await says(host(4))
        await shows([Term(6, 9)], [Refusal(term=Term(4, 9), highest=Term(6, 9))])
        await says(DropJob(job=JobId("job"), term=Term(6, 9)))
        await shows([], [])
    finally:
        stop.set()
        await asyncio.wait([running], timeout=BOUND_S)
        await bus.close()
    assert running.done()
