"""Work that holds a message for long, and processes that are busy: the connection to the broker outlasts both."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from buses import Inbox

from elps.contracts import topology
from elps.contracts.codec import decode, encode, parse_job
from elps.contracts.epoch import Term
from elps.contracts.ids import AgentId, JobId, ShardId, WorkerId
from elps.contracts.messages import Address, AgentBeat, StartTrainer
from elps.local.broker import PrivateBroker
from elps.messaging.amqp import AmqpBus
from elps.messaging.port import Delivery, Queue
from elps.runtime.service import Context
from elps.storage.memory import MemoryStore
from elps.worker.app import WorkerAgent

pytestmark = [pytest.mark.integration, pytest.mark.thorough]

BOUND_S = 30.0
IMPATIENT = (
    "application:set_env(rabbit, consumer_timeout, 1000), "
    "application:set_env(rabbit, channel_tick_interval, 500)."
)
"""The broker closes the channel of a message that is not acknowledged within a second; else within half an hour."""
HEARTBEAT_S, BUSY_S = 2, 8.0
AGENT = AgentId("busy")


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(BOUND_S):
        while not holds():  # noqa: ASYNC110 - states of the network, which tell nobody
            await asyncio.sleep(0.02)


async def test_a_message_held_longer_than_the_broker_waits_costs_a_channel_and_nothing_else(
    private_broker: PrivateBroker,
) -> None:
    await asyncio.to_thread(private_broker.control, "eval", IMPATIENT)
    bus = await AmqpBus.connect(private_broker.url, name="test", timeout_s=BOUND_S)
    begun, others, gate = Inbox(BOUND_S), Inbox(BOUND_S), asyncio.Event()

    async def slow(delivery: Delivery) -> None:
        await begun(delivery)
        if delivery.body == b"slow":
            await gate.wait()

    await bus.subscribe(Queue("work", (("elps.jobs", "#"),), durable=True, prefetch=1), slow)
    await bus.subscribe(Queue("beats", (("elps.members", "#"),)), others)
    await bus.publish("elps.jobs", "submit", b"slow")
    assert (await begun.next()).body == b"slow"
    await until(lambda: bus.stats.reconnects >= 2)
    assert begun.got.empty(), "it is still at work, and each repeat has joined it"
    await until(lambda: bus.connected)
    await bus.publish("elps.members", "shard", b"beat")
    assert (await others.next()).body == b"beat"
    gate.set()
    await bus.publish("elps.jobs", "submit", b"next")
    bodies = [(await begun.next()).body]
    while bodies[-1] != b"next":
        bodies.append((await begun.next()).body)
    assert len(bodies) - 1 <= bus.stats.lost_acks, "begun again only if nobody could be told"
    await bus.close()


async def test_a_trainer_that_computes_in_pure_python_holds_up_no_heartbeat(
    fresh_amqp_url: str,
) -> None:
    url = f"{fresh_amqp_url}?heartbeat={HEARTBEAT_S}"
    bus = await AmqpBus.connect(url, name="agent", timeout_s=BOUND_S)
    other = await AmqpBus.connect(fresh_amqp_url, name="test", timeout_s=BOUND_S)
    beats: list[AgentBeat] = []

    async def heard(delivery: Delivery) -> None:
        beats.append(decode(delivery.body, AgentBeat))

    await other.subscribe(Queue("heard", ((topology.MEMBERS, topology.AGENT_BEAT),)), heard)
    env = {
        "ELPS_AGENT_ID": AGENT,
        "ELPS_BEAT_S": "0.2",
        "PYTHONPATH": str(Path(__file__).parent),
    }
    agent = WorkerAgent(
        Context(bus, MemoryStore(), env),
        trainer="worker_scripted_trainer:run",
        preload=("numpy",),
    )
    stop = asyncio.Event()
    running = asyncio.create_task(agent.run(stop))
    await until(lambda: beats)
    start = StartTrainer(
        job=JobId("job"),
        document=parse_job(
            {
                "task": "mlp",
                "iterations": 1,
                "task_args": {"script": "busy", "seconds": BUSY_S},
            }
        ),
        term=Term(1, 5),
        worker=WorkerId("job-w1"),
        leader=Address(shard=ShardId("s"), host="127.0.0.1", port=1),
        secret="s",
    )
    await other.publish(topology.COMMANDS, AGENT, encode(start), must_route=True)
    await until(lambda: beats[-1].trainers and beats[-1].trainers[0].state == "exited")
    seen = [t for beat in beats for t in beat.trainers]
    assert len({t.pid for t in seen if t.pid}) == 1
    assert seen[-1].done
    assert len([t for t in seen if t.state == "running"]) > BUSY_S / 0.2 / 4
    assert (bus.stats.reconnects, bus.stats.handled) == (0, 1)
    stop.set()
    async with asyncio.timeout(BOUND_S):
        await running
    await asyncio.gather(bus.close(), other.close())
