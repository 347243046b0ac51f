"""How large each worker's batch is, from how fast each is. All of it in whole granules that sum to the batch.

Times come from a model of the coming iteration; the sizers neither know nor care who predicted it.
"""

from __future__ import annotations

import numpy as np

from elps.balance.arrays import BoolArray, FloatArray, IntArray, usable
from elps.balance.limits import (
    Limits,
    Sizes,
    apportion,
    checked_total,
    in_samples,
    level,
    rounded,
    total_of,
)
from elps.balance.times import LinearTimes, TimeModel

_MOST_MORE = 16
"""Granules that one worker does while another does one, up to which they are counted out one by one."""
_STEPS = 60
"""Halvings of an interval of time: more than the digits of a double."""


def even(total: int, limits: Limits) -> Sizes:
    """The same for everyone, as far as the limits and the granule let it."""
    return proportional(np.ones(len(limits.minimum)), total, limits)


def proportional(speeds: FloatArray, total: int, limits: Limits) -> Sizes:
    """Batches in proportion to `speeds` (samples a second), the rule of LB-BSP for CPUs.

    Right where time is proportional to samples. A speed that is unknown, NaN, infinite, 0 or negative counts as the
    median of the others.
    """
    checked_total(total, len(speeds))
    if not len(speeds):
        return Sizes(np.zeros(0, dtype=np.int64))
    count = -(-total // limits.granule)
    low, high = limits.units(count)
    units = apportion(usable(speeds, 1e-30, 1e30), count, low, high)
    return _sizes(units, total, limits, high)


def equal_finish(times: TimeModel, total: int, limits: Limits) -> Sizes:
    """The batches with which the last worker finishes earliest, for any time model that does not fall.

    Everyone gets its least; `worth_using` says for whom that is too much. Exact to the granule for `LinearTimes`
    without knee; for others up to floating point.
    """
    workers = len(limits.minimum)
    checked_total(total, workers)
    if not workers:
        return Sizes(np.zeros(0, dtype=np.int64))
    count = -(-total // limits.granule)
    low, high = limits.units(count)
    if not total_of(low) < count < total_of(high):
        # Nothing to choose but who sits out or who takes too much: by speed.
        one = np.maximum(low, 1) * limits.granule
        with np.errstate(divide="ignore", over="ignore"):
            speeds = one / times.time_s(one.astype(np.float64))
        units = apportion(usable(speeds, 1e-30, 1e30), count, low, high)
    elif isinstance(times, LinearTimes) and not times.knee.any():
        units = _linear(times, count, low, high, limits.granule)
    else:
        units = _any(times, count, low, high, limits.granule)
    return _sizes(units, total, limits, high)


def worth_using(times: LinearTimes, total: int, limits: Limits) -> BoolArray:
    """Which workers make the iteration shorter, and not longer, with their least batch or more.

    Whoever would finish its least after the others have finished everything is left out. Someone is always used, and
    everybody is whom it takes to hold the whole batch.
    """
    count = -(-total // limits.granule)
    low, high = limits.units(count)
    entry = times.time_s(np.maximum(low, 1).astype(np.float64) * limits.granule)

    def done(time_s: float) -> FloatArray:
        units = np.minimum(_whole(times.within(time_s) / limits.granule), high)
        return np.where(entry <= time_s, np.maximum(units, low), 0.0)

    if total_of(high) <= count or done(float(entry.max())).sum() < count:
        return np.ones(len(low), dtype=np.bool_)  # all have entered, and there is work for all
    order = np.argsort(entry, kind="stable")
    first, last = -1, len(order) - 1  # the first at whose entry all is done is between
    while last - first > 1:
        middle = (first + last) // 2
        if done(float(entry[order[middle]])).sum() >= count:
            last = middle
        else:
            first = middle
    # Who enters before that is needed; who enters just then, as far as it takes.
    at = float(entry[order[last]])
    used, able = entry < at, done(at)
    have = able[used].sum()
    for i in order[int(used.sum()) :]:
        if used.any() and have >= count:
            break
        used[i] = True
        have += able[i]
    return used


def _linear(
    times: LinearTimes, count: int, low: IntArray, high: IntArray, granule: int
) -> IntArray:
    """Each line is a ramp in time; where their sum reaches the batch, all finish together, but for the rounding."""
    per_unit, fixed = times.per_sample_s * granule, times.fixed_s
    begin, end = fixed + per_unit * low, fixed + per_unit * high
    finish = level(begin, end, 1 / per_unit, float(total_of(low)), float(count))
    units = _within(times, finish, low, high, granule)
    missing = count - total_of(units)
    if missing <= 0:
        return units if not missing else _halved(times, count, low, high, granule, (0.0, finish))
    # With one granule more for each of those who end it first it would be done by `late`; but some may do more by then.
    next_s = np.where(units < high, fixed + per_unit * (units + 1), np.inf)
    if missing > np.isfinite(next_s).sum():  # floating point was off by more than rounding
        return _any(times, count, low, high, granule)
    late = float(np.partition(next_s, missing - 1)[missing - 1])
    who = np.flatnonzero(next_s <= late)
    ends, able = next_s[who], high[who] - units[who]
    all_who, all_ends, more = [who], [ends], 1
    while len(who):
        if more > _MOST_MORE:
            return _halved(times, count, low, high, granule, (finish, late))
        again = (ends + per_unit[who] <= late) & (able > more)
        who, ends, able = who[again], ends[again] + per_unit[who[again]], able[again]
        all_who.append(who)
        all_ends.append(ends)
        more += 1
    chosen = np.argsort(np.concatenate(all_ends), kind="stable")[:missing]
    return units + np.bincount(np.concatenate(all_who)[chosen], minlength=len(units))


def _any(times: TimeModel, count: int, low: IntArray, high: IntArray, granule: int) -> IntArray:
    """Halve the interval of finishing times, from 0 to when everyone has done its most."""
    every = times.time_s(high.astype(np.float64) * granule)
    late = float(every[np.isfinite(every)].max(initial=0.0))
    return _halved(times, count, low, high, granule, (0.0, late))


def _halved(
    times: TimeModel,
    count: int,
    low: IntArray,
    high: IntArray,
    granule: int,
    between_s: tuple[float, float],
) -> IntArray:
    """Find the time at which just `count` granules are done, and who has done how many by then."""
    early, late = between_s
    few = _within(times, early, low, high, granule)
    many = _within(times, late, low, high, granule)
    if total_of(many) < count:
        many = high
    for _ in range(_STEPS):
        middle = (early + late) / 2
        units = _within(times, middle, low, high, granule)
        done = total_of(units)
        if done == count:
            return units
        if done > count:
            late, many = middle, units
        else:
            early, few = middle, units
    spare = count - total_of(few)
    if spare <= 0:
        return rounded(few.astype(np.float64), count, low, high)
    # Between the two times lie steps of equal height (the flat parts of some): to be shared alike.
    more = many - few
    return few + apportion(np.maximum(more, 1).astype(np.float64), spare, np.zeros_like(low), more)


def _within(
    times: TimeModel, time_s: float, low: IntArray, high: IntArray, granule: int
) -> IntArray:
    """The most granules that each can finish by then, at least `low`."""
    if isinstance(times, LinearTimes):
        return np.clip(_whole(times.within(time_s) / granule), low, high).astype(np.int64)
    least, most = low.copy(), high.copy()
    while (least < most).any():
        middle = least + (most - least + 1) // 2
        fits = times.time_s(middle.astype(np.float64) * granule) <= time_s
        least, most = np.where(fits, middle, least), np.where(fits, most, middle - 1)
    return least


def _whole(units: FloatArray) -> FloatArray:
    """The whole part; what is a rounding error below the next number counts as that."""
    return np.floor(units * (1 + 1e-12) + 1e-9)


def _sizes(units: IntArray, total: int, limits: Limits, high: IntArray) -> Sizes:
    exceeded = bool((units > high).any()) and total > 0
    return Sizes(in_samples(units, total, limits.granule), exceeded)
