"""A stream of what happens to one job: events, finished iterations and, when asked for, log lines."""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict, deque
from types import TracebackType
from typing import Self

from elps.contracts import topology
from elps.contracts.codec import decode
from elps.contracts.ids import JobId
from elps.contracts.messages import JobEvent
from elps.contracts.telemetry import IterationRow, IterationRows, LogLines, TelemetryMessage
from elps.messaging.port import Bus, Delivery, Queue, Subscription

HELD = 10_000
"""Items kept for a slow reader; beyond it the oldest go, since the reader can ask the monitor for them."""
REPEATS = 1024
"""Messages remembered: after a lost connection one may come twice, soon after its first."""

Item = JobEvent | IterationRow | LogLines


class Following:
    """An asynchronous context manager and iterator over its own exclusive queue.

    It never ends by itself: the reader stops when an event shows that the job's life is over. Events can be lost (the
    queue goes with the connection), so a reader that waits for an end asks for the state now and then; see `next`.
    """

    def __init__(self, bus: Bus, job: JobId, *, logs: bool = False) -> None:
        self._bus = bus
        bindings = [
            (topology.EVENTS, topology.event_key(job, "#")),
            (topology.TELEMETRY, topology.telemetry_key(job)),
        ]
        if logs:
            bindings.append((topology.TELEMETRY, topology.log_key(job)))
        self._queue = Queue(
            f"elps.follow.{job}.{secrets.token_hex(6)}", tuple(bindings), max_length=HELD
        )
        self._job = job
        self._held: deque[Item] = deque()  #: at most HELD, oldest first
        self._arrived = asyncio.Event()  #: set when `_held` is not empty
        self._seen: OrderedDict[tuple[str, str], None] = (
            OrderedDict()
        )  #: keys and ids of the newest messages
        self._subscription: Subscription | None = None
        self.dropped = 0
        """Items that went because the reader was too slow."""

    async def __aenter__(self) -> Self:
        self._subscription = await self._bus.subscribe(self._queue, self._handle)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._subscription is not None:
            await self._subscription.cancel()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Item:
        while not self._held:
            self._arrived.clear()
            await self._arrived.wait()
        return self._held.popleft()

    async def next(self, timeout_s: float) -> Item | None:
        """The next item, or None when none came within `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                return await anext(self)
        except TimeoutError:
            return None

    async def _handle(self, delivery: Delivery) -> None:
        message = delivery.routing_key, delivery.message_id
        if message in self._seen:
            return
        self._seen[message] = None
        if len(self._seen) > REPEATS:
            self._seen.popitem(last=False)
        if delivery.exchange == topology.EVENTS:
            event = decode(delivery.body, JobEvent)
            if event.job == self._job:
                self._hold([event])
            return
        told: TelemetryMessage = decode(delivery.body, IterationRows | LogLines)  # type: ignore[arg-type]
        if told.job == self._job:
            self._hold(told.rows if isinstance(told, IterationRows) else [told])

    def _hold(self, items: list[JobEvent] | list[IterationRow] | list[LogLines]) -> None:
        self._held.extend(items)
        while len(self._held) > HELD:
            self._held.popleft()
            self.dropped += 1
        self._arrived.set()
