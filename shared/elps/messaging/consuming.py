"""Consumers on RabbitMQ: how queues are declared, and how deliveries are received and acknowledged."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog
from aio_pika.abc import AbstractChannel
from aio_pika.connection import Connection
from aio_pika.exceptions import CONNECTION_EXCEPTIONS

from elps.messaging.acking import Acking
from elps.messaging.link import Link
from elps.messaging.port import (
    DEAD_MAX_BYTES,
    DEAD_MAX_LENGTH,
    DEAD_QUEUE,
    DURABLE_MAX_LENGTH,
    EXCLUSIVE_MAX_LENGTH,
    BusStats,
    Delivery,
    Queue,
)
from elps.messaging.receiving import Receiver

if TYPE_CHECKING:
    from aiormq.abc import AbstractChannel as AbstractUnderlay
    from aiormq.abc import DeliveredMessage

log = structlog.get_logger(__name__)

BROKER_DELIVERY_LIMIT = 20
"""Times a durable message may come back because its consumer died, before the broker dead-letters it."""
SETTLE_S = 5.0
DRAIN_S = 10.0
"""How long closing waits for handlers that are at work."""


def queue_arguments(queue: Queue) -> dict[str, Any]:
    """What a queue is declared with. A change needs a new queue name: brokers refuse a changed declaration."""
    if queue.name == DEAD_QUEUE:
        return {
            "x-queue-type": "quorum",
            "x-delivery-limit": BROKER_DELIVERY_LIMIT,
            "x-max-length": DEAD_MAX_LENGTH,
            "x-max-length-bytes": DEAD_MAX_BYTES,
        }
    if queue.durable:
        return {
            "x-queue-type": "quorum",
            "x-delivery-limit": BROKER_DELIVERY_LIMIT,
            "x-dead-letter-exchange": DEAD_QUEUE,
            "x-max-length": DURABLE_MAX_LENGTH,
            "x-overflow": "reject-publish",
        }
    return {"x-max-length": queue.max_length or EXCLUSIVE_MAX_LENGTH}


class AmqpSubscription:
    """A consumer; opened on each new connection."""

    def __init__(
        self,
        link: Link,
        open_: list[AmqpSubscription],
        stats: BusStats,
        queue: Queue,
        receiver: Receiver,
    ) -> None:
        self.queue = queue
        self.receiver = receiver
        self._link = link
        self._open = (
            open_  #: the bus's list of what is restored, this one included until it is cancelled
        )
        self._stats = stats
        self._channel: AbstractChannel | None = None
        self._acking: Acking | None = None  #: of the present channel
        self._unwatch: Callable[[], None] = lambda: None
        self._tag = ""

    async def open(self, connection: Connection) -> None:
        """Declare, bind and consume on a channel of its own."""
        channel = connection.channel(publisher_confirms=False)
        await channel.initialize()
        try:
            await self._consume(channel)
        except BaseException:
            await close_channel(channel)
            raise
        self._unwatch = self._link.watch(channel)
        self._channel = channel  # also keeps it alive: the connection does not

    async def _consume(self, channel: AbstractChannel) -> None:
        await channel.set_qos(
            prefetch_count=self.queue.prefetch
        )  # counts for consumers that begin after it
        durable = self.queue.durable
        declared = await channel.declare_queue(
            self.queue.name,
            durable=durable,
            exclusive=not durable,
            arguments=queue_arguments(self.queue),
        )
        for exchange, key in self.queue.bindings:
            await declared.bind(exchange, key)
        give_up = self._link.breaker()
        underlay = await channel.get_underlay_channel()
        underlay.on_consumer_cancel_callbacks.add(
            lambda _: give_up()
        )  # e.g. somebody deleted the queue
        arguments: dict[str, Any] = {"x-priority": self.queue.priority}
        acking = self._acking = Acking(partial(self._ack, underlay, give_up))
        # Of the channel itself: a consumer of the queue's costs two tasks and a second object for each message.
        begun = await underlay.basic_consume(
            declared.name, partial(self._take, acking, give_up), arguments=arguments
        )
        self._tag = begun.consumer_tag or ""

    async def cancel(self) -> None:
        """Stop receiving; what is being handled is finished first."""
        if self not in self._open:
            return
        self._open.remove(self)
        channel = self._channel
        if channel is None or channel.is_closed:
            await self.receiver.drain(DRAIN_S)
            return
        self._unwatch()
        await self._attempt(channel, lambda underlay: underlay.basic_cancel(self._tag))
        await self.receiver.drain(DRAIN_S)
        if self._acking is not None:
            with contextlib.suppress(TimeoutError):  # what is not acknowledged comes again
                async with asyncio.timeout(SETTLE_S):
                    await self._acking.flush()
        if not self.queue.durable:
            await self._attempt(channel, lambda underlay: underlay.queue_delete(self.queue.name))
        await close_channel(channel)

    async def _attempt(
        self, channel: AbstractChannel, act: Callable[[AbstractUnderlay], Awaitable[object]]
    ) -> None:
        """Do something that a lost connection does by itself."""
        try:
            async with asyncio.timeout(SETTLE_S):
                await act(await channel.get_underlay_channel())
        except (*CONNECTION_EXCEPTIONS, TimeoutError) as error:
            log.info("cancel_failed", queue=self.queue.name, error=str(error))

    async def _take(
        self, acking: Acking, give_up: Callable[[], None], message: DeliveredMessage
    ) -> None:
        number = message.delivery_tag
        assert number is not None, "delivered, not fetched"
        acking.came(number)

        async def settle(*, requeue: bool) -> None:
            if not requeue:
                acking.done(number)
                return
            if await self._word(
                partial(message.channel.basic_nack, number, requeue=True),
                give_up,
                lost=f"of {message.header.properties.message_id}",
            ):
                acking.sent_back(number)
            # else it stays open: an acknowledgement of those behind it must not take it along

        self.receiver.receive(_delivery(message), settle)

    async def _ack(
        self,
        channel: AbstractUnderlay,
        give_up: Callable[[], None],
        number: int,
        *,
        multiple: bool,
    ) -> None:
        await self._word(
            partial(channel.basic_ack, number, multiple=multiple),
            give_up,
            lost=f"{'up to' if multiple else 'of'} {number}",
        )

    async def _word(
        self, say: Callable[[], Awaitable[object]], give_up: Callable[[], None], lost: str
    ) -> bool:
        """Say something of a delivery; False if nobody knows whether it was heard.

        Then the channel is gone, and with it the deliveries: the broker sends the messages again. One that is there and
        takes no word for so long is given up: it would hold up to a whole prefetch of them for good.
        """
        try:
            async with asyncio.timeout(SETTLE_S):
                await say()
        except (*CONNECTION_EXCEPTIONS, TimeoutError) as error:
            self._stats.lost_acks += 1
            log.info("ack_lost", queue=self.queue.name, lost=lost, error=str(error))
            if isinstance(error, TimeoutError):
                give_up()
            return False
        return True


async def close_channel(channel: AbstractChannel) -> None:
    """Close a channel that is done with, if its connection still lets one."""
    with contextlib.suppress(*CONNECTION_EXCEPTIONS, TimeoutError):
        async with asyncio.timeout(SETTLE_S):
            await channel.close()


def _delivery(message: DeliveredMessage) -> Delivery:
    properties = message.header.properties
    return Delivery(
        body=message.body,
        exchange=message.exchange or "",
        routing_key=message.routing_key or "",
        message_id=properties.message_id
        or f"none-{uuid.uuid4().hex}",  # from a foreign client; repeats are not joined
        reply_to=properties.reply_to,
        correlation_id=properties.correlation_id,
        redelivered=bool(message.redelivered),
        headers={str(k): v for k, v in (properties.headers or {}).items() if isinstance(v, str)},
    )
