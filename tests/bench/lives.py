"""What happens to one job, as it is told: events and rows as they come, and bounded waits for more of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Self

from measuring import say
from private_stack import WAIT_S

from elps.client.control import Client
from elps.contracts.messages import JobEvent
from elps.contracts.telemetry import IterationRow

ENDS = ("finished", "killed", "failed")


class Life:
    """Followed from before the job is handed in: ``async with Life(client, name) as life: …``."""

    def __init__(
        self,
        client: Client,
        name: str,
        on_event: Callable[[JobEvent], None] = lambda _: None,
        came: asyncio.Condition | None = None,
    ) -> None:
        """Lives that share `came` can wait for what is told of any of them."""
        self.client, self.name = client, name
        self.rows: list[IterationRow] = []
        self.events: list[JobEvent] = []
        self._on_event = on_event
        self._came = came or asyncio.Condition()
        self._stream = client.follow(name)
        self._reading: asyncio.Task[None]

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._reading.cancel()
        await asyncio.wait((self._reading,))
        await self._stream.__aexit__(None, None, None)

    async def _read(self) -> None:
        while True:
            item = await self._stream.next(WAIT_S)
            async with self._came:
                if isinstance(item, IterationRow):
                    self.rows.append(item)
                elif isinstance(item, JobEvent):
                    self.events.append(item)
                    self._on_event(item)
                self._came.notify_all()

    async def until(self, holds: Callable[[], Any], what: str, timeout_s: float = WAIT_S) -> None:
        """Wait for something to be told; `TimeoutError` says what was told last."""
        try:
            async with asyncio.timeout(timeout_s), self._came:
                await self._came.wait_for(lambda: holds() or self._failed)
        except TimeoutError:
            last = [(e.what, e.reason) for e in self.events[-5:]]
            raise TimeoutError(
                f"{self.name}: no {what} in {timeout_s:g} s; last {last}, {len(self.rows)} rows"
            ) from None
        if self._failed:
            raise RuntimeError(f"{self.name} has failed: {self.events[-1].reason}")
        say(f"  {self.name}: {what}")

    @property
    def _failed(self) -> bool:
        return any(event.what == "failed" for event in self.events)

    async def told(self, what: str, since: float = 0.0) -> JobEvent:
        """Wait for the first event of a kind after a Unix time."""
        await self.until(lambda: self.event(what, since), what)
        event = self.event(what, since)
        assert event is not None
        return event

    def event(self, what: str, since: float = 0.0) -> JobEvent | None:
        """The first event of a kind after a Unix time, if there was one."""
        return next((e for e in self.events if e.what == what and e.at >= since), None)

    @property
    def end(self) -> JobEvent | None:
        """The event that ended it."""
        return next((e for e in self.events if e.what in ENDS), None)

    async def even(self, workers: int, count: int) -> None:
        """Wait for so many iterations in a row of so many workers."""
        first = len(self.rows)

        def holds() -> bool:
            last = self.rows[first:][-count:]
            return len(last) == count and all(len(row.workers) == workers for row in last)

        await self.until(holds, f"{count} iterations of {workers} workers")


async def must(answer: Any) -> None:
    """An answer that has to be a yes."""
    reply = await answer
    if not reply.ok:
        raise RuntimeError(f"{reply.reason} {reply.problems}")
