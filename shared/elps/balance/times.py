"""How long a batch takes: the models between predictors and sizers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from elps.balance.arrays import BoolArray, FloatArray, usable

FASTEST_S, SLOWEST_S = 1e-12, 1e9
"""Seconds per sample outside of which sums would lose digits; nothing real is near."""


class TimeModel(Protocol):
    """Any rule that does not get faster with more samples, one row per worker."""

    def time_s(self, samples: FloatArray) -> FloatArray:
        """Seconds for batches of these sizes, one per worker; does not fall when a size grows. 0 for no samples."""
        ...


@dataclass(frozen=True, slots=True)
class LinearTimes:
    """Flat up to a knee, linear from there: ``fixed + per_sample · max(samples, knee)``, and 0 for no samples.

    A knee is what accelerators show, which a small batch does not fill (LB-BSP, the part on GPUs). Predictors tell
    none: sizes that follow what was measured at the newest ones settle near the best there is (docs/balance.md). It is
    for those who know theirs.
    """

    fixed_s: FloatArray
    per_sample_s: FloatArray
    knee: FloatArray

    @classmethod
    def of(
        cls,
        per_sample_s: FloatArray,
        fixed_s: FloatArray | float = 0.0,
        knee: FloatArray | float = 0.0,
    ) -> LinearTimes:
        """Make one of whatever is given: what is unknown or cannot be is the median of the rest, in fixed parts 0."""
        per = usable(per_sample_s, FASTEST_S, SLOWEST_S)
        return cls(_at_least_0(fixed_s, per), per, _at_least_0(knee, per))

    def time_s(self, samples: FloatArray) -> FloatArray:
        """Seconds for batches of these sizes."""
        full = self.fixed_s + self.per_sample_s * np.maximum(samples, self.knee)
        return np.where(samples > 0, full, 0.0)

    def within(self, time_s: float) -> FloatArray:
        """Samples that can be done in this time, fractions included."""
        samples = (time_s - self.fixed_s) / self.per_sample_s
        return np.where(samples >= self.knee, np.maximum(samples, 0.0), 0.0)

    def later(self, extra_s: FloatArray) -> LinearTimes:
        """The same with more of a fixed part (transfers)."""
        return replace(self, fixed_s=self.fixed_s + _at_least_0(extra_s, self.per_sample_s))

    def of_rows(self, rows: BoolArray) -> LinearTimes:
        """Those of some workers only."""
        return LinearTimes(self.fixed_s[rows], self.per_sample_s[rows], self.knee[rows])


@dataclass(frozen=True, slots=True)
class AnyTimes:
    """A time model from a function of sizes; what it gives that is not a time counts as never ending."""

    function: Callable[[FloatArray], FloatArray]

    def time_s(self, samples: FloatArray) -> FloatArray:
        """Seconds for batches of these sizes."""
        times = np.asarray(self.function(samples), dtype=np.float64)
        times = np.where(np.isfinite(times) & (times >= 0), times, np.inf)
        return np.where(samples > 0, times, 0.0)


def _at_least_0(values: FloatArray | float, like: FloatArray) -> FloatArray:
    values = np.broadcast_to(np.asarray(values, dtype=np.float64), like.shape)
    return np.where(np.isfinite(values) & (values > 0), np.minimum(values, SLOWEST_S), 0.0)
