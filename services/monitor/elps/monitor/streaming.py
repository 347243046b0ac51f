"""Server-sent events: each reader follows the feed's ring from its own place, so a slow one costs nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
import orjson

from elps.contracts.answers import Event
from elps.contracts.errors import RetryLater
from elps.monitor.desk import Desk

MAX_READERS = 64
KEEP_ALIVE_S = 15.0
"""A comment is sent when nothing else was for so long: proxies keep the connection, and dead ones are noticed."""
RETRY_MS = 2_000


class Readers:
    """All open event streams."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self.open_now = 0
        self._closing = False

    def close(self) -> None:
        """End all streams."""
        self._closing = True
        self._desk.changed.set()

    def open(self, last: str | None, job: str | None) -> AsyncIterator[bytes]:
        """A new stream that goes on after the event named `last`. Raises `RetryLater` when there are too many."""
        if self.open_now >= MAX_READERS:
            raise RetryLater(
                f"{MAX_READERS} readers follow the events already; ask again later or poll /api/jobs"
            )
        place, missed = self._desk.state.feed.place(last)
        return self._stream(place, missed, job)

    async def _stream(self, place: int, missed: bool, job: str | None) -> AsyncIterator[bytes]:
        feed = self._desk.state.feed
        self.open_now += 1
        try:
            yield f"retry: {RETRY_MS}\n\n".encode()
            while not self._closing:
                changed = self._desk.changed
                if missed or place < feed.oldest:
                    missed = False
                    yield b"event: missed\ndata: {}\n\n"
                events = feed.since(place)
                place = feed.next
                chosen = [e for e in events if job is None or e.job == job]
                if chosen:
                    yield b"".join(map(encode, chosen))
                try:
                    async with asyncio.timeout(KEEP_ALIVE_S):
                        await changed.wait()
                except TimeoutError:
                    yield b": keep alive\n\n"
        finally:
            self.open_now -= 1


def encode(event: Event) -> bytes:
    """One event in the standard's form. JSON has no line breaks, and names of events have only printable letters."""
    data = orjson.dumps(msgspec.to_builtins(event))
    return b"id: %s\nevent: %s\ndata: %s\n\n" % (
        event.id.encode(),
        event.what.encode(),
        data,
    )
