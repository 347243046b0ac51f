"""Work that kills workers: the third death on the same samples fails the job (DESIGN, section 6)."""

from __future__ import annotations

from dataclasses import dataclass

from elps.contracts.ids import WorkerId
from elps.psshard.core.lending import Lease
from elps.psshard.core.rules import EXIT_WAIT_S

REMEMBERED = 16
"""Deaths that may be taken back."""
SPARED = 10
"""So many are taken back without an iteration complete between them; then it is no chance, and they count."""


@dataclass
class _Doom:
    lease: Lease
    worker: WorkerId  #: the last that died of it
    text: str  #: how it ended, as far as is known
    at: float  #: monotonic s


class Deaths:
    """Counts deaths by lease; after the last one it waits a moment for what an agent saw of the exit.

    Who ended since the network or its machine let it down has not died of its lease: its death is taken back.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._doom: _Doom | None = None
        self._spared = 0  #: deaths taken back since an iteration was complete
        self._died: dict[WorkerId, Lease] = {}  #: how they ended is not known yet, the newest last

    def died(self, worker: WorkerId, lease: Lease, cause: str, now: float) -> None:
        """A worker was lost with this lease in hand, its version complete: it may have died of it."""
        lease.piece.deaths += 1
        self._died[worker] = lease
        for old in list(self._died)[:-REMEMBERED]:
            del self._died[old]
        if lease.piece.deaths >= self._limit:
            self._doom = _Doom(lease, worker, cause, now)

    def exited(self, worker: WorkerId, *, spared: bool) -> Lease | None:
        """It is known how a worker ended. The lease that it has not died of, although it was counted."""
        lease = self._died.pop(worker, None)
        if lease is None or not spared or self._spared >= SPARED:
            return None
        self._spared += 1
        if (doom := self._doom) is not None and _covers(lease, doom.lease):
            doom.lease.piece.deaths -= 1
            if doom.lease.piece.deaths < self._limit:
                self._doom = None
        return lease

    def progressed(self) -> None:
        """An iteration is complete: whatever kept workers from it has not kept all."""
        self._spared = 0

    @property
    def doomed(self) -> bool:
        """Whether the job is about to fail."""
        return self._doom is not None

    def verdict(self, now: float, worker: WorkerId | None = None, exit_: str = "") -> str | None:
        """Why the job fails, once it is time or the exit of the last worker is known."""
        doom = self._doom
        if doom is None:
            return None
        if worker == doom.worker:
            doom.text = exit_
        elif now <= doom.at + EXIT_WAIT_S:
            return None
        last = f"the last was {doom.worker}: {doom.text}"
        return f"{doom.lease.piece.deaths} workers died on {doom.lease}; {last}"


def _covers(one: Lease, other: Lease) -> bool:
    """Whether a lease has all samples of another one of the same work."""
    same = (one.kind, one.version) == (other.kind, other.version)
    return same and one.piece.interval.contains(other.piece.interval)
