"""How much better a job is expected to become: its losses so far, and a curve through them.

Training converges, so the loss at iteration k is taken to be ``a / (k + b) + c`` (after Optimus, EuroSys 2018, section
3.1, where it has the same form). What counts is not how far the loss falls, which no two jobs can be compared by, but
which part of all that there was to gain from its first iteration on: a number from 0 to 1 for every job (after SLAQ,
SoCC 2017, which divides by the largest fall so far). Then jobs that have flattened give way to those that still learn,
within bounds, and never below their least.

Losses are means over spans of equally many iterations, few enough to be fitted in less than a millisecond: when there
are too many, neighbours become one. What is no finite number is passed over. A curve that does not fall, be it flat or
rising, promises nothing.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

KEPT = 32
"""Spans, at most; an even number."""
FEWEST = 6
"""Spans that a curve needs to be of any use."""
REFITTED = 8
"""One span in so many has to be new."""
FINEST, BENDS, NEARER = 0.01, (1, 3, 10, 30, 100, 300, 1000), (0.58, 0.76, 1.32, 1.73)
"""How soon a curve bends: counted from the first loss `b` is this part of the iterations that were seen, times each of
those; then the best of them times each of these."""
BELIEVED = 0.25
"""Part of the variance that a curve explains at least: what explains less is found in noise as well."""
LARGEST = 1e12
"""A loss beyond that is taken for none: its square would be no number."""

LEAST, MOST = 0.5, 2.0
"""What a job may count for what its curve promises, over the median job: it is not to outweigh that a newcomer has not
given its early feedback (`eps.UNFED`), nor to take from one job all that it has above its least."""
STEP = math.log(2) / 4
"""Promises are told in steps, as logarithms: what is within 9 % is the same."""
HORIZON_S = 600.0
"""Of training with one worker: so far ahead jobs are compared."""


@dataclass(frozen=True)
class Fitted:
    """``a / (k + b) + c``, with `a` 0 at least."""

    first: float
    """The iteration from which on there was something to gain."""
    last: float
    a: float
    b: float
    c: float
    sure: float
    """Part of the losses' variance that it explains, adjusted for its three parameters."""

    def at(self, iteration: float) -> float:
        """The loss."""
        return self.a / (iteration + self.b) + self.c

    def promise(self, iterations: float) -> float:
        """Part of all there was to gain that so many iterations more would bring, from 0 to 1."""
        if self.a <= 0 or iterations <= 0:
            return 0.0
        behind, ahead = self.last + self.b, self.last + self.b + iterations
        return self.sure * (self.first + self.b) * (1 / behind - 1 / ahead)


class LossCurve:
    """The losses of one job."""

    def __init__(self) -> None:
        self._spans: list[tuple[float, float]] = []  #: mean iteration and loss of each that is full
        self._size = 1  #: losses in each
        self._open: list[tuple[int, float]] = []
        self._newest = -1
        self._lost = 0  #: times in a row that it told none
        self._fit: Fitted | None = None
        self._unfitted = 0  #: spans since the newest fit

    def seen(self, iteration: int, loss: object) -> None:
        """The job is at an iteration; its loss there, if that is one."""
        if iteration < self._newest:  # it went back to a checkpoint
            self._spans = [span for span in self._spans if span[0] < iteration]
            self._open = [seen for seen in self._open if seen[0] < iteration]
            self._unfitted = KEPT
        if iteration == self._newest:
            return
        self._newest = iteration
        self._lost += 1
        if not isinstance(loss, float | int) or isinstance(loss, bool):
            return
        if not abs(loss) <= LARGEST:  # nor is what is no number at all
            return
        self._lost = 0
        self._open.append((iteration, float(loss)))
        if len(self._open) >= self._size:
            self._spans.append(_mean(self._open))
            self._open = []
            self._unfitted += 1
        if len(self._spans) >= KEPT:
            pairs = zip(self._spans[::2], self._spans[1::2], strict=True)
            self._spans = [_mean(pair) for pair in pairs]
            self._size *= 2

    @property
    def fit(self) -> Fitted | None:
        """The curve; None as long as too little was seen, or losses have ended: what it promised is not to be had then.

        One more span in many is not fitted anew.
        """
        if self._lost >= FEWEST:
            return None
        if self._unfitted * REFITTED > len(self._spans) or (self._fit is None and self._unfitted):
            self._fit, self._unfitted = fitted(self._spans), 0
        return self._fit


def fitted(points: Sequence[tuple[float, float]]) -> Fitted | None:
    """The curve through iterations, ascending, and losses: least squares, the best of some bends."""
    if len(points) < FEWEST or points[-1][0] <= points[0][0]:
        return None
    first, last = points[0][0], points[-1][0]
    losses = [loss for _, loss in points]
    mean = math.fsum(losses) / len(losses)
    spread = math.fsum((loss - mean) ** 2 for loss in losses)
    flat = Fitted(first, last, 0.0, 1.0, mean, 1.0)
    best, least = flat, spread
    part = FINEST
    for parts in (BENDS, NEARER):
        for by in parts:
            found, left = _bent(points, part * by)
            if left < least:
                best, least = found, left
        part = (best.first + best.b) / (last - first)
    if not spread or best is flat:
        return flat
    sure = 1 - least / spread * (len(points) - 1) / (len(points) - 4)
    return replace(best, sure=sure) if sure >= BELIEVED else flat


def _bent(points: Sequence[tuple[float, float]], part: float) -> tuple[Fitted, float]:
    """The best curve of one bend, and the sum of the squares that it leaves; infinite if it would rise."""
    first, last = points[0][0], points[-1][0]
    bend = part * (last - first) - first  # counted from the first that was seen
    if first + bend <= 0:  # iterations of so many digits that the bend is lost in their rounding
        return Fitted(first, last, 0.0, 1.0, 0.0, 0.0), math.inf
    xs = [1 / (k + bend) for k, _ in points]
    x, y = math.fsum(xs) / len(xs), math.fsum(loss for _, loss in points) / len(xs)
    over = math.fsum((at - x) * (loss - y) for at, (_, loss) in zip(xs, points, strict=True))
    if over <= 0:
        return Fitted(first, last, 0.0, bend, y, 0.0), math.inf
    a = over / math.fsum((at - x) ** 2 for at in xs)
    fit = Fitted(first, last, a, bend, y - a * x, 0.0)
    return fit, math.fsum((fit.at(k) - loss) ** 2 for k, loss in points)


def standings(promises: Sequence[float | None]) -> list[float]:
    """What each counts for its promise: over the median of those that are known, which the others count as."""
    known = [promise for promise in promises if promise is not None]
    if len(known) < 2:
        return [1.0] * len(promises)
    middle = statistics.median(known)
    return [1.0 if promise is None else _standing(promise, middle) for promise in promises]


def _standing(promise: float, middle: float) -> float:
    if promise == middle:
        return 1.0
    if middle <= 0:
        return MOST
    over = min(max(promise / middle, LEAST), MOST)
    return math.exp(round(math.log(over) / STEP) * STEP)


def _mean(seen: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return (
        math.fsum(at for at, _ in seen) / len(seen),
        math.fsum(loss for _, loss in seen) / len(seen),
    )
