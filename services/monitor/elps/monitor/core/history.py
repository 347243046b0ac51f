"""The finished iterations of one job and its evaluations, in bounded memory.

Telemetry can be doubled and late, and a rollback makes iterations void: a row of a newer term, or of a newer epoch of
its term, voids every older row from its iteration on. So in order of iterations these never fall, and each has one row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from operator import attrgetter

from elps.contracts.answers import Evaluation
from elps.contracts.telemetry import IterationRow
from elps.monitor.core.thinned import Thinned

ROWS_WHOLE = 1000
"""Newest rows kept whole: what a person scrolls through and a page of the query."""
ROWS_PER_LEVEL = 128
EVALUATIONS_WHOLE = 500
EVALUATIONS_PER_LEVEL = 64
RATE_ROWS, RATE_S = 2000, 5.0
"""Speed is the mean over the newest rows that fill so much training time: steady, yet quick to show a change."""


class History:
    """Rows and evaluations of one job."""

    def __init__(self) -> None:
        self.rows: Thinned[IterationRow] = Thinned(ROWS_WHOLE, ROWS_PER_LEVEL)
        self.evaluations: Thinned[Evaluation] = Thinned(EVALUATIONS_WHOLE, EVALUATIONS_PER_LEVEL)
        self.cells = 0
        """What the rows weigh: one each and one for each worker in them."""
        self.changes = 0
        """Grows with every change."""
        self._rate: tuple[float | None, float | None] = None, None  #: as of `_rated`
        self._rated = 0  #: `changes` then

    def add(self, row: IterationRow) -> bool:
        """Take a row; False when it is a repeat, void, or older than what is kept whole."""
        last = self.rows.last
        if last is None or row.iteration > last.iteration:  # nearly always
            if last is not None and last.standing > row.standing:
                return False
        elif not self._fits(row):
            return False
        gone = self.rows.put(row)
        if gone is None:
            return False
        self.cells += _weight(row)
        if gone:
            self._forget(gone)
        self.changes += 1
        return True

    def evaluated(self, evaluation: Evaluation) -> None:
        """Take an evaluation; a later one of the same iteration stands in for it.

        Of parameters that a newer term has gone back from, it is void.
        """
        same = self.evaluations.at_or_before(evaluation.iteration)
        newest = max(
            self._term_behind(evaluation),
            same.term if same is not None and same.iteration == evaluation.iteration else 0,
        )
        if not 0 < evaluation.term < newest:
            self.evaluations.put(evaluation)
            self.changes += 1

    def restore(
        self,
        rows: Iterable[tuple[int, IterationRow]],
        evaluations: Iterable[tuple[int, Evaluation]],
    ) -> None:
        """Take back what was kept, with the levels it was at, beside what has come since.

        What was kept while a rollback was under way, or in the middle of thinning, may hold rows that are void or that
        are there twice.
        """
        self.rows.replace(_in_force([*rows, *self.rows.placed()]))
        self.cells = sum(map(_weight, self.rows))
        told = sorted(
            [*evaluations, *self.evaluations.placed()],
            key=lambda placed: (placed[1].iteration, placed[1].at, -placed[0]),
        )
        newest = {evaluation.iteration: (level, evaluation) for level, evaluation in told}
        self.evaluations.replace(
            placed
            for placed in newest.values()
            if not 0 < placed[1].term < self._term_behind(placed[1])
        )
        self.changes += 1

    def shrink(self) -> None:
        """Keep half as much from now on."""
        self._forget(self.rows.shrink())
        self.evaluations.shrink()
        self.changes += 1

    def rate(self) -> tuple[float | None, float | None]:
        """Samples a second and seconds an iteration of late; None while there is nothing to tell it from."""
        if self._rated != self.changes:  # several ask in a row, and there are many rows to look at
            self._rate, self._rated = self._reckoned_rate(), self.changes
        return self._rate

    def _reckoned_rate(self) -> tuple[float | None, float | None]:
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

    def _term_behind(self, evaluation: Evaluation) -> int:
        """The term of the last row that the evaluated parameters have behind them; 0 if none is known."""
        behind = self.rows.at_or_before(evaluation.iteration - 1)
        return behind.term if behind is not None else 0

    def _fits(self, row: IterationRow) -> bool:
        """Whether a row that is not the newest is to be taken; what it makes void goes."""
        before = self.rows.at_or_before(row.iteration)
        if before is not None and (
            before.standing > row.standing
            or (before.iteration, before.standing) == (row.iteration, row.standing)
        ):
            return False
        later = next(self.rows.since(row.iteration), None)  # they never fall: it tells for all
        if later is not None and later.standing < row.standing:
            self._void(row)
        return True

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


def _in_force(placed: Iterable[tuple[int, IterationRow]]) -> Iterator[tuple[int, IterationRow]]:
    """One row for each iteration, and none that a newer row has made void."""
    in_order = sorted(placed, key=lambda pair: (pair[1].iteration, pair[1].standing, -pair[0]))
    newest = {row.iteration: (level, row) for level, row in in_order}
    newest_standing = (0, 0)
    for level, row in newest.values():
        if row.standing >= newest_standing:
            newest_standing = row.standing
            yield level, row
