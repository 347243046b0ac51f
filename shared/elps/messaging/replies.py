"""Request and reply on top of publish and subscribe: one reply queue for each bus, declared when it is first needed."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING

from elps.contracts.errors import RetryLater
from elps.messaging.port import Delivery, Queue

if TYPE_CHECKING:
    from elps.messaging.port import Bus


class Replies:
    """The open requests of one bus."""

    def __init__(self, bus: Bus, name: str) -> None:
        self._bus = bus
        self._queue = f"elps.reply.{name}.{uuid.uuid4().hex}"
        self._open: dict[str, asyncio.Future[bytes]] = {}  #: correlation id to who waits
        self._declared = asyncio.Lock()
        self._subscribed = False

    async def request(
        self, exchange: str, routing_key: str, body: bytes, timeout_s: float
    ) -> bytes:
        """Publish and wait for the reply; `RetryLater` when no queue takes it or nobody answers in time."""
        correlation_id = uuid.uuid4().hex
        reply: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._open[correlation_id] = reply
        try:
            async with asyncio.timeout(timeout_s):
                await self._subscribe()
                await self._bus.publish(
                    exchange,
                    routing_key,
                    body,
                    reply_to=self._queue,
                    correlation_id=correlation_id,
                    must_route=True,
                    timeout_s=timeout_s,
                )
                return await reply
        except TimeoutError:
            raise RetryLater(
                f"no answer from {exchange or 'queue'} {routing_key} within {timeout_s:g} s"
            ) from None
        finally:
            del self._open[correlation_id]

    async def respond(self, request: Delivery, body: bytes) -> None:
        """Answer a request, if it asked for an answer. A requester that has gone is no error."""
        if request.reply_to:
            await self._bus.publish(
                "", request.reply_to, body, correlation_id=request.correlation_id
            )

    async def _subscribe(self) -> None:
        async with self._declared:
            if not self._subscribed:
                await self._bus.subscribe(Queue(self._queue), self._take)
                self._subscribed = True

    async def _take(self, delivery: Delivery) -> None:
        reply = self._open.get(delivery.correlation_id or "")
        if reply is not None and not reply.done():
            reply.set_result(delivery.body)
