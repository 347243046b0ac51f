"""Acknowledgements in as few words as there can be: the broker takes one for all deliveries up to a number.

A word for each delivery costs both sides about as much as the delivery itself. What is settled while one is on its way,
or in the same turn of the event loop, goes out together.
"""

from __future__ import annotations

import asyncio
from typing import Protocol


class Settled:
    """Which deliveries of a channel may be acknowledged; the broker numbers them upwards. No input or output."""

    def __init__(self) -> None:
        self._open: dict[int, None] = {}  #: not acknowledged yet, in the order of their numbers
        self._done: set[int] = set()  #: those of them that are settled

    def came(self, number: int) -> None:
        """A delivery is here."""
        self._open[number] = None

    def done(self, number: int) -> None:
        """It may be acknowledged."""
        if number in self._open:
            self._done.add(number)

    def sent_back(self, number: int) -> None:
        """It was settled in another way."""
        self._open.pop(number, None)
        self._done.discard(number)

    def take(self) -> tuple[int | None, list[int]]:
        """What to acknowledge now: everything up to a number (None: nothing), and single ones beyond it.

        Of what comes before that number nothing is at work any more.
        """
        up_to = None
        while self._done:
            oldest = next(iter(self._open))
            if oldest not in self._done:
                break
            self.sent_back(oldest)
            up_to = oldest
        single = sorted(self._done)
        for number in single:
            self.sent_back(number)
        return up_to, single


class Ack(Protocol):
    """Sends one acknowledgement. Must not raise."""

    async def __call__(self, number: int, *, multiple: bool) -> None:
        """Of one delivery, or of all up to it."""


class Acking:
    """Acknowledges the deliveries of one channel."""

    def __init__(self, ack: Ack) -> None:
        self._settled = Settled()
        self._ack = ack
        self._sending: asyncio.Task[None] | None = None

    def done(self, number: int) -> None:
        """A delivery may be acknowledged: soon, with others."""
        self._settled.done(number)
        self._begin()

    def came(self, number: int) -> None:
        """A delivery is here."""
        self._settled.came(number)

    def sent_back(self, number: int) -> None:
        """The broker has been told to give a delivery to somebody else. Before that none behind it is acknowledged."""
        self._settled.sent_back(number)
        self._begin()

    async def flush(self) -> None:
        """Wait until everything that is settled is acknowledged."""
        while self._sending is not None:
            await asyncio.wait((self._sending,))

    def _begin(self) -> None:
        if self._sending is None:
            self._sending = asyncio.create_task(self._send(), name="acknowledge")

    async def _send(self) -> None:
        try:
            while True:
                up_to, single = self._settled.take()
                if up_to is None and not single:
                    return
                if up_to is not None:
                    await self._ack(up_to, multiple=True)
                for number in single:
                    await self._ack(number, multiple=False)
        finally:
            self._sending = None
