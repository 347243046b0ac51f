"""Tail leases: a share of the batch that nobody is given beforehand.

No prediction follows speeds that jump. So part of the batch is held back and lent, in leases that shrink, to whoever is
free, within the same iteration: who was slower than foreseen takes less of it. Leases only subdivide the iteration's
interval, so nothing else in the system changes. Each one costs a request and a push more, so it is done only while the
jitter that is measured pays for that.

The sizes shrink as in guided self-scheduling (Polychronopoulos and Kuck, 1987) with the caution of factoring (Hummel,
Schonberg and Flynn, 1992): a worker is lent half of its share of what is left, so that when the last lease is handed
out all others are about to end.
"""

from __future__ import annotations

import numpy as np

from elps.balance.arrays import FloatArray

SHARES = (0.05, 0.1, 0.2, 0.3)
"""Shares of the batch that may be held back."""
PAYS = 0.02
"""Least mean gain for which it is begun; at half of it, it is ended."""
RECENT = 0.1
"""Weight of the newest iteration in the mean gain: about the last 10."""
WATCH = 5
"""Iterations to be watched first."""
HALF = 0.5
"""Part of a worker's share of the rest that one lease takes."""
ROUND_TRIP_S = 0.5e-3
"""What it takes to ask for a lease and get it, at least, with a busy leader in between; the push comes to that."""
LEASES = 3.0
"""Leases a worker takes of a tail, about, with halving sizes: what the gate reckons with."""
WORTH = 2.0
"""A lease takes at least so many times what it costs to fetch and push it."""


def least_lease(per_sample_s: float, extra_s: float, granule: int = 1) -> int:
    """Samples that a lease must have, at this speed, to be worth its `extra_s` (a request and a push)."""
    if not (per_sample_s > 0 and extra_s > 0) or not np.isfinite(extra_s / per_sample_s):
        return granule
    return max(1, int(np.ceil(WORTH * extra_s / per_sample_s / granule))) * granule


def least_part(expected_s: float, extra_s: float) -> float:
    """The same as a part of a whole batch that takes `expected_s`; 1 at most."""
    if not (expected_s > 0 and extra_s > 0):
        return 0.0
    return min(1.0, WORTH * extra_s / expected_s)


def next_lease(left: int, share_of_speed: float, granule: int = 1, least: int = 1) -> int:
    """Samples to lend to a worker that is free, of `left` ones; all of them if the rest would be too small.

    `share_of_speed` is its speed over that of all together. Multiples of `granule`, but for the last.
    """
    if left <= 0:
        return 0
    share = min(max(share_of_speed, 0.0), 1.0) if np.isfinite(share_of_speed) else 0.0
    wanted = max(int(left * share * HALF), least, 1)
    size = -(-wanted // granule) * granule
    return left if left - size < min(least, granule) else size


def held_back(total: int, share: float, granule: int = 1) -> int:
    """Samples of a batch to be lent as a tail; a whole number of granules, with the batch's short one if it has one."""
    if not 0 < share < 1:
        return 0
    given = int((1 - share) * total / granule) * granule
    return total - given


def finish_with_tail(
    finish_s: FloatArray, speed: FloatArray, share: float, total: float, extra_s: float
) -> float:
    """When an iteration ends of which `share` is held back: about, as if leases were as small as is worth while.

    `finish_s` is when each worker ends a whole batch without a tail, `speed` its samples per second. Each ends
    ``1 - share`` of it, fetches `LEASES` leases, and works on until nothing is left.
    """
    order = np.argsort(finish_s)
    return _finish(finish_s[order], np.cumsum(speed[order]), share, total, extra_s)


def _finish(
    finish_s: FloatArray, rate: FloatArray, share: float, total: float, extra_s: float
) -> float:
    """The same for workers in the order in which they finish; `rate` is the speed of the first ones together."""
    begin = (1 - share) * finish_s + LEASES * extra_s
    done = np.concatenate([[0.0], np.cumsum(rate[:-1] * np.diff(begin))])
    i = int(np.searchsorted(done, share * total, side="right")) - 1
    end = float(begin[i] + (share * total - done[i]) / rate[i])
    # Whoever has no time left for a lease still has to end its first part; and the last lease ends when it ends.
    return max(end, (1 - share) * float(finish_s[-1])) + HALF * WORTH * extra_s


class TailGate:
    """Decides from what was measured how much to hold back, 0 as a rule."""

    def __init__(self) -> None:
        self._gains = np.zeros(len(SHARES))  #: mean relative gain of each share
        self._seen = 0
        self.share = 0.0  #: of the next batch

    def observe(
        self, finish_s: FloatArray, speed: FloatArray, total: float, extra_s: float
    ) -> None:
        """One iteration as it would have been without a tail: when each ended its batch of the plan, and at what
        speed. `extra_s` is what a lease more costs.
        """
        if not len(finish_s) or not (total > 0 and finish_s.max() > 0 and (speed > 0).all()):
            return
        order = np.argsort(finish_s)
        finish_s, rate = finish_s[order], np.cumsum(speed[order])
        without = float(finish_s[-1])
        gains = [1 - _finish(finish_s, rate, s, total, extra_s) / without for s in SHARES]
        self._seen += 1
        weight = max(RECENT, 1 / self._seen)
        self._gains += weight * (np.clip(gains, -1.0, 1.0) - self._gains)
        best = int(np.argmax(self._gains))
        kept = SHARES.index(self.share) if self.share else best
        if self._gains[best] > self._gains[kept] + PAYS / 2:
            kept = best
        enough = PAYS / 2 if self.share else PAYS
        pays = self._seen >= WATCH and self._gains[kept] > enough
        self.share = SHARES[kept] if pays else 0.0

    @property
    def gain(self) -> float:
        """Mean relative gain of the best share."""
        return float(self._gains.max())
