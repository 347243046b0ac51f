"""What services ask of a bus. `AmqpBus` and `MemoryBus` both pass the same tests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from elps.contracts.codec import MAX_MESSAGE_BYTES
from elps.contracts.errors import InvalidDocument


@dataclass(frozen=True)
class Delivery:
    """One received message."""

    body: bytes
    exchange: str
    routing_key: str
    message_id: str
    reply_to: str | None = None
    correlation_id: str | None = None
    redelivered: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers that are text; dead letters carry `REASON_HEADER`."""


@dataclass(frozen=True)
class Queue:
    """A queue and its bindings.

    `durable`: a quorum queue that survives the broker, with a delivery limit and the dead-letter exchange. Otherwise an
    exclusive classic queue that lives as long as the connection and is declared again after a reconnect.
    """

    name: str
    bindings: tuple[tuple[str, str], ...] = ()
    """Pairs of exchange and routing key."""
    durable: bool = False
    max_length: int | None = None
    """Not durable ones only: oldest messages are dropped beyond this (state that the next message repeats).

    None: `EXCLUSIVE_MAX_LENGTH`. A durable queue holds `DURABLE_MAX_LENGTH`; beyond it publishing is refused.
    """
    prefetch: int = field(default=64)
    priority: int = 0
    """Of several consumers the one with the highest gets all messages, as long as it takes them."""


Handler = Callable[[Delivery], Awaitable[None]]
"""Returning acknowledges. `InvalidDocument` dead-letters at once with its text; any other error is tried again up to
the delivery limit and then dead-letters. Handlers are idempotent: a message may come twice."""


@dataclass
class BusStats:
    """What one bus did since it was made."""

    published: int = 0
    """Messages handed over (and confirmed, where a confirm was asked for)."""
    handled: int = 0
    """Messages whose handler returned."""
    failed: int = 0
    """Tries in which a handler raised, `InvalidDocument` excepted."""
    dead_lettered: int = 0
    reconnects: int = 0
    lost_acks: int = 0
    """Acknowledgements that could not be given, so that the message comes again."""


ExchangeKind = Literal["topic", "direct", "fanout"]


class Subscription(Protocol):
    """A running consumer."""

    async def cancel(self) -> None:
        """Stop receiving; what is being handled is finished first."""


class Bus(Protocol):
    """A connection to the control plane. Every wait is bounded and raises `RetryLater` when the bound passes."""

    @property
    def connected(self) -> bool:
        """Whether the broker is reachable at the moment."""

    @property
    def blocked(self) -> str:
        """Since when and why a broker that is reachable takes no messages, for people; empty while it takes them.

        A broker tells only those of an alarm who publish.
        """

    @property
    def stats(self) -> BusStats:
        """Counters, live."""

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
        """Hand a message to the broker. A message that timed out may still arrive.

        `must_route`: raise `RetryLater` when no queue takes it. `confirm=False` does not await the broker's confirm,
        and raises at once while the broker is away or blocks: for state that the next message repeats. A body above
        `MAX_MESSAGE_BYTES` raises `InvalidDocument`; an exchange that is not in `EXCHANGES` (or "", whose routing key
        is the queue's name) raises `ValueError`.
        """

    async def subscribe(self, queue: Queue, handler: Handler) -> Subscription:
        """Declare the queue with its bindings and hand each message to `handler`, up to `prefetch` at once.

        Goes on by itself after a reconnect. Messages of one queue start in order. A queue that is not durable is
        removed with its consumer, and raises `RetryLater` while another connection holds it.
        """

    async def request(
        self, exchange: str, routing_key: str, body: bytes, *, timeout_s: float = 5.0
    ) -> bytes:
        """Publish and wait for the reply; raise `RetryLater` saying who did not answer."""

    async def respond(self, request: Delivery, body: bytes) -> None:
        """Answer a request, if it asked for an answer."""

    async def close(self) -> None:
        """Finish what is being handled, then disconnect."""


EXCHANGES: dict[str, ExchangeKind] = {
    "elps.jobs": "topic",
    "elps.members": "topic",
    "elps.commands": "direct",
    "elps.events": "topic",
    "elps.telemetry": "topic",
    "elps.query": "topic",
    "elps.dead": "fanout",
}
"""Declared durable by every bus that connects."""

DEAD_QUEUE = "elps.dead"
"""Durable queue bound to the exchange of the same name, bounded in length."""
DEAD_MAX_LENGTH = 10_000
DEAD_MAX_BYTES = 64 * 1024 * 1024

REASON_HEADER = "x-elps-reason"
"""Why a message was dead-lettered, for people."""
QUEUE_HEADER = "x-elps-queue"
EXCHANGE_HEADER = "x-elps-exchange"
"""Where a dead letter had been published; its routing key is kept."""

EXCLUSIVE_MAX_LENGTH = 10_000
DURABLE_MAX_LENGTH = 100_000


def check_queue(queue: Queue) -> None:
    """Raise `ValueError` for a queue that no bus can offer."""
    if unknown := [exchange for exchange, _ in queue.bindings if exchange not in EXCHANGES]:
        raise ValueError(f"queue {queue.name}: no exchange named {', '.join(unknown)}")
    if queue.durable and queue.max_length is not None:
        raise ValueError(
            f"queue {queue.name}: a durable queue must not drop messages, so max_length is not for it"
        )
    if not 1 <= queue.prefetch <= 65_535:
        raise ValueError(f"queue {queue.name}: prefetch {queue.prefetch} is not within 1 and 65535")


def check_message(exchange: str, routing_key: str, body: bytes) -> None:
    """Raise for a message that no bus can carry."""
    if exchange and exchange not in EXCHANGES:
        raise ValueError(f"no exchange named {exchange!r}")
    if len(routing_key.encode()) > 255:
        raise InvalidDocument(
            "message", [f"routing key of {len(routing_key)} characters, at most 255 bytes go"]
        )
    if len(body) > MAX_MESSAGE_BYTES:
        raise InvalidDocument(
            "message",
            [f"{len(body)} bytes to {exchange or routing_key}, at most {MAX_MESSAGE_BYTES} go"],
        )
