"""What a lease costs whatever its size, measured apart from what its samples take.

A call of a task may take 30 ms for one sample and hardly more for a hundred, and a lease is asked for and pushed
besides. One lease an iteration hides that: with batches that differ little, a fixed part cannot be told from a slope.
But whoever has computed a second, much smaller lease in the same iteration has shown it. With *n* samples and *t*
seconds of the first lease, *m* samples and *s* seconds of *k* more,

    t = a + b·n,    s = k·a + b·m    so    a / t = (s/t - m/n) / (k - m/n),

and since both were computed one after the other, a slow moment of the machine divides out. The error is that of *s*,
which is small when *m* is: one lease of a single granule tells *a* to a few percent of itself.

*a* is kept as a number of samples (a/b): a machine that is four times slower is so in both.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from statistics import median
from typing import NamedTuple

from elps.balance.arrays import FloatArray

ROUND_TRIP_S = 0.5e-3
"""What it takes to ask for a lease and get it, at least, with a busy leader in between; the push comes to that."""
READINGS = 5
"""Iterations of which the median counts: an odd number, and few, so that it is of today."""
ENOUGH = 3
"""Of them before anything is believed: a first small call may compile, or fault pages in."""
MOST_PART, LEAST_PART = 0.98, -0.5
"""Of a lease's time that may be fixed, as one reading shows it; below 0 it is noise, which others make up for."""
ALIKE = 0.75
"""More leases as large as this part of the first one tell nothing of a fixed part."""
AGAIN = 4
"""Iterations that a trial has to be answered in, while too little is known: a plan lags by two."""
PATIENCE, MOST_PATIENCE = 20, 20_000
"""From one trial to the next once it is known, and at most: both double with each trial that is not answered."""
TRIALS_COST = 0.005
"""Part of the time that trials may take."""
FEWEST, MOST = 1e-6, 1e15
"""A mean of leases lies above the one, and any count or time below the other: what lies elsewhere was not measured."""


class Extra(NamedTuple):
    """Leases of one worker in one iteration beyond its first, all together. Means, where iterations are told as one."""

    leases: float
    samples: float
    compute_s: float
    wait_s: float
    """Asking for them, and pushing them."""

    @property
    def sane(self) -> bool:
        """Whether it can be."""
        return min(self) >= 0 and max(self) <= MOST and self.leases >= FEWEST


class LeaseCost:
    """Learns it from iterations with more leases, and says when one is to be tried."""

    def __init__(self) -> None:
        self._fixed: deque[float] = deque(maxlen=READINGS)  #: samples' worth, newest last
        self._waits_s: deque[float] = deque(
            maxlen=READINGS
        )  #: of each lease, beside its computation
        self._passed, self._passed_s = 0, 0.0  #: since the newest trial or reading
        self._unanswered = 0  #: trials since the newest reading

    @property
    def known(self) -> bool:
        """Whether it was measured often enough."""
        return len(self._fixed) >= ENOUGH

    @property
    def samples(self) -> float:
        """How many samples take as long as what does not grow with them; 0 while nothing is known."""
        return max(median(self._fixed), 0.0) if self._fixed else 0.0

    @property
    def wait_s(self) -> float:
        """What asking for a lease and pushing it take; 0 while nothing is known."""
        return max(median(self._waits_s), ROUND_TRIP_S) if self._waits_s else 0.0

    def observe(
        self, samples: FloatArray, compute_s: FloatArray, extras: Mapping[int, Extra]
    ) -> None:
        """One iteration: what each worker did in all, and what of it in leases beyond its first, by row."""
        found, waits = [], []
        for row, extra in extras.items():
            first_n, first_s = samples[row] - extra.samples, compute_s[row] - extra.compute_s
            if not (extra.sane and 1 <= first_n <= MOST and first_s > 0):
                continue
            waits.append(extra.wait_s / extra.leases)
            size = extra.samples / first_n
            if size > ALIKE * extra.leases:
                continue
            part = (extra.compute_s / first_s - size) / (extra.leases - size)
            part = min(max(part, LEAST_PART), MOST_PART)
            found.append(first_n * part / (1 - part))
        if waits:
            self._waits_s.append(median(waits))
        if found:
            self._fixed.append(median(found))
            self._passed, self._passed_s, self._unanswered = 0, 0.0, 0

    def as_one(
        self, samples: FloatArray, compute_s: FloatArray, extras: Mapping[int, Extra]
    ) -> FloatArray:
        """What each would have computed all its samples in, in a single lease."""
        fixed, out = self.samples, compute_s.copy()
        for row, extra in extras.items():
            if extra.sane and samples[row] >= 1:
                more = extra.leases * fixed
                out[row] *= (samples[row] + fixed) / (samples[row] + fixed + more)
        return out

    def passed(self, iteration_s: float) -> None:
        """An iteration is over."""
        self._passed += 1
        self._passed_s += max(iteration_s, 0.0)

    def trial_due(self, per_sample_s: float) -> bool:
        """Whether the next iteration is to have one lease more, of a granule; True begins the trial.

        `per_sample_s` is that of the middle worker. To be asked only while tail leases would pay if they were free.
        """
        cost_s = self.samples * per_sample_s + self.wait_s if self.known else 0.0
        patience = PATIENCE if self.known else AGAIN if self._unanswered else 1
        patience <<= max(self._unanswered - 1, 0)
        if self._passed < min(patience, MOST_PATIENCE) or self._passed_s * TRIALS_COST < cost_s:
            return False
        self._unanswered = min(self._unanswered + 1, 16)
        self._passed, self._passed_s = 0, 0.0
        return True
