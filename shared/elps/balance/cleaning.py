"""The one place where timings are believed or not.

The rule, for every worker by itself:

1. *Impossible* values count as not reported: a duration that is missing, NaN, infinite, 0, negative, shorter than a
   nanosecond or longer than a day; fewer than 1 sample; an availability that is missing, not finite or negative.
2. *Warm-up*: a worker's first possible time is not believed. It holds imports, compilation, page faults and cold
   caches, and was seen to be 50 times the second.
3. *Outliers*: a time per sample more than `OUTLIER` times above or below the median of the last `REMEMBERED` believed
   ones is held back. If the next one is off to the same side, it was no accident: it is believed, what was remembered
   is dropped, and the worker is marked as changed. Anything less far off is left to the predictors.

Where a compute time is not believed, the transfer time of that iteration is not either.
"""

from __future__ import annotations

import numpy as np

from elps.balance.arrays import BoolArray, FloatArray, IntArray, arranged
from elps.balance.observing import Circumstances, Readings

SHORTEST_S, LONGEST_S = 1e-9, 86_400.0
"""No computation is shorter than some cycles; longer than a day is a clock that jumped."""
MOST_SAMPLES = 2.0**53
OUTLIER = 8.0
"""Contention on shared machines slows by 2 to 5; a page-in, a collection or a stopped process by 10 and more."""
REMEMBERED = 5
"""An odd number, so that one accident moves no median; few, so that it is of today."""
WARM_UP = 1
"""Readings of a new worker that are not believed."""


class Screen:
    """Remembers per worker what the rule needs."""

    def __init__(self, workers: int = 0) -> None:
        #: Believed seconds per sample, newest first, NaN where there were not so many.
        self._last = np.full((REMEMBERED, workers), np.nan)
        #: Which side (-1, 1) the reading held back was off to; 0 when none is held back.
        self._held = np.zeros(workers)
        #: Possible times that were seen, up to `WARM_UP`.
        self._seen = np.zeros(workers)

    def arrange(self, rows: IntArray) -> None:
        """Workers came or went; see `arranged`."""
        self._last = arranged(self._last, rows, np.nan)
        self._held = arranged(self._held, rows, 0)
        self._seen = arranged(self._seen, rows, 0)

    def clean(self, table: FloatArray) -> Readings:
        """Make readings of one iteration's table (`by_rows`), and remember it."""
        samples, compute_s, pull_s, push_s, _wait_s = table[:5]
        with np.errstate(invalid="ignore", over="ignore"):
            present = (samples >= 1) & (samples <= MOST_SAMPLES)
            possible = present & (compute_s >= SHORTEST_S) & (compute_s <= LONGEST_S)
        warm = self._seen >= WARM_UP
        self._seen = np.minimum(self._seen + possible, WARM_UP)
        possible &= warm
        cost = np.where(possible, compute_s, np.nan) / np.where(possible, samples, 1.0)
        side = self._side(cost)
        off = side != 0
        changed = off & (side == self._held)
        believed = possible & (~off | changed)
        self._held = np.where(possible, np.where(changed, 0.0, side), self._held)
        self._remember(cost, believed & ~changed)
        self._last[:, changed] = np.nan
        self._last[0, changed] = cost[changed]
        return Readings(
            samples=np.where(believed, samples, np.nan),
            compute_s=np.where(believed, compute_s, np.nan),
            pull_s=np.where(believed, _duration(pull_s), np.nan),
            push_s=np.where(believed, _duration(push_s), np.nan),
            current=Circumstances(*(_availability(row) for row in table[5:])),
            changed=changed,
        )

    def _side(self, cost: FloatArray) -> FloatArray:
        """-1 and 1 for times that are too far below and above; 0 for others, and where nothing is remembered."""
        ordered = np.sort(self._last, axis=0)  # NaN goes last
        count = np.isfinite(self._last).sum(axis=0)
        middle = np.take_along_axis(ordered, np.maximum(count - 1, 0)[None] // 2, axis=0)[0]
        with np.errstate(invalid="ignore"):
            above, below = cost > middle * OUTLIER, cost * OUTLIER < middle
        return np.where(above, 1.0, 0.0) - np.where(below, 1.0, 0.0)

    def _remember(self, cost: FloatArray, which: BoolArray) -> None:
        self._last[1:, which] = self._last[:-1, which]
        self._last[0, which] = cost[which]


def _duration(values: FloatArray) -> FloatArray:
    with np.errstate(invalid="ignore"):
        return np.where((values >= 0) & (values <= LONGEST_S), values, 0.0)


def _availability(values: FloatArray) -> FloatArray:
    with np.errstate(invalid="ignore"):
        return np.where((values >= 0) & (values <= MOST_SAMPLES), values, np.nan)
