"""The finished iterations of one job and its evaluations, in bounded memory.

Telemetry can be doubled and late, and a rollback makes iterations void: a row of a newer term, or of a newer epoch of
its term, voids every older row from its iteration on. So in order of iterations these never fall, and each has one row.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice, pairwise
from operator import attrgetter

import msgspec

from elps.contracts.messages import IterationRow
from elps.monitor.core.thinned import Thinned

ROWS_WHOLE = 1000
"""Newest rows kept whole: what a person scrolls through and a page of the query."""
ROWS_PER_LEVEL = 128
EVALUATIONS_WHOLE = 500
EVALUATIONS_PER_LEVEL = 64
RATE_ROWS, RATE_S = 2000, 5.0
"""Speed is the mean over the newest rows that fill so much training time: steady, yet quick to show a change."""


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """One evaluation on held-out samples."""

    iteration: int
    """Iterations that the evaluated parameters have behind them."""
    at: float
    """Unix time, s."""
    metrics: dict[str, float | None]
    term: int = 0
    """Of the leader that told it; 0: it did not say."""


class History:
    """Rows and evaluations of one job."""

    def __init__(self) -> None:
        self.rows: Thinned[IterationRow] = Thinned(ROWS_WHOLE, ROWS_PER_LEVEL)
        self.evaluations: Thinned[Evaluation] = Thinned(EVALUATIONS_WHOLE, EVALUATIONS_PER_LEVEL)
        self.cells = 0
        """What the rows weigh: one each and one for each worker in them."""

    def add(self, row: IterationRow) -> bool:
        """Take a row; False when it is a repeat, void, or older than what is kept whole."""
        before = self.rows.at_or_before(row.iteration)
        if before is not None and (
            before.standing > row.standing
            or (before.iteration, before.standing) == (row.iteration, row.standing)
        ):
            return False
        if any(later.standing < row.standing for later in self._next(row)):
            self._void(row)
        gone = self.rows.put(row)
        if gone is None:
            return False
        self.cells += _weight(row)
        self._forget(gone)
        return True

    def evaluated(self, evaluation: Evaluation) -> None:
        """Take an evaluation; a later one of the same iteration stands in for it.

        Of parameters that a newer term has gone back from, it is void.
        """
        behind = self.rows.at_or_before(evaluation.iteration - 1)
        same = self.evaluations.at_or_before(evaluation.iteration)
        newest = max(
            behind.term if behind is not None else 0,
            same.term if same is not None and same.iteration == evaluation.iteration else 0,
        )
        if not 0 < evaluation.term < newest:
            self.evaluations.put(evaluation)

    def shrink(self) -> None:
        """Keep half as much from now on."""
        self._forget(self.rows.shrink())
        self.evaluations.shrink()

    def rate(self) -> tuple[float | None, float | None]:
        """Samples a second and seconds an iteration of late; None while there is nothing to tell it from."""
        samples, count, spent_s = 0, 0, 0.0
        for row in reversed(self.rows.newest(RATE_ROWS)):
            if not 0 < row.duration_s < 1e9:
                continue
            samples, count, spent_s = samples + row.samples, count + 1, spent_s + row.duration_s
            if spent_s >= RATE_S:
                break
        return (samples / spent_s, spent_s / count) if count else (None, None)

    def check_invariants(self) -> None:
        """Raise `AssertionError` when the rows are out of order or wrongly weighed."""
        rows = list(self.rows)
        for a, b in pairwise(rows):
            assert a.iteration < b.iteration, (a.iteration, b.iteration)
            assert a.standing <= b.standing, (a.standing, b.standing)
        assert self.cells == sum(map(_weight, rows))

    def _next(self, row: IterationRow) -> Iterable[IterationRow]:
        """The first row that is not earlier than this one; they never fall, so it tells whether any is void."""
        return islice(self.rows.since(row.iteration), 1)

    def _void(self, row: IterationRow) -> None:
        """Drop what a rollback to this row's iteration made void; what came after it stays."""
        dropped = self.rows.drop_from(row.iteration)
        self._forget(dropped)
        for later in sorted(
            (r for r in dropped if r.standing >= row.standing), key=attrgetter("iteration")
        ):
            if self.rows.put(later) is not None:
                self.cells += _weight(later)
        for evaluation in self.evaluations.drop_from(row.iteration + 1):
            if evaluation.at >= row.at:
                self.evaluations.put(evaluation)

    def _forget(self, rows: Iterable[IterationRow]) -> None:
        self.cells -= sum(map(_weight, rows))


def _weight(row: IterationRow) -> int:
    return 1 + len(row.workers) + len(row.waiting)
