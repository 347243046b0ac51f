"""How long a link has been down, one that comes and goes included."""

from __future__ import annotations

import threading

STEADY_S = 1.0
"""A link that was lost again sooner than this was not there."""


class Reach:
    """The reckoning of one link; all times are monotonic seconds. One thread tells, any other asks."""

    def __init__(self, now: float) -> None:
        self._lock = threading.Lock()
        self._down_since = now  #: of the outage in force, or the last one
        self._up_since: float | None = None  #: None while the link is down
        self._flaps = False  #: this outage was broken by links that did not last

    def made(self, now: float) -> None:
        """The link is up."""
        with self._lock:
            self._up_since = now

    def lost(self, now: float) -> None:
        """The link is down, after it was up."""
        with self._lock:
            up_since, self._up_since = self._up_since, None
            if up_since is not None and now - up_since >= STEADY_S:
                self._down_since, self._flaps = now, False
            else:
                self._flaps = True

    def down_s(self, now: float) -> float:
        """For how long there has been no link that lasts; 0 while there is one.

        The first link after an outage is believed at once; after one that was lost again, only once it has lasted.
        """
        with self._lock:
            if self._up_since is not None and (not self._flaps or now - self._up_since >= STEADY_S):
                return 0.0
            return now - self._down_since
