"""Leader and straggler: batches that feel their way, without any model of time. The rule of LB-BSP for GPUs.

Where the time of a batch is not proportional to its size, speeds say little. So samples are moved in steps from whoever
finished last to whoever finished first, over and over, until all finish alike:

- times are averaged over a window of iterations before each move;
- a worker that gives now what it took before (or the other way round) has gone too far: its step is halved, and when
  that happens to the straggler itself, the window is doubled, so that the last small steps are not led by noise;
- a worker at its most (memory) takes no more, one at its least gives no more.

Beyond the paper: it moves one pair at a time. Here the second slowest also gives to the second fastest and so on, as
far as their times differ, or a thousand workers would take thousands of iterations. And after `AGAIN` moves to the
same side a worker's step doubles, up to what it began with; and one that is suddenly far behind is not waited for.
"""

from __future__ import annotations

import numpy as np

from elps.balance.arrays import BoolArray, FloatArray, IntArray, arranged
from elps.balance.limits import Limits, in_samples

FIRST_STEP = 0.25
"""Of an equal share: a machine four times slower is found in few moves, one step too far costs a quarter at most."""
TOLERANCE = 0.05
"""Relative difference of two times that is left as it is."""
MOST_WINDOW = 16
AGAIN = 3
URGENT = 1.5
"""When the slowest takes so many times as long as the middle one, twice in a row, the end of the window is not waited
for, and its step is the first one again: the machine has changed."""


class LeaderStraggler:
    """Keeps step and direction of each worker, and the times of the window."""

    def __init__(self, workers: int = 0) -> None:
        self._step = np.full(
            workers, np.nan
        )  #: granules, fractions included; NaN before the first move
        self._side = np.zeros(workers)  #: 1 took at its last move, -1 gave, 0 not moved yet
        self._run = np.zeros(workers)  #: moves to that side in a row
        self._sum_s = np.zeros(workers)  #: times of this window
        self._count = np.zeros(workers)
        self._far = np.full(workers, False)  #: who was far behind in the newest iteration
        self._urgent = np.full(workers, False)  #: and in the one before
        self.window = 1  #: iterations to be averaged before the next move

    def arrange(self, rows: IntArray) -> None:
        """Workers came or went; see `arranged`. A new window begins."""
        self._step = arranged(self._step, rows, np.nan)
        self._side = arranged(self._side, rows, 0)
        self._run = arranged(self._run, rows, 0)
        self._sum_s = np.zeros(len(rows))
        self._count = np.zeros(len(rows))
        self._far, self._urgent = np.full(len(rows), False), np.full(len(rows), False)
        self.window = 1

    def observe(self, finish_s: FloatArray) -> None:
        """Times of one iteration *at the sizes now in use*; NaN for whoever has none."""
        told = np.isfinite(finish_s)
        self._sum_s += np.where(told, finish_s, 0.0)
        self._count += told
        middle_s = float(np.median(finish_s[told])) if told.any() else 0.0
        with np.errstate(invalid="ignore"):
            far = told & (finish_s > URGENT * middle_s)
        self._urgent, self._far = far & self._far, far
        if self._urgent.any():
            # What was averaged before is of other machines.
            self._sum_s, self._count = np.where(told, finish_s, 0.0), told * 1.0

    def move(self, samples: IntArray, limits: Limits) -> IntArray:
        """The next sizes; those given if the window is not over, or all finish alike. The sum stays."""
        known = self._count > 0
        total = int(samples.sum())
        urgent = bool(self._urgent.any())
        if not known.any() or not total or (self._count.max() < self.window and not urgent):
            return samples
        mean_s = np.where(known, self._sum_s / np.maximum(self._count, 1), np.nan)
        self._sum_s, self._count = np.zeros_like(mean_s), np.zeros_like(mean_s)
        low, high = limits.units(-(-total // limits.granule))
        units = -(-samples // limits.granule)  # the last one's may be cut short
        first = max(1.0, FIRST_STEP * total / limits.granule / len(samples))
        self._step = np.where(np.isnan(self._step), first, self._step)
        if urgent:
            self.window = 1
        moved = self._pairs(mean_s, units, low, high, first)
        return in_samples(units + moved, total, limits.granule)

    def _pairs(
        self, mean_s: FloatArray, units: IntArray, low: IntArray, high: IntArray, first: float
    ) -> IntArray:
        with np.errstate(invalid="ignore"):
            gives = np.flatnonzero((units > low) & np.isfinite(mean_s))
            takes = np.flatnonzero((units < high) & (units > 0) & np.isfinite(mean_s))
        slow = gives[np.argsort(-mean_s[gives], kind="stable")]
        fast = takes[np.argsort(mean_s[takes], kind="stable")]
        moved = np.zeros_like(units)
        pairs = min(len(slow), len(fast))
        slow, fast = slow[:pairs], fast[:pairs]
        apart = mean_s[slow] - mean_s[fast] > TOLERANCE * mean_s[slow]
        slow, fast = slow[apart], fast[apart]  # sorted both ways: what is left is a beginning
        if not len(slow):
            return moved
        if self._turn(slow, -1, first)[0]:
            self.window = min(2 * self.window, MOST_WINDOW)
        self._turn(fast, 1, first)
        step = np.minimum(self._step[slow], self._step[fast])
        step = np.where(self._urgent[slow], first, step)
        amount = np.maximum(np.floor(step).astype(np.int64), 1)
        amount = np.minimum(amount, np.minimum(units[slow] - low[slow], high[fast] - units[fast]))
        moved[slow] -= amount
        moved[fast] += amount
        return moved

    def _turn(self, workers: IntArray, side: int, first: float) -> BoolArray:
        """Change the steps of workers that now move to `side`; who turned round."""
        turned: BoolArray = self._side[workers] == -side
        self._run[workers] = np.where(self._side[workers] == side, self._run[workers] + 1, 1)
        self._side[workers] = side
        step = self._step[workers]
        step = np.where(turned, np.maximum(step / 2, 1.0), step)
        again = self._run[workers] >= AGAIN
        self._step[workers] = np.where(again, np.minimum(step * 2, first), step)
        if again[0]:
            self.window = 1
        self._run[workers] = np.where(again, 0, self._run[workers])
        return turned
