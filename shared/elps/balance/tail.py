"""Tail leases: a share of the batch that nobody is given beforehand.

No prediction follows speeds that jump. So part of the batch is held back and lent, in leases that shrink, to whoever is
free, within the same iteration: who was slower than foreseen takes less of it. Leases only subdivide the iteration's
interval, so nothing else in the system changes. Each one costs a request and a push more, so it is done only while the
jitter that is measured pays for that.

The sizes shrink as in guided self-scheduling (Polychronopoulos and Kuck, 1987) with the caution of factoring (Hummel,
Schonberg and Flynn, 1992): a worker is lent a part of its share of what is left, so that when the last lease is handed
out all others are about to end. Few and large leases are better than many small ones: on recorded jobs, at the costs of
a lease that are met here, this part and the least size that are set below do best.
"""

from __future__ import annotations

import numpy as np

from elps.balance.arrays import FloatArray

SHARES = (0.05, 0.1, 0.2, 0.3)
"""Shares of the batch that may be held back."""
_SHARES = np.array(SHARES)
PAYS, ENDS = 0.015, 0.0
"""Mean gain above which it is begun, and at which it is ended; another share has to promise `BETTER` more."""
BETTER = 0.01
SLACK = 0.005
"""Of a gain: the smallest share that comes so near the best one is taken, since leases burden others, too."""
RECENT = 0.1
"""Weight of the newest iteration in the mean gain: about the last 10."""
WATCH = 5
"""Iterations to be watched first."""
REALLY, FADE = 0.1, 0.995
"""Weight of the newest iteration with a tail in how far its gain falls short of the one reckoned with; and what is left
of that after any iteration, so that a tail that was none too good is tried again, a few hundred iterations later."""
ROUGHLY = 0.02
"""Falling short by so much is nothing: it is what the reckoning leaves out."""
PART = 0.7
"""Of a worker's share of the rest, what one lease takes."""
LEASES = 2.0
"""Leases a worker takes of a tail, about, with halving sizes: what the gate reckons with. Fewer, at least one, where
leases that are worth their cost are so large that there are not so many in its share of the tail."""
WORTH = 4.0
"""A lease takes at least so many times what it costs to fetch and push it."""


LAST = 0.25
"""Of the least lease, what the last one keeps the others waiting, on average."""


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
    wanted = max(int(left * share * PART), least, 1)
    size = -(-wanted // granule) * granule
    return left if left - size < min(least, granule) else size


def held_back(total: int, share: float, granule: int = 1) -> int:
    """Samples of a batch to be lent as a tail; a whole number of granules, with the batch's short one if it has one."""
    if not 0 < share < 1:
        return 0
    given = int((1 - share) * total / granule) * granule
    return total - given


def finish_with_tail(
    finish_s: FloatArray,
    speed: FloatArray,
    share: float,
    total: float,
    extra_s: float,
    fixed_s: FloatArray | float = 0.0,
) -> float:
    """When an iteration ends of which `share` is held back: about, as if leases were as small as is worth while.

    `finish_s` is when each worker ends a whole batch without a tail, `speed` its samples per second once a lease is
    begun. Each ends ``1 - share`` of it, fetches up to `LEASES` more, and works on until nothing is left. A lease costs
    `extra_s` to fetch and push, and each worker `fixed_s` whatever its size, which is in `finish_s` once.
    """
    fixed = np.broadcast_to(np.asarray(fixed_s, dtype=np.float64), finish_s.shape)
    return float(_ends(finish_s, speed, fixed, np.array([share]), total, extra_s)[0])


def _ends(
    finish_s: FloatArray,
    speed: FloatArray,
    fixed_s: FloatArray,
    shares: FloatArray,
    total: float,
    extra_s: float,
) -> FloatArray:
    """The same for several shares at once."""
    lease_s = extra_s + _middle(fixed_s)
    least = least_part(_middle(finish_s), lease_s)
    leases = np.clip(shares / least, 1.0, LEASES) if least else np.full(len(shares), LEASES)
    main = finish_s - shares[:, None] * np.maximum(finish_s - fixed_s, 0.0)
    begin = main + leases[:, None] * (extra_s + fixed_s)
    order = np.argsort(begin, axis=1)
    begin, rate = np.take_along_axis(begin, order, axis=1), np.cumsum(speed[order], axis=1)
    done = np.zeros_like(begin)
    np.cumsum(rate[:, :-1] * np.diff(begin, axis=1), axis=1, out=done[:, 1:])
    wanted = shares * total
    i = (done <= wanted[:, None]).sum(axis=1) - 1
    row = np.arange(len(shares))
    ends = begin[row, i] + (wanted - done[row, i]) / rate[row, i]
    # Whoever has no time left for a lease still has to end its first part; and the last lease ends when it ends.
    latest: FloatArray = np.maximum(ends, main.max(axis=1)) + LAST * WORTH * lease_s
    return latest


def _middle(values: FloatArray) -> float:
    """The upper median: numpy's takes ten times as long on a few workers."""
    return float(np.partition(values, len(values) // 2)[len(values) // 2])


def _gains(
    finish_s: FloatArray, speed: FloatArray, fixed_s: FloatArray, total: float, extra_s: float
) -> FloatArray:
    """Relative gain of each share in one iteration."""
    ends = _ends(finish_s, speed, fixed_s, _SHARES, total, extra_s)
    gains: FloatArray = np.clip(1 - ends / float(finish_s.max()), -1.0, 1.0)
    return gains


class TailGate:
    """Decides from what was measured how much to hold back, 0 as a rule.

    Nothing, before it is known what a lease costs: `hopeful` says whether that is worth knowing. What is reckoned is
    put right by what iterations with a tail have really taken.
    """

    def __init__(self) -> None:
        self._gains = np.zeros(len(SHARES))  #: mean relative gain of each share
        self._hopes = np.zeros(
            len(SHARES)
        )  #: the same if a call of the task cost nothing by itself
        self._seen, self._hoped = 0, 0
        self._short = 0.0  #: usual real gain less the one reckoned with
        self.share = 0.0  #: of the next batch

    def observe(
        self,
        finish_s: FloatArray,
        speed: FloatArray,
        total: float,
        extra_s: float,
        *,
        fixed_s: FloatArray | float | None = 0.0,
        took_s: float | None = None,
    ) -> None:
        """One iteration as it would have been without a tail: when each ended its batch of the plan, and at what
        speed. `extra_s` is what it costs to fetch and push a lease, `fixed_s` what each takes whatever its size; None:
        that is not known. `took_s` is how long it really was, if it had a tail.
        """
        if not len(finish_s) or not (total > 0 and finish_s.max() > 0 and (speed > 0).all()):
            return
        nothing = np.zeros_like(finish_s)
        self._hoped += 1
        hopes = _gains(finish_s, speed, nothing, total, extra_s)
        self._hopes += max(RECENT, 1 / self._hoped) * (hopes - self._hopes)
        if fixed_s is None:
            self.share = 0.0
            return
        self._seen += 1
        gains = _gains(finish_s, speed, nothing + fixed_s, total, extra_s)
        self._gains += max(RECENT, 1 / self._seen) * (gains - self._gains)
        self._short *= FADE
        if took_s is not None and self.share and np.isfinite(took_s):
            real = max(1 - took_s / float(finish_s.max()), -1.0)
            short = real - float(gains[SHARES.index(self.share)])
            self._short += REALLY * (short - self._short)
        self.share = self._chosen()

    def _chosen(self) -> float:
        gains = self._gains + self._correction
        best = int(np.argmax(gains > gains.max() - SLACK))
        kept = SHARES.index(self.share) if self.share else best
        if gains[best] > gains[kept] + BETTER:
            kept = best
        enough = ENDS if self.share else PAYS
        return SHARES[kept] if self._seen >= WATCH and gains[kept] > enough else 0.0

    @property
    def _correction(self) -> float:
        """What is taken off every gain."""
        return min(self._short + ROUGHLY, 0.0)

    @property
    def gain(self) -> float:
        """Mean relative gain of the best share."""
        return float(self._gains.max()) + self._correction

    @property
    def hopeful(self) -> bool:
        """Whether a tail would pay if a call of the task cost nothing by itself: what it costs is worth knowing."""
        return self._hoped >= WATCH and float(self._hopes.max()) + self._correction > PAYS
