"""What the leader says to a trainer, also while the trainer waits for somebody else."""

from __future__ import annotations

from collections import deque
from typing import Any

from elps.wire.connection import Connection
from elps.wire.frames import Header, Kind

_VOID = (Kind.STOP, Kind.MAP)
"""After these, what was lent before is void."""


class Inbox:
    """The leader's words in their order."""

    def __init__(self, leader: Connection) -> None:
        self._leader = leader
        self._read: deque[tuple[Header, dict[str, Any]]] = deque()  #: but not taken yet

    def take(self, idle_s: float) -> tuple[Header, dict[str, Any]]:
        """Wait for the next word; `TimeoutError` when none begins within this time."""
        if not self._read:
            self._next(idle_s)
        return self._read.popleft()

    def called_away(self) -> bool:
        """Whether the trainer need not go on with what it is at: the leader has said what voids it.

        Raises `ConnectionEnded` when the leader is gone, and has not said why.
        """
        while not self._void and self._leader.pending():
            self._next(None)
        return self._void

    @property
    def _void(self) -> bool:
        return any(header.kind in _VOID for header, _ in self._read)

    def _next(self, idle_s: float | None) -> None:
        header = self._leader.receive(idle_s)
        self._read.append((header, self._leader.meta(header)))
