"""What services ask of a bus. `AmqpBus` and `MemoryBus` both pass the same tests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol


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
    """Not durable ones only: oldest messages are dropped beyond this (state that the next message repeats)."""
    prefetch: int = field(default=64)


Handler = Callable[[Delivery], Awaitable[None]]
"""Returning acknowledges. `InvalidDocument` dead-letters at once with its text; any other error is tried again up to the
delivery limit and then dead-letters. Handlers are idempotent: a message may come twice."""

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

        `must_route`: raise `RetryLater` when no queue takes it. `confirm=False` does not await the broker's confirm:
        for state that the next message repeats.
        """

    async def subscribe(self, queue: Queue, handler: Handler) -> Subscription:
        """Declare the queue with its bindings and hand each message to `handler`, up to `prefetch` at once.

        Goes on by itself after a reconnect. Messages of one queue start in order.
        """

    async def request(self, exchange: str, routing_key: str, body: bytes, *, timeout_s: float = 5.0) -> bytes:
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
