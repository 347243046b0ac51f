"""Slots shared out by what each is worth: where one job gains more by a slot than another loses, it changes hands.

What is worth how much a policy says: the worth of a job's n-th slot, which never rises with `n`. So whatever the sizes
that one begins with, taking the best change again and again ends at the best sizes there are, but for the margin by
which a change has to pay. Beginning with the sizes that jobs have costs only as many steps as there is to change, and
leaves alone what is good enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Limits:
    """Of all jobs, in one order."""

    now: Sequence[int]
    """Slots that each has; those of a newcomer are none."""
    least: Sequence[int]
    most: Sequence[int]
    """Not below `least`."""


class Worth(Protocol):
    """What slots are worth to jobs, in that order. Asked of slots above the least; 0: the job has no use for it."""

    def of_all(self, n: Ints) -> Floats:
        """Of the n-th slot of each job."""
        ...

    def of(self, job: int, n: int) -> float:
        """Of the n-th slot of one."""
        ...


def shared_out(limits: Limits, worth: Worth, slots: int, margin: float) -> list[int]:
    """How many each should have: within its bounds, and no more than there are.

    One that has too much by its bounds is cut, one that has too little is given its least; if the leasts alone are more
    than `slots`, the leasts are returned. Of equals the earlier one is given to, and the later one taken from. A slot
    changes hands if what it is worth there is more than `margin` times (1 at least) what it is worth here.
    """
    least, most = np.asarray(limits.least, np.int64), np.asarray(limits.most, np.int64)
    at = np.clip(np.asarray(limits.now, np.int64), least, most)
    left = slots - int(at.sum())
    gains = _heap(-worth.of_all(at + 1), at, at < most, 1)
    losses = _heap(worth.of_all(at), at, at > least, -1)
    sizes: list[int] = at.tolist()

    def change(i: int, by: int) -> None:
        sizes[i] = n = sizes[i] + by
        if n < limits.most[i]:
            heappush(gains, (-worth.of(i, n + 1), i, n))
        if n > limits.least[i]:
            heappush(losses, (worth.of(i, n), -i, n))

    while left < 0 and losses:
        _, i, n = heappop(losses)
        if sizes[-i] == n:
            change(-i, -1)
            left += 1
    while gains and (gain := -gains[0][0]) > 0:
        _, i, n = gains[0]
        if sizes[i] != n:
            heappop(gains)
        elif left > 0:
            heappop(gains)
            change(i, 1)
            left -= 1
        else:
            while losses and sizes[-losses[0][1]] != losses[0][2]:
                heappop(losses)
            if left < 0 or not losses or gain <= margin * losses[0][0]:
                break
            change(-heappop(losses)[1], -1)
            change(i, 1)
    return sizes


def _heap(
    values: Floats, at: Ints, able: NDArray[np.bool_], sign: int
) -> list[tuple[float, int, int]]:
    """Values of those that are able, each with its place, or minus that, and its size."""
    which = np.flatnonzero(able)
    heap = list(
        zip(values[which].tolist(), (sign * which).tolist(), at[which].tolist(), strict=True)
    )
    heapify(heap)
    return heap
