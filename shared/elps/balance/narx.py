"""NARX: the next speed from past speeds and from past *and current* processor and memory availability.

LB-BSP predicts with a nonlinear autoregressive model with exogenous inputs; how it is built
and trained is not public. This one is made for few hundred iterations of one run, of which it must live:

- Everything is relative and logarithmic: the target is the time per sample over its running average, the inputs are
  past targets, and availability over its running average. "Half of the processor, twice the time" is then a straight
  line, and a model that has learned nothing says "as on average".
- The inputs go straight into the output and through `HIDDEN` tanh units with fixed, seeded weights; only the output
  layer is trained, by recursive least squares with forgetting. That finds the best weights for the recent past in one
  pass, where stochastic gradients through all layers would take thousands of iterations. Tanh lets a shortage count
  more than an abundance.
- `LAGS` 2, `HIDDEN` 2. On three recorded jobs 1 to 8 lags and 0 to 8 hidden units differ by less than 7 % in error; on
  machines with contended processors each weight more costs error, because it must be learned first (0.034 with 1 lag,
  0.050 with 2, 0.066 with 3). Two lags tell a trend from a level; two hidden units let shortage differ from abundance.
- `FORGET` 0.99: the last 100 iterations. From 0.95 to 1 the errors differ by less than 3 %; with 1 a changed machine
  would never be learned anew. Weights without news keep their first variance and no more.
- Safe: its error and that of the average are both followed, and the average is given until the model has seen `LEARN`
  iterations and is better by a tenth on recent ones.
- A newcomer begins with the mean of the others' weights: what a processor means to this task they have found already.

All workers are computed at once: arrays have the worker as their last axis.
"""

from __future__ import annotations

import numpy as np

from elps.balance.arrays import BoolArray, FloatArray, IntArray, arranged
from elps.balance.observing import Circumstances, Readings
from elps.balance.predicting import ExponentialAverage, speed_only
from elps.balance.times import LinearTimes

LAGS = 2
SERIES = 3
"""Processor time for the trainer, on the host, and memory."""
HIDDEN = 2
FEATURES = 1 + LAGS + 2 * SERIES + HIDDEN
FORGET = 0.99
PRIOR = 3.0
"""Variance of a weight before anything is learned: a weight of 1 or 2 is as much as makes sense."""
NOISE = 0.1
"""Size of the deviations, logarithmic, that `PRIOR` is weighed against."""
LEARN = 2 * FEATURES
MARGIN = 0.9
"""Squared error, over that of the average, at which the model is taken; and at 1 it is left."""
RECENT = 0.1
"""Weight of the newest squared error: about the last 10 count."""
FARTHEST = float(np.log(4.0))
"""No forecast is farther from the average than this factor."""
_LEAST = 1e-3
"""Added to an availability relative to its average, so that none at all has a logarithm."""


class Narx:
    """Predicts for all workers of one job. `seed` fixes the hidden weights."""

    def __init__(self, workers: int = 0, seed: int = 0) -> None:
        inputs = LAGS + 2 * SERIES
        chance = np.random.default_rng(seed)
        self._hidden = chance.normal(0.0, 3.0 / np.sqrt(inputs), (HIDDEN, inputs))
        self._shift = chance.normal(0.0, 0.5, (HIDDEN, 1))
        self._average = ExponentialAverage(workers)
        #: Logarithm of past times per sample, newest first, NaN before there are so many.
        self._past = np.full((LAGS, workers), np.nan)
        self._mean = np.full((SERIES, workers), np.nan)  #: running average of availability
        self._now = np.full((SERIES, workers), np.nan)  #: newest availability
        self._before = np.full((SERIES, workers), np.nan)  #: the one before
        self._weights = np.zeros((FEATURES, workers))
        self._p = _prior(workers)  #: covariance of the weights
        #: The features and the average that the forecast of the coming iteration is made of.
        self._features = np.zeros((FEATURES, workers))
        self._learned = np.zeros(workers)  #: iterations
        self._errors = np.full(
            (2, workers), np.nan
        )  #: recent squared error of the model, of the average
        self._trusted = np.zeros(workers, dtype=np.bool_)  #: whose model is the better one

    @property
    def trusted(self) -> BoolArray:
        """For whom the model is used, and not the average."""
        return self._trusted

    def arrange(self, rows: IntArray) -> None:
        """See `Predictor`."""
        taught = self._learned >= LEARN
        lesson = self._weights[:, taught].mean(axis=1) if taught.any() else np.zeros(FEATURES)
        new = rows < 0
        self._average.arrange(rows)
        for name in ("_past", "_mean", "_now", "_before", "_errors"):
            setattr(self, name, arranged(getattr(self, name), rows, np.nan))
        for name in ("_weights", "_features", "_learned"):
            setattr(self, name, arranged(getattr(self, name), rows, 0))
        self._trusted = arranged(self._trusted, rows, 0)
        self._p = arranged(self._p, rows, 0)
        self._weights[:, new] = lesson[:, None]
        self._p[:, :, new] = _prior(int(new.sum()))

    def observe(self, readings: Readings) -> None:
        """See `Predictor`."""
        cost = np.log(readings.per_sample_s)
        told = np.isfinite(cost)
        ready = told & np.isfinite(self._past[-1]) & ~readings.changed
        if ready.any():
            error = np.where(ready, cost - self._average.log_cost, 0.0)
            self._judge(ready, error)
            self._learn(ready, error)
        self._past[:, readings.changed] = np.nan
        self._past[1:, told] = self._past[:-1, told]
        self._past[0, told] = cost[told]
        self._trusted &= ~readings.changed
        self._average.observe(readings)
        self._notice(readings.current.series)
        self._features = self._inputs(self._now)

    def predict(self, current: Circumstances | None = None) -> LinearTimes:
        """See `Predictor`."""
        features = self._features
        if current is not None:
            series = current.series
            features = self._inputs(np.where(np.isfinite(series), series, self._now))
        shift = np.where(self._trusted, self._forecast(features), 0.0)
        return speed_only(np.exp(self._average.log_cost + shift))

    def _forecast(self, features: FloatArray) -> FloatArray:
        """How far, in logarithms, the time is from the average."""
        said: FloatArray = np.einsum("fw,fw->w", self._weights, features)
        return np.clip(said, -FARTHEST, FARTHEST)

    def _judge(self, ready: BoolArray, error: FloatArray) -> None:
        both = np.stack([(error - self._forecast(self._features)) ** 2, error**2])
        both = np.minimum(both, FARTHEST**2)
        first = np.isnan(self._errors)
        mixed = np.where(first, both, self._errors + RECENT * (both - self._errors))
        self._errors = np.where(ready, mixed, self._errors)
        with np.errstate(invalid="ignore"):
            better = self._errors[0] < MARGIN * self._errors[1]
            worse = self._errors[0] >= self._errors[1]
        self._trusted = (self._trusted | (better & (self._learned >= LEARN))) & ~worse

    def _learn(self, ready: BoolArray, error: FloatArray) -> None:
        """One step of recursive least squares; a worker without a reading has features of 0, so nothing moves."""
        features = np.where(ready, self._features, 0.0)
        pf = np.einsum("ijw,jw->iw", self._p, features)
        scale = FORGET * NOISE**2 + np.einsum("iw,iw->w", features, pf)
        miss = error - np.einsum("fw,fw->w", self._weights, features)
        miss = np.clip(miss, -FARTHEST, FARTHEST)
        self._weights += pf / scale * np.where(ready, miss, 0.0)
        step = pf / np.sqrt(scale)
        variance = np.einsum("iiw->iw", self._p) - step**2
        # Forgetting, but no weight becomes less certain than it was first: those without news would grow without end.
        least = np.maximum(variance, 1e-12)
        grow = np.where(ready, np.sqrt(np.minimum(1 / FORGET, PRIOR / least)), 1.0)
        piece = np.empty_like(step)
        for i in range(FEATURES):  # in one pass through memory
            np.multiply(step, step[i], out=piece)
            self._p[i] -= piece
            np.multiply(grow, grow[i], out=piece)
            self._p[i] *= piece
        broken = ~(variance > 0).all(axis=0)
        if broken.any():
            self._p[:, :, broken] = _prior(int(broken.sum()))
        self._learned += ready

    def _notice(self, series: FloatArray) -> None:
        told = np.isfinite(series)
        first = told & np.isnan(self._mean)
        mixed = np.where(first, series, self._mean + 0.05 * (series - self._mean))
        self._mean = np.where(told, mixed, self._mean)
        self._before = self._now
        self._now = np.where(told, series, self._now)

    def _inputs(self, now: FloatArray) -> FloatArray:
        """The features of a forecast made now; 0 for whatever is unknown."""
        average = self._average.log_cost
        lags = np.clip(self._past - average, -FARTHEST, FARTHEST)
        inputs = np.concatenate([lags, self._relative(now), self._relative(self._before)])
        inputs[np.isnan(inputs)] = 0.0
        hidden = np.tanh(self._hidden @ inputs + self._shift) - np.tanh(self._shift)
        return np.concatenate([np.ones((1, len(average))), inputs, hidden])

    def _relative(self, series: FloatArray) -> FloatArray:
        share = series / np.where(self._mean > 0, self._mean, 1.0)
        return np.clip(np.log(share + _LEAST), -3.0, 3.0)


def _prior(workers: int) -> FloatArray:
    return np.repeat((np.eye(FEATURES) * PRIOR)[:, :, None], workers, axis=2)
