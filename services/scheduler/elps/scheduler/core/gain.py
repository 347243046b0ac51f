"""How fast a job would be with another number of workers: measured rates, and a model of what was not measured.

An iteration takes ``a + b / n`` with `n` workers: a part that more workers do not shorten, and one that they share.
Where machines differ `n` is their *power*: how many usual workers they are worth (`machines`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from elps.scheduler.core.costs import ChangeCost

SERIAL = 0.1
"""Share of an iteration that more workers do not shorten, as long as one number of workers was measured or none."""
LEAST_S = 0.5
"""A rate is told from what was done in so much time at least."""
FADES_S = 300.0
"""A rate that was not measured anew for so long is forgotten: a job's iterations change with time."""
NEWEST = 0.3
"""Weight of the newest measurement."""

LEAST_GAIN = 0.02
"""A worker more makes a job faster by this much at least, else it stays free."""
REMEMBERED = 16_384
"""Fits that are kept, since each decision asks for the same ones again."""

SAME = 1 + 1e-6
"""Powers that differ by less are one: four usual workers, and three others that are worth as much but for rounding."""

SLOWEST, FASTEST = 1e-9, 1e9
"""Iterations per second that can be believed."""

Rates = Sequence[tuple[float, float]]
"""Power of the workers and iterations per second, ascending."""


@dataclass
class _Change:
    """Other workers take part: when a job was how far, and what is to be known yet of what that has cost."""

    began: tuple[float, int]  #: the last time and iteration known with those before
    rate: float  #: with them
    switched: tuple[float, int]  #: the first one known with those after
    over: tuple[float, int] | None = None  #: after the first stretch with them


class Speeds:
    """Measures a job's rate by its workers, and what it costs to change them, from how far it is at each heartbeat."""

    def __init__(self) -> None:
        self._rates: dict[
            int, tuple[float, float, float]
        ] = {}  #: workers to rate, when it was measured, and their power
        self._since: tuple[float, int, int] | None = None  #: time, iteration, workers
        self._warm = (
            False  #: the first stretch with these workers is over: compilation, waits for who came
        )
        self._ordered = False  #: the next change of the workers is one that was decided
        self._change: _Change | None = None
        self.cost = ChangeCost()

    def resized(self) -> None:
        """The job is to have another number of workers: what that costs is measured once they are there."""
        self._ordered = True

    def seen(self, at: float, iteration: int, workers: int, power: float | None = None) -> None:
        """So many workers take part, and the job is so far, at a time in monotonic seconds."""
        since = self._since
        if since is None or iteration < since[1] or not workers:
            self._since, self._warm, self._change = (at, iteration, workers), False, None
            return
        if workers != since[2]:
            self._change = self._begun(since, at, iteration)
            self._since, self._warm = (at, iteration, workers), False
            return
        seconds, done = at - since[0], iteration - since[1]
        if seconds < LEAST_S or not done:
            return
        self._since = (at, iteration, workers)
        if not self._warm:
            self._warm = True
            if self._change is not None:
                self._change.over = at, iteration
            return
        rate = done / seconds
        self._learn(rate)
        if (known := self._rates.get(workers)) is not None:
            rate = known[0] + NEWEST * (rate - known[0])
        self._rates[workers] = (rate, at, float(workers) if power is None else power)
        self._rates = {n: r for n, r in self._rates.items() if at - r[1] < FADES_S}

    def _begun(self, since: tuple[float, int, int], at: float, iteration: int) -> _Change | None:
        """A change to be measured: one that was decided, from workers with a known rate, and no other one under way."""
        known = self._rates.get(since[2])
        ordered, self._ordered = self._ordered, False  # later ones nobody has decided
        if not ordered or known is None or self._change is not None:
            return None
        return _Change(since[:2], known[0], (at, iteration))

    def _learn(self, rate: float) -> None:
        """The rate after a change is known: what was not done that would have been by the two is what it has cost."""
        change = self._change
        if change is None or change.over is None:
            return
        between_s = (
            change.switched[0] - change.began[0]
        )  # it was somewhere there, so half of it each
        expected = between_s * (change.rate + rate) / 2
        expected += (change.over[0] - change.switched[0]) * rate
        self.cost.learn((expected - (change.over[1] - change.began[1])) / rate)
        self._change = None

    @property
    def rates(self) -> tuple[tuple[float, float], ...]:
        """As measured."""
        return tuple(sorted((power, rate) for rate, _, power in self._rates.values()))


def time_s(rates: Rates, power: float) -> float:
    """Seconds of an iteration with so many workers; in any unit while nothing was measured."""
    fixed, shared = fitted(tuple(rates))
    return fixed + shared / (power or 1)


def gain(rates: Rates, before: float, after: float) -> float:
    """Logarithm of how many times as fast a job would be with other workers; none count as one."""
    fixed, shared = fitted(tuple(rates))
    return math.log((fixed + shared / (before or 1)) / (fixed + shared / (after or 1)))


@lru_cache(maxsize=REMEMBERED)
def fitted(rates: tuple[tuple[float, float], ...]) -> tuple[float, float]:
    """The part of an iteration's time that more workers do not shorten, and the one that they share; in seconds."""
    known = sorted({n: 1 / rate for n, rate in rates if n > 0 and SLOWEST < rate < FASTEST}.items())
    told: list[list[tuple[float, float]]] = []
    for n, seconds in known:
        if told and n <= told[-1][0][0] * SAME:
            told[-1].append((n, seconds))
        else:
            told.append([(n, seconds)])
    return _fitted([(same[0][0], sum(s for _, s in same) / len(same)) for same in told])


def _fitted(known: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The two parts of an iteration's time, by least squares, neither below 0."""
    if len(known) < 2:
        n, seconds = known[0] if known else (1, 1.0)
        return SERIAL * seconds, (1 - SERIAL) * seconds * n
    xs, ys = [1 / n for n, _ in known], [seconds for _, seconds in known]
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    over = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True))
    shared = max(0.0, over / sum((x - mean_x) ** 2 for x in xs))
    fixed = mean_y - shared * mean_x
    if fixed < 0:
        return 0.0, sum(x * y for x, y in zip(xs, ys, strict=True)) / sum(x * x for x in xs)
    return fixed, shared
