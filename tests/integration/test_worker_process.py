"""The agent as the process that a user starts, with a real broker and store."""

from __future__ import annotations

import asyncio
import os
import sys

import pytest

from elps.contracts import topology
from elps.contracts.codec import decode
from elps.contracts.messages import AgentBeat
from elps.messaging.amqp import AmqpBus
from elps.messaging.port import Delivery, Queue

BOUND_S = 30.0


@pytest.mark.integration
async def test_an_agent_process_beats_and_on_sigterm_says_that_it_leaves(
    amqp_url: str, redis_url: str
) -> None:
    bus = await AmqpBus.connect(amqp_url, name="test")
    beats: asyncio.Queue[AgentBeat] = asyncio.Queue()

    async def on_beat(delivery: Delivery) -> None:
        beat = decode(delivery.body, AgentBeat)
        if beat.agent == "agent-under-test":
            beats.put_nowait(beat)

    await bus.subscribe(Queue("test.beats", ((topology.MEMBERS, topology.AGENT_BEAT),)), on_beat)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "elps.worker",
        env={
            **os.environ,
            "ELPS_AMQP_URL": amqp_url,
            "ELPS_REDIS_URL": redis_url,
            "ELPS_AGENT_ID": "agent-under-test",
            "ELPS_WORKER_SLOTS": "2",
        },
    )
    async with asyncio.timeout(BOUND_S):
        beat = await beats.get()
        assert (beat.slots, beat.pid, beat.trainers, beat.leaving) == (2, process.pid, [], False)
        process.terminate()
        while not beat.leaving:
            beat = await beats.get()
        assert await process.wait() == 0
    await bus.close()
