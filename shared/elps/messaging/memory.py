"""The bus within one process: several `MemoryBus` share one `MemoryBroker`, which behaves like RabbitMQ does for us."""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from dataclasses import dataclass, field, replace

import structlog

from elps.contracts.errors import RetryLater
from elps.messaging.faults import Faults
from elps.messaging.port import (
    DEAD_MAX_LENGTH,
    DEAD_QUEUE,
    DURABLE_MAX_LENGTH,
    EXCHANGE_HEADER,
    EXCHANGES,
    EXCLUSIVE_MAX_LENGTH,
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
from elps.messaging.topics import routes

log = structlog.get_logger(__name__)

DRAIN_S = 10.0
"""How long closing waits for handlers that are at work."""


@dataclass
class _Consumer:
    """One subscription: its receiver, and what it was handed and has not settled."""

    bus: MemoryBus
    receiver: Receiver
    held: dict[int, Delivery] = field(
        default_factory=dict
    )  #: at most `prefetch`, by order of delivery

    @property
    def takes(self) -> bool:
        """Whether it can be handed one more."""
        return len(self.held) < self.receiver.queue.prefetch and self.bus.connected


class _Queue:
    """Messages of one queue and those who consume it, in turn."""

    def __init__(self, queue: Queue, owner: MemoryBus | None) -> None:
        self.queue = queue
        self.owner = owner  #: the one bus that may use it; None when durable
        self.bindings: set[tuple[str, str]] = set()
        self.ready: deque[Delivery] = deque()
        self.consumers: deque[_Consumer] = deque()
        self._count = 0

    @property
    def full(self) -> bool:
        """Whether a durable queue refuses more."""
        return (
            self.queue.durable
            and self.queue.name != DEAD_QUEUE
            and len(self.ready) >= DURABLE_MAX_LENGTH
        )

    def put(self, delivery: Delivery) -> None:
        self.ready.append(delivery)
        bound = (
            DEAD_MAX_LENGTH if self.queue.durable else self.queue.max_length or EXCLUSIVE_MAX_LENGTH
        )
        if not self.queue.durable or self.queue.name == DEAD_QUEUE:
            while len(self.ready) > bound:
                self.ready.popleft()
        self.dispatch()

    def dispatch(self) -> None:
        """Hand ready messages to consumers with room: to those of the highest priority in turn."""
        while self.ready:
            free = [consumer for consumer in self.consumers if consumer.takes]
            if not free:
                return
            consumer = max(free, key=lambda one: one.receiver.queue.priority)
            self.consumers.remove(consumer)
            self.consumers.append(consumer)
            self._hand(consumer, self.ready.popleft())

    def _hand(self, consumer: _Consumer, delivery: Delivery) -> None:
        self._count += 1
        tag = self._count
        consumer.held[tag] = delivery

        async def settle(*, requeue: bool) -> None:
            if consumer.held.pop(tag, None) is None:
                consumer.bus.stats.lost_acks += 1  # the broker was away meanwhile and took it back
            elif requeue:
                self.give_back([delivery])
            self.dispatch()

        consumer.receiver.receive(delivery, settle)

    def give_back(self, deliveries: list[Delivery]) -> None:
        """Put unsettled messages first again, in their order."""
        for delivery in reversed(deliveries):
            self.ready.appendleft(_again(delivery))

    def release(self, consumer: _Consumer) -> None:
        """Take back what a consumer holds."""
        held = list(consumer.held.values())
        consumer.held.clear()
        self.give_back(held)


def _again(delivery: Delivery) -> Delivery:
    return replace(delivery, redelivered=True)


class MemoryBroker:
    """The exchanges and queues that the buses of one process share. Use it from one event loop."""

    def __init__(self, faults: Faults | None = None) -> None:
        self.faults = faults
        self.up = asyncio.Event()  #: clear while an outage is played
        self.up.set()
        self._queues: dict[str, _Queue] = {}
        dead = self.declare(Queue(DEAD_QUEUE, ((DEAD_QUEUE, ""),), durable=True), None)
        assert dead.owner is None

    def declare(self, queue: Queue, owner: MemoryBus | None) -> _Queue:
        """Find or make a queue and add its bindings; `RetryLater` while another bus owns it."""
        found = self._queues.get(queue.name)
        if found is None:
            found = self._queues[queue.name] = _Queue(queue, owner)
        elif found.queue.durable != queue.durable:
            raise RetryLater(f"queue {queue.name} exists with other properties")
        elif found.owner is not owner:
            raise RetryLater(f"queue {queue.name} is held by another connection")
        found.bindings.update(queue.bindings)
        return found

    def remove(self, name: str) -> None:
        """Drop a queue with its messages."""
        self._queues.pop(name, None)

    def depth(self, name: str) -> int:
        """Messages that wait in a queue; 0 when there is none of this name."""
        return len(self._queues[name].ready) if name in self._queues else 0

    def consumers(self, name: str) -> int:
        """Consumers of a queue."""
        return len(self._queues[name].consumers) if name in self._queues else 0

    def route(self, delivery: Delivery) -> int:
        """Put a message into every queue it belongs to; the number of queues. `RetryLater` when one is full."""
        queues = [q for q in self._queues.values() if self._takes(q, delivery)]
        if full := [q.queue.name for q in queues if q.full]:
            raise RetryLater(f"queue {full[0]} is full")
        for queue in queues:
            if self.faults is None or not delivery.exchange:
                queue.put(delivery)
                continue
            for delay_s in self.faults.copies(delivery.exchange):
                if delay_s <= 0:
                    queue.put(delivery)
                else:
                    asyncio.get_running_loop().call_later(delay_s, queue.put, delivery)
        return len(queues)

    def _takes(self, queue: _Queue, delivery: Delivery) -> bool:
        if not delivery.exchange:
            return queue.queue.name == delivery.routing_key
        kind = EXCHANGES[delivery.exchange]
        return any(
            e == delivery.exchange and routes(kind, key, delivery.routing_key)
            for e, key in queue.bindings
        )

    def stop(self) -> None:
        """Play an outage: nothing is published or delivered, and what was not acknowledged will come again."""
        self.up.clear()
        for queue in self._queues.values():
            for consumer in queue.consumers:
                queue.release(consumer)
            if not queue.queue.durable:
                queue.ready.clear()

    def start(self) -> None:
        """End the outage."""
        self.up.set()
        for queue in self._queues.values():
            for consumer in queue.consumers:
                consumer.bus.stats.reconnects += 1
            queue.dispatch()


class MemorySubscription:
    """A consumer on a `MemoryBus`."""

    def __init__(self, bus: MemoryBus, queue: _Queue, consumer: _Consumer) -> None:
        self._bus, self._queue, self._consumer = bus, queue, consumer

    async def cancel(self) -> None:
        """Stop receiving; what is being handled is finished first."""
        if self._consumer not in self._queue.consumers:
            return
        self._queue.consumers.remove(self._consumer)
        self._bus.subscriptions.remove(self)
        await self._consumer.receiver.drain(DRAIN_S)
        self._queue.release(self._consumer)
        if not self._queue.queue.durable:
            self._bus.broker.remove(self._queue.queue.name)
        self._queue.dispatch()


class MemoryBus:
    """One client of a `MemoryBroker`; see `elps.messaging.port.Bus`."""

    def __init__(self, broker: MemoryBroker, name: str = "memory") -> None:
        self.broker, self.name = broker, name
        self.stats = BusStats()
        self.subscriptions: list[MemorySubscription] = []
        self._closed = False
        self._replies = Replies(self, name)

    @property
    def connected(self) -> bool:
        """Whether the broker is reachable at the moment."""
        return self.broker.up.is_set() and not self._closed

    @property
    def blocked(self) -> str:
        """Never: memory in one process is nobody's alarm."""
        return ""

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
        """See `Bus.publish`."""
        check_message(exchange, routing_key, body)
        await self._available(
            timeout_s if confirm else 0.0, f"publish to {exchange or routing_key}"
        )
        message_id = message_id or uuid.uuid4().hex
        delivery = Delivery(
            bytes(body), exchange, routing_key, message_id, reply_to, correlation_id
        )
        try:
            taken = self.broker.route(delivery)
        except RetryLater:
            if confirm:
                raise
            return  # nobody waits for the broker's refusal
        if must_route and not taken:
            raise RetryLater(f"no queue takes {exchange or 'queue'} {routing_key}")
        self.stats.published += 1
        if confirm:
            await asyncio.sleep(0)  # as over a network, others run before the confirm is there

    async def subscribe(self, queue: Queue, handler: Handler) -> MemorySubscription:
        """See `Bus.subscribe`."""
        check_queue(queue)
        await self._available(DRAIN_S, f"subscribe to {queue.name}")
        declared = self.broker.declare(queue, None if queue.durable else self)
        if declared.consumers and not queue.durable:
            raise ValueError(f"queue {queue.name} has its consumer already")
        consumer = _Consumer(self, Receiver(queue, handler, self._bury(queue), self.stats))
        declared.consumers.append(consumer)
        subscription = MemorySubscription(self, declared, consumer)
        self.subscriptions.append(subscription)
        declared.dispatch()
        return subscription

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
        await asyncio.gather(*(s.cancel() for s in list(self.subscriptions)))
        self._closed = True

    async def _available(self, timeout_s: float, what: str) -> None:
        if self._closed:
            raise RetryLater(f"{what}: this bus is closed")
        if self.broker.up.is_set():
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self.broker.up.wait()
        except TimeoutError:
            raise RetryLater(f"{what}: the broker did not answer within {timeout_s:g} s") from None

    def _bury(self, queue: Queue) -> Bury:
        async def bury(delivery: Delivery, reason: str) -> None:
            if queue.name == DEAD_QUEUE:
                log.error("dead_letter_dropped", queue=queue.name, reason=reason)
                return
            headers = {
                REASON_HEADER: reason,
                QUEUE_HEADER: queue.name,
                EXCHANGE_HEADER: delivery.exchange,
            }
            await self._available(0.0, "dead letter")
            self.broker.route(
                Delivery(
                    delivery.body,
                    DEAD_QUEUE,
                    delivery.routing_key,
                    delivery.message_id,
                    headers=headers,
                )
            )

        return bury
