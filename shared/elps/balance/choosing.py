"""For each worker the predictor that was best lately; and all predictors by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from elps.balance.arrays import FloatArray, IntArray, arranged
from elps.balance.narx import Narx
from elps.balance.observing import Circumstances, Readings
from elps.balance.predicting import ExponentialAverage, LastValue, MedianWindow, Predictor
from elps.balance.recursive import RecursiveLeastSquares
from elps.balance.times import LinearTimes

RECENT = 0.15
"""Weight of the newest squared error: about the last 7 iterations, so that a step is answered within 2."""
BETTER = 0.8
"""A predictor is left for one whose squared error is below this part of its own."""
MOST_ERROR = float(np.log(4.0)) ** 2
"""Wrong by a factor of 4 or of 40 is the same: useless. And one accident is soon forgotten."""


class BestRecent:
    """Runs several predictors side by side and gives, worker by worker, what the best of late says."""

    def __init__(self, candidates: Mapping[str, Predictor], first: str, workers: int = 0) -> None:
        self.names = tuple(candidates)
        self._candidates = list(candidates.values())
        self._first = self.names.index(first)
        self._errors = np.full((len(self.names), workers), np.nan)  #: recent squared errors
        self.chosen = np.full(workers, self._first, dtype=np.int64)  #: index into `names`, by row
        self._said: list[LinearTimes] | None = None  #: what each says since it last learned

    def arrange(self, rows: IntArray) -> None:
        """See `Predictor`."""
        for candidate in self._candidates:
            candidate.arrange(rows)
        self._errors = arranged(self._errors, rows, np.nan)
        self.chosen = arranged(self.chosen, rows, self._first)
        self._said = None

    def observe(self, readings: Readings) -> None:
        """See `Predictor`."""
        samples = np.where(np.isfinite(readings.samples), readings.samples, 1.0)
        said = np.stack([s.time_s(samples) for s in self._forecasts()])
        with np.errstate(invalid="ignore", divide="ignore"):
            errors = np.minimum(np.log(said / readings.compute_s) ** 2, MOST_ERROR)
        told = np.isfinite(errors) & ~readings.changed
        first = told & np.isnan(self._errors)
        with np.errstate(invalid="ignore"):
            mixed = np.where(first, errors, self._errors + RECENT * (errors - self._errors))
        self._errors = np.where(told, mixed, self._errors)
        self._choose()
        for candidate in self._candidates:
            candidate.observe(readings)
        self._said = None

    def _forecasts(self) -> list[LinearTimes]:
        if self._said is None:
            self._said = [c.predict() for c in self._candidates]
        return self._said

    def predict(self, current: Circumstances | None = None) -> LinearTimes:
        """See `Predictor`."""
        said = self._forecasts()
        if current is not None:
            said = [c.predict(current) for c in self._candidates]
        return LinearTimes(
            self._picked([s.fixed_s for s in said]),
            self._picked([s.per_sample_s for s in said]),
            self._picked([s.knee for s in said]),
        )

    def _choose(self) -> None:
        errors = np.where(np.isnan(self._errors), np.inf, self._errors)
        best = errors.argmin(axis=0)
        own = np.choose(self.chosen, errors)
        self.chosen = np.where(errors.min(axis=0) < BETTER * own, best, self.chosen)

    def _picked(self, said: list[FloatArray]) -> FloatArray:
        return np.choose(self.chosen, said)


def automatic(seed: int = 0) -> BestRecent:
    """The last value, the average, NARX and the line; a worker begins with the average.

    The median is not among them: accidents are held back already (`Screen`), and it is late after every step.
    """
    each = {name: PREDICTORS[name](seed) for name in ("last", "average", "narx", "line")}
    return BestRecent(each, "average")


PREDICTORS: Mapping[str, Callable[[int], Predictor]] = {
    "last": lambda _seed: LastValue(),
    "average": lambda _seed: ExponentialAverage(),
    "median": lambda _seed: MedianWindow(),
    "narx": lambda seed: Narx(seed=seed),
    "line": lambda _seed: RecursiveLeastSquares(),
    "auto": automatic,
}
"""Predictors by the name a user gives, made from a seed."""
