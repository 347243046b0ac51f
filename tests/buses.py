"""What the contract tests of buses share."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable

from elps.messaging.port import (
    Bus,
    Delivery,
    Queue,
)

BOUND_S = 15.0

Connect = Callable[[], Awaitable[Bus]]


class Inbox:
    """A handler that keeps what it gets."""

    def __init__(self, bound_s: float = BOUND_S) -> None:
        self.got: asyncio.Queue[Delivery] = asyncio.Queue()
        self._bound_s = bound_s

    async def __call__(self, delivery: Delivery) -> None:
        self.got.put_nowait(delivery)

    async def next(self) -> Delivery:
        async with asyncio.timeout(self._bound_s):
            return await self.got.get()

    async def bodies(self, count: int) -> list[bytes]:
        return [(await self.next()).body for _ in range(count)]


def queue(
    *bindings: tuple[str, str],
    durable: bool = False,
    prefetch: int = 64,
    max_length: int | None = None,
) -> Queue:
    return Queue(f"test.{uuid.uuid4().hex[:12]}", bindings, durable, max_length, prefetch)
