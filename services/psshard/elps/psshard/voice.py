"""How a shard's share in a job tells its leader something."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from elps.contracts.epoch import Epoch
from elps.psshard.reports import Report, Trouble


class Voice:
    """Passes reports on to whoever leads; any thread may report, without a lock held."""

    def __init__(self) -> None:
        self._hearers_lock = threading.Lock()
        self._hearers: tuple[Callable[[Report], None], ...] = ()  #: replaced, never changed
        self._trouble: Trouble | None = None  #: the newest

    @contextlib.contextmanager
    def reporting_to(self, report: Callable[[Report], None]) -> Iterator[None]:
        """Send reports there too, for as long as a link lasts. Two links may overlap: a leader drops repeats."""
        self.report_always_to(report)
        try:
            yield
        finally:
            with self._hearers_lock:
                self._hearers = tuple(r for r in self._hearers if r is not report)

    def report_always_to(self, report: Callable[[Report], None]) -> None:
        """Send reports there: the leader is on this shard."""
        with self._hearers_lock:
            self._hearers = (*self._hearers, report)

    def report(self, what: Report) -> None:
        """Tell the leader."""
        if isinstance(what, Trouble):
            self._trouble = what
        for report in self._hearers:
            report(what)

    def trouble_of(self, epoch: Epoch) -> Trouble | None:
        """What went wrong last under an epoch; told again with each repeat of the leader's word."""
        trouble = self._trouble
        return trouble if trouble is not None and trouble.epoch == epoch else None
