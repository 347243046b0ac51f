"""What a worker can take, and whole numbers that keep to it and always sum to the batch."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from elps.balance.arrays import BoolArray, FloatArray, IntArray

LARGEST_BATCH = 2**53
"""Whole numbers up to here are exact in floating point."""
_LEAST_WEIGHT = 1e-12
"""Of the heaviest: below it a weight is as good as this; keeps quotients finite."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Least and most samples of each worker, and the granule at whose multiples batches are cut.

    The least holds for a worker that is used at all. The sum comes first: where all of them cannot hold together, the
    least is given up for the slowest (they sit out), and the most is exceeded by all, in proportion (`Sizes` says so).
    """

    minimum: IntArray
    maximum: IntArray
    granule: int = 1

    @classmethod
    def of(
        cls,
        workers: int,
        *,
        granule: int = 1,
        minimum: IntArray | int = 1,
        maximum: IntArray | int | None = None,
    ) -> Limits:
        """Limits for `workers`, one number for all or one for each. `ValueError` if the granule is below 1."""
        if granule < 1:
            raise ValueError(f"the granule is {granule}, expected 1 or more")
        most = LARGEST_BATCH if maximum is None else maximum
        low = np.broadcast_to(np.asarray(minimum, dtype=np.int64), (workers,))
        high = np.broadcast_to(np.asarray(most, dtype=np.int64), (workers,))
        return cls(low, high, granule)

    def units(self, count: int) -> tuple[IntArray, IntArray]:
        """Least (at least 1) and most granules in a batch of `count`; the most is the stronger, and may be 0."""
        high = np.minimum(np.clip(self.maximum, 0, LARGEST_BATCH) // self.granule, count)
        low = np.clip(-(-np.clip(self.minimum, 1, LARGEST_BATCH) // self.granule), 1, None)
        return np.minimum(low, high), high

    def without(self, workers: BoolArray) -> Limits:
        """The same, but these workers take nothing."""
        return replace(self, maximum=np.where(workers, 0, self.maximum))


@dataclass(frozen=True, slots=True)
class Sizes:
    """Samples for each worker; they sum to the batch."""

    samples: IntArray
    exceeded: bool = False
    """The batch is larger than what all may take together, so they take more."""


def checked_total(total: int, workers: int) -> int:
    """`total`, or `ValueError` if it is no batch, or there is nobody to take it."""
    if not 0 <= total <= LARGEST_BATCH:
        raise ValueError(f"a batch of {total} samples, expected 0 to 2**53")
    if not workers and total:
        raise ValueError(f"a batch of {total} samples, but no worker to take it")
    return total


def in_samples(units: IntArray, total: int, granule: int) -> IntArray:
    """Samples of workers that take so many granules each, ⌈total / granule⌉ together.

    The granule that is cut short by the end of the batch belongs to the last who has any: batches lie in the order of
    the workers, so every other cut is at a multiple of the granule.
    """
    samples = units * granule
    if (short := int(samples.sum()) - total) > 0:
        samples[np.flatnonzero(units)[-1]] -= short
    return samples


def total_of(units: IntArray) -> int:
    """Their sum; where it does not fit 64 bits, about their sum."""
    about = float(units.sum(dtype=np.float64))
    return int(units.sum()) if about < 2.0**62 else int(about)


def apportion(weights: FloatArray, total: int, low: IntArray, high: IntArray) -> IntArray:
    """Whole numbers in proportion to positive `weights`, within `low` and `high`, summing to `total`.

    What is cut off by a bound goes to the others in proportion; the rest of the rounding to the largest fractions, and
    among equals to the first. If the lows sum to more than `total`, the heaviest get theirs and the others nothing; if
    the highs sum to less, all who have one get their high and what is left in proportion.
    """
    weights = np.maximum(weights / weights.max(initial=_LEAST_WEIGHT), _LEAST_WEIGHT)
    if total < total_of(low):
        return _to_the_heaviest(weights, total, low, high)
    if total > (most := total_of(high)):
        able = high > 0 if most else np.ones_like(high, dtype=np.bool_)
        nothing, anything = np.zeros_like(high), np.where(able, total, 0)
        return high + apportion(weights, total - most, nothing, anything)
    ideal = np.clip(_level(weights, total, low, high) * weights, low, high)
    return rounded(ideal, total, low, high)


def rounded(ideal: FloatArray, total: int, low: IntArray, high: IntArray) -> IntArray:
    """`ideal` as whole numbers that sum to `total`, which lies between the sums of `low` and of `high`."""
    units = np.clip(np.floor(ideal).astype(np.int64), low, high)
    fraction = ideal - units
    while missing := total - int(units.sum()):
        room = high - units if missing > 0 else units - low
        able = np.flatnonzero(room)
        best = able[np.argsort(-fraction[able] if missing > 0 else fraction[able], kind="stable")]
        best = best[: abs(missing)]
        # One each, as a rule; more only when floating point was off by more than rounding.
        step = np.minimum(room[best], max(1, abs(missing) // len(best)))
        units[best] += step if missing > 0 else -step
    return units


def _to_the_heaviest(weights: FloatArray, total: int, low: IntArray, high: IntArray) -> IntArray:
    order = np.argsort(-weights, kind="stable")
    # Exact as long as it does not overflow; about right then.
    served = np.cumsum(low[order]) <= total
    served &= np.cumsum(low[order], dtype=np.float64) < 2.0**62
    served[np.argmin(served) :] = False
    units = np.zeros_like(low)
    units[order[served]] = low[order[served]]
    if left := total - int(units.sum()):
        # Less than the next one's least is left: those who are served take it, or, if it is more than they may take
        # (or nobody is served), the next one does with less than its least.
        room = np.where(units > 0, high - units, 0)
        take = min(left, total_of(room))
        units += apportion(weights, take, np.zeros_like(low), room) if take else 0
        units[order[int(served.sum())]] += left - take
    return units


def _level(weights: FloatArray, total: int, low: IntArray, high: IntArray) -> float:
    """The factor on `weights` at which, clipped to the bounds, they sum to `total`."""
    return level(low / weights, high / weights, weights, float(total_of(low)), float(total))


def level(
    begin: FloatArray, end: FloatArray, slope: FloatArray, base: float, total: float
) -> float:
    """Where a sum of ramps reaches `total`: each rises with its `slope` from its `begin` to its `end`; together they
    start from `base`. The last end, if it is never reached.
    """
    at = np.concatenate([begin, end])
    order = np.argsort(at, kind="stable")
    at = at[order]
    slopes = np.cumsum(np.concatenate([slope, -slope])[order])
    sums = base + np.concatenate([[0.0], np.cumsum(slopes[:-1] * np.diff(at))])
    i = int(np.searchsorted(sums, total))
    if i == 0:
        return float(at[0])
    if i == len(at):
        return float(at[-1])
    rise = slopes[i - 1]
    return float(at[i] if rise <= 0 else min(at[i], at[i - 1] + (total - sums[i - 1]) / rise))
