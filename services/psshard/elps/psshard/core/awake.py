"""Time as a leader's clock counts it: that in which its machine stood still does not pass.

A machine that is suspended, or so loaded that nothing runs, stops leader and trainers alike. By plain time every
deadline would have passed when it goes on, and all its trainers would be given up though nobody has hung.
"""

from __future__ import annotations

LATE_S = 1.0
"""The time is asked for each tenth of a second; what goes beyond this since the last time has not passed."""


class Awake:
    """The waking time. It always goes on, so that no deadline is put off for ever by one who asks rarely."""

    def __init__(self, now: float) -> None:
        self._asked_at = now
        self._slept_s = 0.0

    def at(self, now: float) -> float:
        """The waking time of a moment, monotonic s; to be asked in order."""
        self._slept_s += max(0.0, now - self._asked_at - LATE_S)
        self._asked_at = max(now, self._asked_at)
        return now - self._slept_s
