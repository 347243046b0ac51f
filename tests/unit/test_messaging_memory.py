"""The faults and outages that the bus of one process can play."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from elps.contracts.errors import RetryLater
from elps.messaging import memory, receiving
from elps.messaging.faults import Faults
from elps.messaging.memory import MemoryBroker, MemoryBus
from elps.messaging.port import Delivery, Queue

BOUND_S = 5.0


async def until(condition: Callable[[], bool]) -> None:
    """Let the tasks of the bus run until a state is reached."""
    async with asyncio.timeout(BOUND_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)


async def received(faults: Faults, count: int = 200) -> list[int]:
    """Numbers 0 to `count` - 1 as they arrive through a faulty exchange, until the last copy."""
    bus, got = MemoryBus(MemoryBroker(faults)), []

    async def take(delivery: Delivery) -> None:
        got.append(int(delivery.body))

    await bus.subscribe(Queue("q", (("elps.members", "#"),), prefetch=1), take)
    for n in range(count):
        await bus.publish("elps.members", "shard", b"%d" % n)
    await until(lambda: bus.stats.handled == count - faults.dropped + faults.doubled)
    await bus.close()
    return got


async def test_messages_are_lost_and_doubled_in_the_same_way_for_the_same_seed() -> None:
    first, second, other = [Faults(seed, drop=0.3, double=0.2) for seed in (1, 1, 2)]
    numbers = [await received(faults) for faults in (first, second, other)]
    assert numbers[0] == numbers[1] != numbers[2]
    assert (first.dropped, first.doubled) == (second.dropped, second.doubled)
    assert 30 < first.dropped < 90
    assert len(set(numbers[0])) == 200 - first.dropped


async def test_late_messages_are_overtaken() -> None:
    faults = Faults(3, delay=0.3, delay_s=0.01)
    got = await received(faults)
    assert faults.delayed > 30
    assert sorted(got) == list(range(200)) != got


async def test_faults_keep_to_the_exchanges_they_are_given() -> None:
    faults = Faults(4, drop=1.0, exchanges=["elps.telemetry"])
    assert await received(faults, 20) == list(range(20))
    assert faults.dropped == 0


async def test_an_outage_takes_back_what_was_not_acknowledged() -> None:
    broker = MemoryBroker()
    bus, started, gate = MemoryBus(broker), [], asyncio.Event()

    async def slow(delivery: Delivery) -> None:
        started.append((delivery.body, delivery.redelivered))
        await gate.wait()

    await bus.subscribe(Queue("q", (("elps.jobs", "#"),), durable=True, prefetch=1), slow)
    await bus.publish("elps.jobs", "a", b"1")
    await bus.publish("elps.jobs", "a", b"2")
    broker.stop()
    assert not bus.connected
    with pytest.raises(RetryLater, match=r"did not answer within 0\.01 s"):
        await bus.publish("elps.jobs", "a", b"3", timeout_s=0.01)
    with pytest.raises(RetryLater):
        await bus.publish("elps.jobs", "a", b"3", confirm=False)
    gate.set()
    await until(lambda: bus.stats.lost_acks == 1)
    assert broker.depth("q") == 2
    broker.start()
    await until(lambda: bus.stats.handled == 3)
    assert started == [(b"1", False), (b"1", True), (b"2", False)]
    await bus.close()


async def test_a_full_durable_queue_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "DURABLE_MAX_LENGTH", 3)
    bus = MemoryBus(MemoryBroker())

    async def never(_: Delivery) -> None:
        raise AssertionError

    await (await bus.subscribe(Queue("q", (("elps.jobs", "#"),), durable=True), never)).cancel()
    for n in range(3):
        await bus.publish("elps.jobs", "a", b"%d" % n)
    with pytest.raises(RetryLater, match="full"):
        await bus.publish("elps.jobs", "a", b"3")
    assert bus.broker.depth("q") == 3


def test_patience_with_a_peer_that_is_away_lasts_over_a_minute() -> None:
    pauses = [receiving.pause_s(n) for n in range(1, receiving.RETRY_LATER_LIMIT)]
    assert 60 < sum(pauses) < 90
    assert max(pauses) == receiving.LONGEST_PAUSE_S
