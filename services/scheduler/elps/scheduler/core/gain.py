"""How fast a job would be with another number of workers: measured rates, and a model of what was not measured.

An iteration takes ``a + b / n`` with `n` workers: a part that more workers do not shorten, and one that they share.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

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

SLOWEST, FASTEST = 1e-9, 1e9
"""Iterations per second that can be believed."""

Rates = Sequence[tuple[int, float]]
"""Number of workers and iterations per second, ascending."""


class Speeds:
    """Measures a job's rate by its number of workers, from how far it is at each heartbeat."""

    def __init__(self) -> None:
        self._rates: dict[
            int, tuple[float, float]
        ] = {}  #: workers to rate, and when it was measured
        self._since: tuple[float, int, int] | None = None  #: time, iteration, workers
        self._warm = (
            False  #: the first stretch with these workers is over: compilation, waits for who came
        )

    def seen(self, at: float, iteration: int, workers: int) -> None:
        """So many workers take part, and the job is so far, at a time in monotonic seconds."""
        since = self._since
        if since is None or workers != since[2] or iteration < since[1] or not workers:
            self._since, self._warm = (at, iteration, workers), False
            return
        seconds, done = at - since[0], iteration - since[1]
        if seconds < LEAST_S or not done:
            return
        self._since = (at, iteration, workers)
        if not self._warm:
            self._warm = True
            return
        rate = done / seconds
        if (known := self._rates.get(workers)) is not None:
            rate = known[0] + NEWEST * (rate - known[0])
        self._rates[workers] = (rate, at)
        self._rates = {n: r for n, r in self._rates.items() if at - r[1] < FADES_S}

    @property
    def rates(self) -> tuple[tuple[int, float], ...]:
        """As measured."""
        return tuple((n, rate) for n, (rate, _) in sorted(self._rates.items()))


def time_s(rates: Rates, workers: int) -> float:
    """Seconds of an iteration with so many workers; in any unit while nothing was measured."""
    fixed, shared = fitted(tuple(rates))
    return fixed + shared / max(workers, 1)


def gain(rates: Rates, before: int, after: int) -> float:
    """Logarithm of how many times as fast a job would be with another number of workers."""
    fixed, shared = fitted(tuple(rates))
    return math.log((fixed + shared / max(before, 1)) / (fixed + shared / max(after, 1)))


@lru_cache(maxsize=REMEMBERED)
def fitted(rates: tuple[tuple[int, float], ...]) -> tuple[float, float]:
    """The part of an iteration's time that more workers do not shorten, and the one that they share; in seconds."""
    known = {n: 1 / rate for n, rate in rates if n > 0 and SLOWEST < rate < FASTEST}
    return _fitted(sorted(known.items()))


def _fitted(known: Sequence[tuple[int, float]]) -> tuple[float, float]:
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
