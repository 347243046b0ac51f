"""The newest events in one ring that any number of readers follow, each from its own place.

A reader that falls behind the ring, or comes back to another run of the monitor, is told that it missed something; no
reader makes the monitor keep more.
"""

from __future__ import annotations

from collections import deque
from itertools import islice

import msgspec

from elps.contracts.messages import JobEvent
from elps.contracts.texts import shortened

MAX_EVENTS = 2_000
MAX_REASON_CHARACTERS = 2_000


class FeedEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event as readers see it: without the record."""

    n: int
    job: str
    what: str
    at: float
    """Unix time, s."""
    reason: str
    state: str | None
    iteration: int | None
    worker: str | None
    metrics: dict[str, float | None]
    term: int | None
    """Of the leader that sent it; None: the scheduler did."""


class Feed:
    """A ring of events. An event's name for resuming is ``<run>-<n>``; `run` differs at each start of the monitor."""

    def __init__(self, run: str) -> None:
        self.run = run
        self._events: deque[FeedEvent] = deque(maxlen=MAX_EVENTS)
        self.next = 0  #: number of the event that comes next
        self._forgotten: dict[str, int] = {}  #: jobs, and the first of their events that is told on

    def add(self, event: JobEvent) -> FeedEvent:
        """Append an event."""
        kept = FeedEvent(
            n=self.next,
            job=event.job,
            what=event.what,
            at=event.at,
            reason=shortened(event.reason, MAX_REASON_CHARACTERS),
            state=event.state.value if event.state else None,
            iteration=event.iteration,
            worker=event.worker,
            metrics=event.metrics,
            term=event.term,
        )
        self._events.append(kept)
        self.next += 1
        return kept

    def forget(self, job: str) -> None:
        """Tell nobody any more what was told of a job until now."""
        kept = {other: n for other, n in self._forgotten.items() if n > self.oldest}
        self._forgotten = kept | {job: self.next}

    def name(self, event: FeedEvent) -> str:
        """What a reader sends back to go on after this event."""
        return f"{self.run}-{event.n}"

    def place(self, last: str | None) -> tuple[int, bool]:
        """Where a reader goes on that saw `last` (None: one that is new and wants what comes from now on).

        Returns the number of the next event for it and whether it missed some: those of an earlier run, or those that
        the ring has dropped. It then gets all that is left.
        """
        if last is None:
            return self.next, False
        run, _, number = last.rpartition("-")
        if (
            run == self.run
            and number.isascii()
            and number.isdigit()
            and len(number) < 17
            and int(number) < self.next
        ):
            return int(number) + 1, int(number) + 1 < self.oldest
        return self.oldest, True

    @property
    def oldest(self) -> int:
        """Number of the oldest event in the ring."""
        return self.next - len(self._events)

    def since(self, n: int) -> list[FeedEvent]:
        """Events from number `n` on, as far as the ring holds them and they are not forgotten."""
        found = islice(self._events, max(0, n - self.oldest), None)
        return [event for event in found if event.n >= self._forgotten.get(event.job, 0)]
