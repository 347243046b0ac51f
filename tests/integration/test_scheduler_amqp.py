"""The scheduler on a real broker and a real store."""

from __future__ import annotations

import asyncio

import pytest

from elps.contracts import topology
from elps.contracts.codec import decode, encode
from elps.contracts.messages import SchedulerBeat
from elps.contracts.requests import Reply
from elps.contracts.state import JobRecord, JobState
from elps.messaging.amqp import AmqpBus
from elps.messaging.port import DEAD_QUEUE, Delivery, Queue
from elps.runtime.service import Context
from elps.scheduler.app import create
from elps.storage.redis import RedisStore

pytestmark = pytest.mark.integration

BOUND_S = 20.0


async def test_jobs_are_taken_answered_refused_and_kept_across_a_restart(
    fresh_amqp_url: str, fresh_redis_url: str
) -> None:
    store = await RedisStore.connect(fresh_redis_url, timeout_s=BOUND_S)
    user = await AmqpBus.connect(fresh_amqp_url, name="user", timeout_s=BOUND_S)
    heard, dead = asyncio.Event(), asyncio.Event()

    async def on_beat(delivery: Delivery) -> None:
        decode(delivery.body, SchedulerBeat)
        heard.set()

    async def on_dead(_: Delivery) -> None:
        dead.set()

    async def ask(what: str, **body: object) -> Reply:
        answer = await user.request(topology.JOBS, what, encode(body), timeout_s=BOUND_S)
        return decode(answer, Reply)

    async def serve(stop: asyncio.Event) -> None:
        bus = await AmqpBus.connect(fresh_amqp_url, name="scheduler", timeout_s=BOUND_S)
        await create(Context(bus=bus, store=store, env={"ELPS_BEAT_S": "0.1"})).run(stop)
        await bus.close()

    async with asyncio.timeout(3 * BOUND_S):
        await user.subscribe(
            Queue("test.beats", ((topology.MEMBERS, topology.SCHEDULER_BEAT),)), on_beat
        )
        await user.subscribe(Queue(DEAD_QUEUE, durable=True), on_dead)
        for life in (1, 2):
            stop = asyncio.Event()
            heard.clear()
            running = asyncio.create_task(serve(stop))
            await heard.wait()
            reply = await ask("submit", id="j", task="linear", iterations=5)
            assert reply.ok
            assert reply.reason.startswith("queued" if life == 1 else "already there")
            bad = await ask("submit", id="a.#", task="linear")
            assert not bad.ok
            assert len(bad.problems) == 2
            await dead.wait()
            stop.set()
            await running
        value = await store.hash_get(topology.JOB_INDEX, "j")
        assert value is not None
        assert decode(value, JobRecord).state is JobState.QUEUED
    await user.close()
    await store.close()
