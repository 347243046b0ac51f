"""Time as a line in the size of the batch: recursive least squares with forgetting and change detection."""

from __future__ import annotations

import numpy as np

from elps.balance.arrays import BoolArray, FloatArray, IntArray, arranged
from elps.balance.observing import Circumstances, Readings
from elps.balance.times import LinearTimes

FORGET = 0.95
"""Weight of an iteration over that of the next: about the last 20 count."""
PRIOR = 0.1
"""Variance of the fixed part at the beginning, in squares of the first time. Before batches have differed nobody can
tell the fixed part from the slope; it is then taken for slope, and the sum of the two is known."""
MOST_VARIANCE = 1.0
"""Forgetting without news would let the variance grow without end."""
DRIFT, ALARM, MOST_Z = 1.0, 5.0, 4.0
"""Change detection (CUSUM): deviations above `DRIFT` usual ones pile up, each counted as `MOST_Z` at most, and the pile
raises the alarm at `ALARM`: two far off to the same side, not one."""
FIRST_NOISE, LEAST_NOISE = 0.05, 0.01
"""Usual relative deviation before it is known; and at least, or a perfectly even run would be alarmed by a breath."""
MOST_FIXED = 0.95
"""Share of a time that may be fixed: with no slope at all a sizer would pile up everything on one worker."""


class RecursiveLeastSquares:
    """``time = a + b · batch`` per worker.

    Batch and time are kept relative to the worker's first ones, so that the numbers are about 1. On an alarm the
    line is moved to go through the newest point (all of the machine became slower by that factor), and what was known
    is worth nothing any more.
    """

    def __init__(self, workers: int = 0) -> None:
        self._unit_x = np.full(workers, np.nan)  #: the first batch
        self._unit_t = np.full(workers, np.nan)  #: the first time
        self._line = np.zeros((2, workers))  #: fixed part and slope
        self._p = np.zeros((3, workers))  #: covariance: fixed, both, slope
        self._noise = np.zeros(workers)  #: usual relative deviation
        self._piles = np.zeros((2, workers))  #: deviations upwards and downwards
        self._centre = np.ones(workers)  #: recent batch, relative: where the line is known best

    def arrange(self, rows: IntArray) -> None:
        """See `Predictor`."""
        self._unit_x = arranged(self._unit_x, rows, np.nan)
        self._unit_t = arranged(self._unit_t, rows, np.nan)
        self._line = arranged(self._line, rows, 0)
        self._p = arranged(self._p, rows, 0)
        self._noise = arranged(self._noise, rows, 0)
        self._piles = arranged(self._piles, rows, 0)
        self._centre = arranged(self._centre, rows, 1)

    def observe(self, readings: Readings) -> None:
        """See `Predictor`."""
        told = np.isfinite(readings.per_sample_s)
        begin = told & (readings.changed | np.isnan(self._unit_x))
        self._begin(begin, readings.samples, readings.compute_s)
        learn = told & ~begin
        x = np.where(learn, readings.samples / self._unit_x, 1.0)
        t = np.where(learn, readings.compute_s / self._unit_t, 1.0)
        expected = np.maximum(self._line[0] + self._line[1] * x, 1e-9)
        px0 = self._p[0] + self._p[1] * x
        px1 = self._p[1] + self._p[2] * x
        noise = np.maximum(self._noise, LEAST_NOISE) * expected
        spread = np.sqrt(noise**2 + np.maximum(px0 + px1 * x, 0.0))
        error = t - expected
        alarm = self._detect(learn, error / spread, np.abs(error) / expected)
        error = np.clip(error, -3 * spread, 3 * spread)  # one accident moves the line a little
        scale = FORGET * noise**2 + np.maximum(px0 + px1 * x, 0.0)
        line = self._line + np.stack([px0, px1]) / scale * error
        p = (self._p - np.stack([px0 * px0, px0 * px1, px1 * px1]) / scale) / FORGET
        p *= np.minimum(1.0, MOST_VARIANCE / np.maximum(p[0] + p[2], 1e-30))
        # A line that rises and is not far off is moved as it is; any other is begun anew.
        sound = (self._line >= 0).all(axis=0) & (t < 10 * expected)
        moved = np.where(sound, self._line * (t / expected), np.stack([0 * t, t / x]))
        line = np.where(alarm, moved, line)
        p = np.where(alarm | (p[0] < 0) | (p[2] < 0), _fresh(x, noise), p)
        self._line = np.where(learn, line, self._line)
        self._p = np.where(learn, p, self._p)
        self._centre = np.where(learn, 0.8 * self._centre + 0.2 * x, self._centre)

    def predict(self, current: Circumstances | None = None) -> LinearTimes:  # noqa: ARG002
        """See `Predictor`. The line goes through what is expected at recent sizes, and rises."""
        at = np.maximum(self._line[0] + self._line[1] * self._centre, 1e-9)
        fixed = np.clip(self._line[0], 0.0, MOST_FIXED * at)
        slope = (at - fixed) / self._centre
        return LinearTimes(
            fixed * self._unit_t, slope * self._unit_t / self._unit_x, np.zeros_like(fixed)
        )

    def _begin(self, which: BoolArray, samples: FloatArray, compute_s: FloatArray) -> None:
        if not which.any():
            return
        self._unit_x = np.where(which, samples, self._unit_x)
        self._unit_t = np.where(which, compute_s, self._unit_t)
        self._line = np.where(which, np.array([[0.0], [1.0]]), self._line)
        self._p = np.where(
            which, _fresh(np.ones(len(which)), np.full(len(which), FIRST_NOISE)), self._p
        )
        self._noise = np.where(which, FIRST_NOISE, self._noise)
        self._piles = np.where(which, 0.0, self._piles)
        self._centre = np.where(which, 1.0, self._centre)

    def _detect(self, learn: BoolArray, z: FloatArray, relative: FloatArray) -> BoolArray:
        """Whose machine has changed; and learn the usual deviation."""
        z = np.clip(z, -MOST_Z, MOST_Z)
        piles = np.maximum(0.0, self._piles + np.stack([z, -z]) - DRIFT)
        alarm = learn & (piles > ALARM).any(axis=0)
        self._piles = np.where(learn, np.where(alarm, 0.0, piles), self._piles)
        # One accident is not the usual.
        seen = np.minimum(relative, 3 * np.maximum(self._noise, LEAST_NOISE))
        self._noise = np.where(learn & ~alarm, 0.9 * self._noise + 0.1 * seen, self._noise)
        return alarm


def _fresh(x: FloatArray, noise: FloatArray) -> FloatArray:
    """Covariance of a line of which one time, with its noise, is known at `x`, and nothing else."""
    return np.stack([PRIOR * x * x, -PRIOR * x, PRIOR + (noise / x) ** 2])
