"""A thread's loop: what it is handed, soon, and a look at the time at least every tenth of a second."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

TICK_S = 0.1


class Ticker:
    """Carries out what others must not wait for, an event loop say, and otherwise ticks."""

    def __init__(self, tick: Callable[[], object]) -> None:
        self._tick = tick
        self._handed: deque[Callable[[], object]] = deque()
        self._nudge = threading.Event()

    def hand(self, what: Callable[[], object]) -> None:
        """Have it called by the ticker's thread, after all that was handed before."""
        self._handed.append(what)
        self._nudge.set()

    def wake(self) -> None:
        """Have the loop look whether it is to end."""
        self._nudge.set()

    def run(self, closed: threading.Event) -> None:
        """Loop until `closed`."""
        while not closed.is_set():
            self._nudge.wait(TICK_S)
            self._nudge.clear()
            while self._handed:
                self._handed.popleft()()
            self._tick()
