"""A network of connections: in order on each, any order between them; what is on one that breaks is lost."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any

Message = tuple[Any, ...]
"""What is called at the receiver, and its arguments."""


class Link:
    """One direction of a connection."""

    __slots__ = ("asleep", "at", "name", "queue", "slow", "up")

    def __init__(self, name: str) -> None:
        self.name = name
        self.queue: deque[Message] = deque()
        self.at = -1  #: index among those that have something to deliver
        self.up = True  #: what is sent while it is down is lost
        self.slow = False  #: delivers rarely
        self.asleep = False  #: its receiver does nothing now


class Net:
    """All links, and what happens inside of processes, each at a time of its own."""

    def __init__(self, r: random.Random) -> None:
        self.r = r
        self.ready: list[Link] = []
        self.inside: list[Message] = []  #: in any order
        self.stalled: list[Message] = []  #: in processes that are not scheduled for a while
        self.stall = 0.0  #: how likely that is
        self.trace: list[str] | None = None

    def send(self, link: Link, *message: Any) -> None:
        if link.up:
            link.queue.append(message)
            if link.at < 0 and not link.asleep:
                self._on(link)

    def later(self, call: Callable[..., None], *arguments: Any) -> None:
        """Something that goes on in a process and ends at some time."""
        stalls = self.stall and self.r.random() < self.stall
        (self.stalled if stalls else self.inside).append((call, *arguments))

    def go_on(self) -> None:
        """What stalled goes on."""
        self.inside += self.stalled
        self.stalled = []

    def _on(self, link: Link) -> None:
        link.at = len(self.ready)
        self.ready.append(link)

    def _off(self, link: Link) -> None:
        last = self.ready.pop()
        if last is not link:
            self.ready[link.at] = last
            last.at = link.at
        link.at = -1

    def sleep(self, link: Link, asleep: bool) -> None:
        """Its receiver does nothing, or wakes."""
        link.asleep = asleep
        if asleep and link.at >= 0:
            self._off(link)
        elif not asleep and link.queue and link.at < 0:
            self._on(link)

    def cut(self, link: Link, kept: int = 0) -> list[Message]:
        """The link breaks; all but the first `kept` messages on it are lost. Returns those."""
        link.up = False
        lost = []
        while len(link.queue) > kept:
            lost.append(link.queue.pop())
        if not link.queue and link.at >= 0:
            self._off(link)
        return lost[::-1]

    def deliver(self) -> bool:
        """Let one thing happen; False when there is nothing."""
        ready, inside, r = self.ready, self.inside, self.r
        if self.stalled and r.random() < 0.03:
            inside.append(self.stalled.pop(int(r.random() * len(self.stalled))))
        n = len(ready) + min(len(inside), 3)
        if not n:
            return False
        at = int(r.random() * n)
        if at < len(ready) and ready[at].slow and r.random() < 0.95:
            at = int(r.random() * n)
        if at >= len(ready):
            at = int(r.random() * len(inside))
            inside[at], inside[-1] = inside[-1], inside[at]
            message = inside.pop()
            source = "inside"
        else:
            link = ready[at]
            message = link.queue.popleft()
            if not link.queue:
                self._off(link)
            source = link.name
        if self.trace is not None:
            shown = ", ".join(map(_short, message[1:]))
            self.trace.append(f"{source}: {message[0].__qualname__}({shown})")
        message[0](*message[1:])
        return True


def _short(value: object) -> str:
    if type(value).__name__ in ("Trainer", "Part", "Slab"):
        return getattr(value, "name", type(value).__name__.lower())
    if type(value).__name__ == "Feed":
        return f"wave {value.key[1]}"  # type: ignore[attr-defined]
    if type(value).__name__ == "Epoch":
        return f"{value.term.number}.{value.n}"  # type: ignore[attr-defined]
    return str(value)
