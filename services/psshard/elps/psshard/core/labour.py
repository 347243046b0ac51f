"""What a shard works for each byte that it holds, measured while it does so.

A partition costs its shard, in each iteration, adding up what the workers push and writing the next version. How long
that takes for a byte tells a slow machine, or one that others use too, from the rest: all shards of a job do the same
to every byte. Waiting, for workers or for the network, is not in it.
"""

from __future__ import annotations

FOLD_S = 0.2
"""Work is summed up for so long at least before it counts: a moment says little."""
RECENT = 0.3
"""Weight of the newest sum in the average: about the last second or two, or the last iterations if they are longer."""


class Labour:
    """Seconds of work for a byte and a version, on one shard for one job. Times are monotonic seconds."""

    def __init__(self) -> None:
        self.s_per_byte: float | None = None  #: None: nothing was measured yet
        self._worked_s, self._bytes = 0.0, 0  #: since the last fold
        self._folded_at: float | None = None

    def added(self, took_s: float) -> None:
        """A gradient was added up."""
        self._worked_s += max(took_s, 0.0)

    def wrote(self, took_s: float, size_bytes: int, now: float) -> None:
        """A partition's next version is written: its part in an iteration is over."""
        self._worked_s += max(took_s, 0.0)
        self._bytes += size_bytes
        if self._folded_at is None:
            self._folded_at, self._worked_s, self._bytes = now, 0.0, 0  # the first touches memory
        elif now - self._folded_at >= FOLD_S and self._bytes and self._worked_s > 0:
            newest, known = self._worked_s / self._bytes, self.s_per_byte
            self.s_per_byte = newest if known is None else known + RECENT * (newest - known)
            self._folded_at, self._worked_s, self._bytes = now, 0.0, 0
