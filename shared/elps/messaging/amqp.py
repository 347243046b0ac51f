"""The bus over RabbitMQ, for versions 3.10 to 4.x.

Two connections: one publishes, the other consumes, so that a broker which blocks its publishers (memory or disk alarm)
still gets its deliveries acknowledged and can recover. Durable queues are quorum queues with a delivery limit, a
dead-letter exchange and a bound on their length beyond which publishing is refused; the others are exclusive classic
queues. Prefetch is per consumer. No global prefetch, no transient shared queues: the newest brokers lack them.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import Self

import structlog
from aio_pika import DeliveryMode, Message
from aio_pika.abc import AbstractChannel, AbstractExchange
from aio_pika.connection import Connection
from aio_pika.exceptions import (
    CONNECTION_EXCEPTIONS,
    ChannelPreconditionFailed,
    DeliveryError,
)

from elps.contracts.codec import MAX_MESSAGE_BYTES
from elps.contracts.errors import InvalidDocument, RetryLater, SetupError
from elps.messaging.consuming import (
    SETTLE_S,
    AmqpSubscription,
    queue_arguments,
)
from elps.messaging.link import ALARM, Link
from elps.messaging.port import (
    DEAD_QUEUE,
    EXCHANGE_HEADER,
    EXCHANGES,
    QUEUE_HEADER,
    REASON_HEADER,
    BusStats,
    Delivery,
    Handler,
    Queue,
    check_message,
    check_queue,
)
from elps.messaging.receiving import Bury, Receiver
from elps.messaging.replies import Replies

log = structlog.get_logger(__name__)

SUBSCRIBE_S = 10.0
AGAIN_S = 0.05
"""Until a publish that met a lost connection looks for the next one."""
LOCKED_PAUSE_S = 0.3
"""Until a queue is tried again that a dying connection still holds."""
MAX_BURIED_BYTES = 64 * 1024
"""Of a message that is too large to be read only this much is kept as a dead letter."""
MAX_REASON_CHARS = 4000


class AmqpBus:
    """See `elps.messaging.port.Bus`; made by `connect`."""

    def __init__(self, url: str, name: str) -> None:
        self.stats = BusStats()
        self._publishing = Link(url, f"{name}:publish", self._prepare_publishing)
        self._consuming = Link(url, f"{name}:consume", self._prepare_consuming)
        self._confirmed: dict[
            str, AbstractExchange
        ] = {}  #: exchanges on the channel with confirms, while connected
        self._unconfirmed: dict[str, AbstractExchange] = {}
        self._channels: list[AbstractChannel] = []  #: of the publishing link; held weakly elsewhere
        self._subscriptions: list[AmqpSubscription] = []
        self._opening = asyncio.Lock()  #: held while subscriptions are opened
        self._connection: Connection | None = None  #: the consuming one, while it stands
        self._replies = Replies(self, name)
        self._closed = False

    @classmethod
    async def connect(cls, url: str, *, name: str, timeout_s: float = 60.0) -> Self:
        """Connect, trying again until `timeout_s` has passed; then `RetryLater`. A URL that is none: `SetupError`."""
        bus = cls(url, name)
        bus._publishing.start()
        bus._consuming.start()
        try:
            async with asyncio.timeout(timeout_s):
                await bus._publishing.up.wait()
                await bus._consuming.up.wait()
        except BaseException as error:
            await bus.close()
            if isinstance(error, TimeoutError):
                link = bus._publishing
                raise RetryLater(
                    f"the broker at {link.shown} did not answer within {timeout_s:g} s; last: {link.last_error}"
                ) from None
            raise
        return bus

    @property
    def connected(self) -> bool:
        """Whether the broker is reachable at the moment."""
        return self._publishing.up.is_set() and self._consuming.up.is_set()

    @property
    def blocked(self) -> str:
        """See `Bus.blocked`."""
        since = self._publishing.blocked_at
        if since is None:
            return ""
        for_s = asyncio.get_running_loop().time() - since
        return f"the broker has taken no messages for {for_s:.0f} s: {ALARM}"

    async def publish(
        self,
        exchange: str,
        routing_key: str,
        body: bytes,
        *,
        message_id: str | None = None,
        reply_to: str | None = None,
        correlation_id: str | None = None,
        must_route: bool = False,
        confirm: bool = True,
        timeout_s: float = 5.0,
    ) -> None:
        """See `Bus.publish`. After a lost connection it is published again within the time-out: it may arrive twice."""
        if must_route and not confirm:
            raise ValueError("must_route needs the broker's confirm")
        check_message(exchange, routing_key, body)
        message = Message(
            body,
            message_id=message_id or uuid.uuid4().hex,
            reply_to=reply_to,
            correlation_id=correlation_id,
            content_type="application/json",
            delivery_mode=DeliveryMode.PERSISTENT if confirm else DeliveryMode.NOT_PERSISTENT,
        )
        await self._publish(exchange, routing_key, message, must_route, confirm, timeout_s)
        self.stats.published += 1

    async def subscribe(self, queue: Queue, handler: Handler) -> AmqpSubscription:
        """See `Bus.subscribe`."""
        check_queue(queue)
        if not queue.durable and any(s.queue.name == queue.name for s in self._subscriptions):
            raise ValueError(f"queue {queue.name} has its consumer already")
        receiver = Receiver(queue, _bounded(handler), self._bury_from(queue), self.stats)
        subscription = AmqpSubscription(
            self._consuming, self._subscriptions, self.stats, queue, receiver
        )
        error: BaseException | str = self._consuming.last_error
        try:
            async with asyncio.timeout(SUBSCRIBE_S):
                while True:
                    await self._consuming.up.wait()
                    try:
                        async with self._opening:
                            if self._connection is not None:
                                await subscription.open(self._connection)
                                self._subscriptions.append(subscription)
                                return subscription
                    except ChannelPreconditionFailed as refused:
                        raise SetupError(
                            f"queue {queue.name} cannot be declared: {refused}"
                        ) from None
                    except CONNECTION_EXCEPTIONS as refused:
                        error = refused
                    await asyncio.sleep(LOCKED_PAUSE_S)
        except TimeoutError:
            raise RetryLater(
                f"subscribe to {queue.name}: not possible within {SUBSCRIBE_S:g} s; last: {error}"
            ) from None

    async def request(
        self, exchange: str, routing_key: str, body: bytes, *, timeout_s: float = 5.0
    ) -> bytes:
        """See `Bus.request`."""
        return await self._replies.request(exchange, routing_key, body, timeout_s)

    async def respond(self, request: Delivery, body: bytes) -> None:
        """See `Bus.respond`."""
        await self._replies.respond(request, body)

    async def close(self) -> None:
        """See `Bus.close`."""
        if self._closed:
            return
        await asyncio.gather(*(s.cancel() for s in list(self._subscriptions)))
        self._closed = True
        await asyncio.gather(self._publishing.close(), self._consuming.close())

    async def _prepare_publishing(self, connection: Connection) -> None:
        confirmed = connection.channel(publisher_confirms=True, on_return_raises=True)
        unconfirmed = connection.channel(publisher_confirms=False)
        for channel in (confirmed, unconfirmed):
            await channel.initialize()
        dead = await confirmed.declare_queue(
            DEAD_QUEUE, durable=True, arguments=queue_arguments(Queue(DEAD_QUEUE, durable=True))
        )
        await dead.bind(DEAD_QUEUE, "")
        self._channels = [confirmed, unconfirmed]
        self._confirmed, self._unconfirmed = [
            {name: await channel.get_exchange(name, ensure=False) for name in EXCHANGES}
            | {"": channel.default_exchange}
            for channel in self._channels
        ]
        for channel in self._channels:
            self._publishing.watch(channel)

    async def _prepare_consuming(self, connection: Connection) -> None:
        async with self._opening:
            for subscription in list(self._subscriptions):
                await subscription.open(connection)
            self._connection = connection
        if self._consuming.times_up:
            self.stats.reconnects += 1

    async def _publish(
        self,
        exchange: str,
        routing_key: str,
        message: Message,
        must_route: bool,
        confirm: bool,
        timeout_s: float,
    ) -> None:
        where = f"{exchange} {routing_key}" if exchange else f"queue {routing_key}"
        if self._closed:
            raise RetryLater(f"publish to {where}: this bus is closed")
        up = self._publishing.up
        if not confirm and not up.is_set():
            raise RetryLater(f"publish to {where}: the broker at {self._publishing.shown} is away")
        if not confirm and (blocked := self.blocked):
            raise RetryLater(f"publish to {where}: {blocked}")
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    await up.wait()
                    exchanges = self._confirmed if confirm else self._unconfirmed
                    give_up = self._publishing.breaker()
                    try:
                        await exchanges[exchange].publish(
                            message, routing_key, mandatory=must_route
                        )
                        return
                    except DeliveryError as error:
                        raise RetryLater(
                            f"publish to {where}: {_refusal(error, must_route)}"
                        ) from None
                    except CONNECTION_EXCEPTIONS as error:
                        if not confirm:
                            raise RetryLater(f"publish to {where}: {error}") from None
                        give_up()
                        await asyncio.sleep(AGAIN_S)
        except TimeoutError:
            why = self.blocked or (
                "it may be blocked by a memory or disk alarm"
                if up.is_set()
                else self._publishing.last_error
            )
            raise RetryLater(
                f"publish to {where}: the broker at {self._publishing.shown} did not confirm "
                f"within {timeout_s:g} s; {why}"
            ) from None

    def _bury_from(self, queue: Queue) -> Bury:
        async def bury(delivery: Delivery, reason: str) -> None:
            if (
                queue.name == DEAD_QUEUE
            ):  # nowhere further to go; acknowledged, or it would come back for ever
                log.error("dead_letter_dropped", queue=queue.name, reason=reason)
                return
            body = (
                delivery.body
                if len(delivery.body) <= MAX_MESSAGE_BYTES
                else delivery.body[:MAX_BURIED_BYTES]
            )
            message = Message(
                body,
                message_id=delivery.message_id,
                delivery_mode=DeliveryMode.PERSISTENT,
                headers={
                    REASON_HEADER: reason[:MAX_REASON_CHARS],
                    QUEUE_HEADER: queue.name,
                    EXCHANGE_HEADER: delivery.exchange,
                },
            )
            await self._publish(DEAD_QUEUE, delivery.routing_key, message, True, True, SETTLE_S)

        return bury


def _bounded(handler: Handler) -> Handler:
    """Refuse what no contract allows before anybody tries to read it."""

    async def handle(delivery: Delivery) -> None:
        if len(delivery.body) > MAX_MESSAGE_BYTES:
            raise InvalidDocument(
                "message", [f"{len(delivery.body)} bytes, at most {MAX_MESSAGE_BYTES} are read"]
            )
        await handler(delivery)

    return handle


def _refusal(error: DeliveryError, must_route: bool) -> str:
    if must_route and error.message is not None:
        return "no queue takes it"
    return "the broker refused it: a queue is full"
