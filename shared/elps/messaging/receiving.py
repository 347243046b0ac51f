"""What happens to a message between its arrival and its acknowledgement: the same for every bus.

The work runs in tasks of our own, keyed by message id. A broker client cancels its callbacks when the connection is
lost, and the broker then sends the message again; here the work goes on, the repeat joins it, and whichever delivery is
alive when the work ends is acknowledged.

Failed tries are repeated here and not by sending the message back: queues that are not durable have no delivery limit,
and a broker sends back at once, so that all tries would be over before, say, the store answers again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any, Protocol

import structlog

from elps.contracts.errors import InvalidDocument, RetryLater
from elps.messaging.port import BusStats, Delivery, Handler, Queue

log = structlog.get_logger(__name__)

DELIVERY_LIMIT = 5
"""Tries of a handler that raises, before the message is a dead letter."""
RETRY_LATER_LIMIT = 20
"""Tries when the error says that a peer is away: about 75 s of patience."""
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 5.0


class Settle(Protocol):
    """Acknowledges one delivery, or sends it back to its queue. Must not raise."""

    async def __call__(self, *, requeue: bool) -> None:
        """Settle it."""


_Content = tuple[str, str, str, bytes]

Bury = Callable[[Delivery, str], Awaitable[None]]
"""Puts a message with a reason where dead letters go; raises `RetryLater`."""


def pause_s(attempt: int) -> float:
    """Seconds between failed try number `attempt`, counted from 1, and the next."""
    return float(min(FIRST_PAUSE_S * 2 ** (attempt - 1), LONGEST_PAUSE_S))


class Receiver:
    """The consumer of one queue. `receive` may be called from callbacks; all else happens in its tasks."""

    def __init__(self, queue: Queue, handler: Handler, bury: Bury, stats: BusStats) -> None:
        self.queue = queue
        self._handler = handler
        self._bury = bury
        self._stats = stats
        self._waiting: dict[
            _Content, list[Settle]
        ] = {}  #: the unsettled deliveries of what is at work
        self._tasks: set[asyncio.Task[None]] = set()
        self._draining = asyncio.Event()  #: set once nothing new is to be begun

    @property
    def busy(self) -> int:
        """Messages being handled."""
        return len(self._tasks)

    def receive(self, delivery: Delivery, settle: Settle) -> None:
        """Begin to handle a message, or join a repeat to the work that is under way."""
        if self._draining.is_set():  # it was on its way when the consumer ended
            self._start(settle(requeue=True), delivery)
        elif (joined := self._waiting.get(_content(delivery))) is not None:
            joined.append(settle)
        else:
            self._waiting[_content(delivery)] = [settle]
            self._start(self._work(delivery), delivery)

    async def drain(self, timeout_s: float) -> None:
        """Finish what is being handled; past the time-out it is cancelled and goes back to its queue."""
        self._draining.set()
        deadline = asyncio.get_running_loop().time() + timeout_s
        while tasks := self._tasks - {
            asyncio.current_task()
        }:  # a handler may end its own subscription
            left_s = deadline - asyncio.get_running_loop().time()
            _, late = await asyncio.wait(tasks, timeout=max(left_s, 0))
            for task in late:
                log.warning("handler_cancelled", queue=self.queue.name, task=task.get_name())
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=timeout_s)
                return

    def _start(self, work: Coroutine[Any, Any, None], delivery: Delivery) -> None:
        name = f"handle {self.queue.name} {delivery.message_id}"
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _work(self, delivery: Delivery) -> None:
        requeue = True
        with structlog.contextvars.bound_contextvars(
            queue=self.queue.name, message_id=delivery.message_id
        ):
            try:
                reason = await self._tries(delivery)
                if reason is None or await self._bury_or_fail(delivery, reason):
                    requeue = False
            except _GivenBack:
                pass
            finally:
                for settle in self._waiting.pop(_content(delivery)):
                    await settle(requeue=requeue)

    async def _tries(self, delivery: Delivery) -> str | None:
        """Hand the message over until it is handled (None) or given up (the reason)."""
        attempt = 0
        while True:
            attempt += 1
            try:
                await self._handler(delivery)
            except InvalidDocument as error:
                log.warning("message_refused", routing_key=delivery.routing_key, reason=str(error))
                return str(error)
            except Exception as error:
                self._stats.failed += 1
                away = isinstance(error, RetryLater)
                limit = RETRY_LATER_LIMIT if away else DELIVERY_LIMIT
                log.warning(
                    "handler_failed",
                    routing_key=delivery.routing_key,
                    attempt=attempt,
                    limit=limit,
                    error=f"{type(error).__name__}: {error}",
                    exc_info=not away,
                )
                if attempt >= limit:
                    return f"{type(error).__name__}: {error} (after {attempt} tries)"
                await self._rest(pause_s(attempt))
                delivery = replace(delivery, redelivered=True)
            else:
                self._stats.handled += 1
                return None

    async def _bury_or_fail(self, delivery: Delivery, reason: str) -> bool:
        for attempt in range(1, DELIVERY_LIMIT + 1):
            try:
                await self._bury(delivery, reason)
            except RetryLater as error:
                log.warning("dead_letter_failed", attempt=attempt, error=str(error))
                await self._rest(pause_s(attempt))
            else:
                self._stats.dead_lettered += 1
                return True
        return False  # back to its queue: a message is not thrown away because the broker is busy

    async def _rest(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._draining.wait()
        except TimeoutError:
            return
        raise _GivenBack


def _content(delivery: Delivery) -> _Content:
    """What repeats have in common. The id alone is not enough: some foreign clients give all messages the same."""
    return delivery.message_id, delivery.exchange, delivery.routing_key, delivery.body


class _GivenBack(Exception):
    """The subscription ends between two tries: whoever consumes next has them."""
