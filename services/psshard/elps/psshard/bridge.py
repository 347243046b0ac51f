"""From data threads to the event loop: the store, events, rows and beats."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections import deque
from collections.abc import Coroutine
from typing import Any, TypeVar

from elps.contracts.errors import RetryLater
from elps.contracts.ids import JobId
from elps.contracts.messages import JobEvent
from elps.contracts.telemetry import IterationRow
from elps.psshard.core.backlog import Backlog
from elps.storage.port import Store

T = TypeVar("T")

MAX_EVENTS = 50_000
"""Events that wait for the broker; beyond it the oldest are dropped: telemetry never stops training."""


class Bridge:
    """What threads may ask of the event loop they were started from."""

    def __init__(self, store: Store, loop: asyncio.AbstractEventLoop) -> None:
        self.store = store
        self.store_trouble = ""
        """What the store answered last to who wrote or loaded a checkpoint here, if it refused; set by any thread."""
        self._loop = loop
        self._lock = threading.Lock()
        self._rows = Backlog()
        self._events: deque[JobEvent] = deque(maxlen=MAX_EVENTS)
        self._woken = False
        self.wake = asyncio.Event()  #: set in the loop when rows, events or a beat wait
        self.urgent = asyncio.Event()  #: set in the loop when events or a beat wait

    def wait(self, call: Coroutine[Any, Any, T], timeout_s: float, what: str) -> T:
        """Run a coroutine in the loop and wait for it; `RetryLater` when it takes too long or the loop has ended."""
        try:
            future = asyncio.run_coroutine_threadsafe(call, self._loop)
        except RuntimeError:
            call.close()
            raise RetryLater(f"{what}: the service is ending") from None
        try:
            return future.result(timeout_s)
        except concurrent.futures.TimeoutError:
            future.cancel()
            raise RetryLater(f"{what}: no answer within {timeout_s:g} s") from None
        except concurrent.futures.CancelledError:
            raise RetryLater(f"{what}: the service is ending") from None

    def row(self, job: JobId, row: IterationRow) -> None:
        """Send a finished iteration by telemetry, with others that finish soon after."""
        with self._lock:
            self._rows.add((job, row))
            if self._woken:
                return
            self._woken = True
        self._set(self.wake)

    def event(self, event: JobEvent) -> None:
        """Send an event, and a beat with it."""
        self._events.append(event)
        self.beat()

    def beat(self) -> None:
        """Send a beat soon: something changed that the scheduler waits for."""
        self._set(self.urgent)
        self._set(self.wake)

    def _set(self, event: asyncio.Event) -> None:
        try:
            self._loop.call_soon_threadsafe(event.set)
        except RuntimeError:  # the loop has ended; nobody listens any more
            pass

    def put_back(self, rows: list[tuple[JobId, IterationRow]], events: list[JobEvent]) -> None:
        """In the loop: what could not be sent waits on, before what came since; beyond the bound the oldest go."""
        with self._lock:
            self._rows.put_back(rows)
        room = MAX_EVENTS - len(self._events)
        if room > 0:
            self._events.extendleft(reversed(events[-room:]))

    def take(self) -> tuple[list[tuple[JobId, IterationRow]], list[JobEvent], bool]:
        """In the loop: what waits, and whether a beat is wanted."""
        with self._lock:
            self._woken = False
            rows = self._rows.take()
            self.wake.clear()
        beat = self.urgent.is_set()
        self.urgent.clear()
        events = []
        while self._events:
            events.append(self._events.popleft())
        return rows, events, beat
