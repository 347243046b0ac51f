"""The newest events in one ring that any number of readers follow, each from its own place.

A reader that falls behind the ring is told that it missed something, and so is one that comes back after the monitor
was started anew: it goes on where it was, but what happened in between is lost. No reader makes the monitor keep more.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Sequence
from itertools import islice

import msgspec

from elps.contracts.answers import Event
from elps.contracts.errors import InvalidDocument
from elps.contracts.messages import JobEvent
from elps.contracts.texts import shortened

MAX_EVENTS = 2_000
BEGINNING = "start"
"""In place of a number: before the first event of a run."""
MAX_REASON_CHARACTERS = 2_000
MAX_PACKED_BYTES = 1024 * 1024
"""Of the ring as it is kept; when its texts do not fit compressed, the older half of them goes."""
MAX_UNPACKED_BYTES = 64 * 1024 * 1024


class Feed:
    """A ring of events, at places that are numbers: those of this run from 0 on, those of earlier ones below."""

    def __init__(self, run: str) -> None:
        self.run = run
        self._events: deque[Event] = deque(maxlen=MAX_EVENTS)
        self.next = 0  #: place of the event that comes next
        self._forgotten: dict[
            str, int
        ] = {}  #: jobs, and the place from which on their events are told

    def add(self, event: JobEvent) -> Event:
        """Append an event."""
        kept = Event(
            id=f"{self.run}-{self.next}",
            job=event.job,
            what=event.what,
            at=event.at,
            reason=shortened(event.reason, MAX_REASON_CHARACTERS),
            state=event.state,
            iteration=event.iteration,
            worker=event.worker,
            metrics=event.metrics,
            term=event.term,
        )
        self._events.append(kept)
        self.next += 1
        return kept

    def restore(self, events: Sequence[Event]) -> None:
        """Put the events of earlier runs before those of this one, as many as the ring has room for."""
        room = MAX_EVENTS - len(self._events)
        self._events.extendleft(reversed(events[max(0, len(events) - room) :]))

    def forget(self, job: str) -> None:
        """Tell nobody any more what was told of a job until now."""
        kept = {other: n for other, n in self._forgotten.items() if n > self.oldest}
        self._forgotten = kept | {job: self.next}

    def place(self, last: str | None) -> tuple[int, bool]:
        """Where a reader goes on that saw `last` (None: one that is new and wants what comes from now on).

        Returns the place of the next event for it and whether it missed some: those that the ring has dropped, or what
        happened between two runs. One whose event is not there any more gets all that is left.
        """
        if last is None:
            return self.next, False
        run, number = _parts(last)
        if run == self.run:
            if -1 <= number < self.next:
                return number + 1, number + 1 < self.oldest
            return self.oldest, True
        following = None
        for place, event in enumerate(self._events, self.oldest):
            its_run, its_number = _parts(event.id)
            if its_run == run and its_number <= number:
                following = place + 1  # what it saw last may be lost: the monitor was killed
            elif its_run == run and following is None:
                following = place
        return self.oldest if following is None else following, True

    @property
    def newest(self) -> str:
        """What a reader would send back that has seen all events up to now."""
        return f"{self.run}-{self.next - 1 if self.next else BEGINNING}"

    @property
    def oldest(self) -> int:
        """Place of the oldest event in the ring."""
        return self.next - len(self._events)

    def since(self, n: int) -> list[Event]:
        """Events from place `n` on, as far as the ring holds them and they are not forgotten."""
        return self.page(n, MAX_EVENTS)[0]

    def page(self, n: int, count: int) -> tuple[list[Event], int]:
        """What is held of `count` places from `n` on, as `since` has it, and the place at which to go on."""
        first = max(n, self.oldest)
        found = enumerate(
            islice(self._events, first - self.oldest, first - self.oldest + count), first
        )
        told = [e for place, e in found if place >= self._forgotten.get(e.job, self.oldest)]
        return told, min(first + count, self.next)


def _parts(event_id: str) -> tuple[str, int]:
    """Run and number of an event, as its id tells them; a number that none is below all others."""
    run, _, number = event_id.rpartition("-")
    if number == BEGINNING:
        return run, -1
    known = number.isascii() and number.isdigit() and len(number) < 17
    return run, int(number) if known else -2


def pack(events: Sequence[Event]) -> bytes:
    """The bytes of events, the newest of them if they are too many."""
    while True:
        body = zlib.compress(msgspec.json.encode(events), 1)
        if len(body) <= MAX_PACKED_BYTES:
            return body
        events = events[len(events) // 2 :]


def unpack(body: bytes) -> list[Event]:
    """Read events. Raises `InvalidDocument`."""
    try:
        text = zlib.decompressobj().decompress(body, MAX_UNPACKED_BYTES)
        return msgspec.json.decode(text, type=list[Event])
    except (zlib.error, msgspec.DecodeError) as error:
        raise InvalidDocument("events kept", [str(error)]) from None
