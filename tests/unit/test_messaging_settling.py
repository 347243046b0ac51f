"""What of a delivery is said to a broker that does not take it."""

from __future__ import annotations

import asyncio
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from elps.messaging import consuming
from elps.messaging.acking import Acking
from elps.messaging.consuming import AmqpSubscription
from elps.messaging.port import BusStats, Delivery, Queue
from elps.messaging.receiving import Receiver


class Channel:
    """Notes what it takes, and lets those wait whose words it does not."""

    def __init__(self, deaf_to: str) -> None:
        self.deaf_to = deaf_to
        self.acks: list[tuple[int, bool]] = []

    async def basic_ack(self, number: int, *, multiple: bool) -> None:
        await self._hear("ack")
        self.acks.append((number, multiple))

    async def basic_nack(self, number: int, *, requeue: bool) -> None:
        assert requeue
        await self._hear("nack")

    async def _hear(self, word: str) -> None:
        if word == self.deaf_to:
            await asyncio.Event().wait()


class Consumer:
    """A subscription on such a channel, whose handlers end when the test says so."""

    def __init__(self, channel: Channel) -> None:
        self.channel, self.stats = channel, BusStats()
        self.given_up = asyncio.Event()
        self.may_end = {str(n): asyncio.Event() for n in range(1, 4)}
        queue = Queue("q")
        self.receiver = Receiver(queue, self._handle, self._bury, self.stats)
        self.subscription = AmqpSubscription(cast(Any, None), [], self.stats, queue, self.receiver)
        ack = partial(self.subscription._ack, cast(Any, channel), self.given_up.set)
        self.acking = Acking(ack)

    async def comes(self, number: int) -> None:
        properties = SimpleNamespace(
            message_id=str(number), reply_to=None, correlation_id=None, headers={}
        )
        message = SimpleNamespace(
            delivery_tag=number,
            channel=self.channel,
            header=SimpleNamespace(properties=properties),
            body=b"",
            exchange="",
            routing_key="",
            redelivered=False,
        )
        await self.subscription._take(self.acking, self.given_up.set, cast(Any, message))

    async def _handle(self, delivery: Delivery) -> None:
        await self.may_end[delivery.message_id].wait()

    async def _bury(self, delivery: Delivery, reason: str) -> None:
        raise AssertionError(reason)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consuming, "SETTLE_S", 0.05)


async def test_what_could_not_be_sent_back_is_not_acknowledged_with_those_behind_it() -> None:
    consumer = Consumer(Channel("nack"))
    for number in (1, 2, 3):
        await consumer.comes(number)
    (first, *_) = (t for t in asyncio.all_tasks() if t.get_name() == "handle q 1")
    await asyncio.sleep(0)  # it has begun
    first.cancel()
    async with asyncio.timeout(10):
        await asyncio.wait((first,))
        for number in ("2", "3"):
            consumer.may_end[number].set()
        await consumer.receiver.drain(10)
        await consumer.acking.flush()
    assert consumer.channel.acks == [(2, False), (3, False)]
    assert consumer.given_up.is_set()
    assert consumer.stats.lost_acks == 1


async def test_a_channel_that_takes_no_acknowledgement_is_given_up() -> None:
    """Else the broker would wait for it, and send nothing more once the prefetch is used up."""
    consumer = Consumer(Channel("ack"))
    await consumer.comes(1)
    consumer.may_end["1"].set()
    async with asyncio.timeout(10):
        await consumer.given_up.wait()
