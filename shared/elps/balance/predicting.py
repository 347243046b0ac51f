"""Predictors: what the coming iteration will cost each worker, from what past ones did.

All compute on rows, every worker of a job at once, and never see a measurement that `Screen` does not believe.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from elps.balance.arrays import FloatArray, IntArray, arranged
from elps.balance.observing import Circumstances, Readings
from elps.balance.times import LinearTimes

WEIGHT = 0.3
"""Of the newest reading in the average: about the last 6 iterations count, and noise shrinks to 0.42 of itself."""
WINDOW = 5
"""Of the median: two accidents of five move nothing, and a step is seen after three iterations."""


class Predictor(Protocol):
    """One rule of prediction for all workers of a job."""

    def arrange(self, rows: IntArray) -> None:
        """Workers came or went: row *i* is from now on what row ``rows[i]`` was, or new if that is `NEW`."""
        ...

    def observe(self, readings: Readings) -> None:
        """Learn one iteration."""
        ...

    def predict(self, current: Circumstances | None = None) -> LinearTimes:
        """Times of the coming iteration, NaN for a worker that nothing is known of.

        `current` is availability now, if it is known better than by the last readings.
        """
        ...


def speed_only(per_sample_s: FloatArray) -> LinearTimes:
    """The model of those who predict a speed: time is proportional to samples."""
    nothing = np.zeros_like(per_sample_s)
    return LinearTimes(nothing, per_sample_s, nothing)


class LastValue:
    """The next iteration is like the last one."""

    def __init__(self, workers: int = 0) -> None:
        #: Seconds per sample, NaN before the first reading.
        self._cost = np.full(workers, np.nan)

    def arrange(self, rows: IntArray) -> None:
        """See `Predictor`."""
        self._cost = arranged(self._cost, rows, np.nan)

    def observe(self, readings: Readings) -> None:
        """See `Predictor`."""
        cost = readings.per_sample_s
        self._cost = np.where(np.isfinite(cost), cost, self._cost)

    def predict(self, current: Circumstances | None = None) -> LinearTimes:  # noqa: ARG002
        """See `Predictor`."""
        return speed_only(self._cost)


class ExponentialAverage:
    """The average of the past with weights that fall by a constant factor; geometric, so that it is the same whether
    one thinks in times or in speeds, and one slow iteration does not weigh more than one fast.
    """

    def __init__(self, workers: int = 0, weight: float = WEIGHT) -> None:
        self._weight = weight
        #: Sum of weights so far: at the beginning all readings count alike.
        self._sum = np.zeros(workers)
        self.log_cost = np.full(workers, np.nan)  #: logarithm of seconds per sample

    def arrange(self, rows: IntArray) -> None:
        """See `Predictor`."""
        self._sum = arranged(self._sum, rows, 0)
        self.log_cost = arranged(self.log_cost, rows, np.nan)

    def observe(self, readings: Readings) -> None:
        """See `Predictor`."""
        cost = np.log(readings.per_sample_s)
        told = np.isfinite(cost)
        before = np.where(readings.changed, 0.0, self._sum)
        total = np.where(told, before * (1 - self._weight) + 1, before)
        known = np.where(before > 0, self.log_cost, 0.0)
        with np.errstate(invalid="ignore"):
            self.log_cost = np.where(told, known + (cost - known) / total, self.log_cost)
        self._sum = np.where(told, total, self._sum)

    def predict(self, current: Circumstances | None = None) -> LinearTimes:  # noqa: ARG002
        """See `Predictor`."""
        return speed_only(np.exp(self.log_cost))


class MedianWindow:
    """The median of the last few: deaf to accidents, late by half its length after a change."""

    def __init__(self, workers: int = 0, window: int = WINDOW) -> None:
        #: Seconds per sample, newest first.
        self._last = np.full((window, workers), np.nan)

    def arrange(self, rows: IntArray) -> None:
        """See `Predictor`."""
        self._last = arranged(self._last, rows, np.nan)

    def observe(self, readings: Readings) -> None:
        """See `Predictor`."""
        cost = readings.per_sample_s
        told = np.isfinite(cost)
        self._last[1:, readings.changed] = np.nan
        self._last[1:, told] = self._last[:-1, told]
        self._last[0, told] = cost[told]
        self._last[1:, readings.changed] = np.nan

    def predict(self, current: Circumstances | None = None) -> LinearTimes:  # noqa: ARG002
        """See `Predictor`."""
        ordered = np.sort(self._last, axis=0)
        count = np.isfinite(ordered).sum(axis=0)
        low = np.take_along_axis(ordered, np.maximum(count - 1, 0)[None] // 2, axis=0)[0]
        high = np.take_along_axis(ordered, count[None] // 2 % len(ordered), axis=0)[0]
        return speed_only(np.where(count % 2 == 1, low, np.sqrt(low * high)))
