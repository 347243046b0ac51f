"""Slots shared out by what each is worth: where one job gains more by a slot than another loses, it changes hands.

What is worth how much a policy says: the worth of a job's n-th slot, which never rises with `n`. So whatever the sizes
that one begins with, taking the best change again and again ends at the best sizes there are, but for the margin by
which a change has to pay. Beginning with the sizes that jobs have costs only as many steps as there is to change, and
leaves alone what is good enough.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from elps.contracts.ids import JobId


@dataclass(frozen=True, slots=True)
class Wish:
    """A job, and what slots are worth to it."""

    job: JobId
    now: int
    """Slots that it has; those of a newcomer are none."""
    least: int
    most: int
    """Not below `least`."""
    worth: Callable[[int], float]
    """Of its n-th slot, from the one after its least on; 0: it has no use for it."""


def shared_out(wishes: Sequence[Wish], slots: int, margin: float) -> list[int]:
    """How many each should have, in their order: within its bounds, and no more than there are.

    One that has too much by its bounds is cut, one that has too little is given its least; if the leasts alone are more
    than `slots`, the leasts are returned. Of equals the earlier one is given to, and the later one taken from. A slot
    changes hands if what it is worth there is more than `margin` times (1 at least) what it is worth here.
    """
    sizes = [min(max(wish.now, wish.least), wish.most) for wish in wishes]
    left = slots - sum(sizes)
    gains = [
        (-wish.worth(n + 1), i, n)
        for i, (wish, n) in enumerate(zip(wishes, sizes, strict=True))
        if n < wish.most
    ]
    losses = [
        (wish.worth(n), -i, n)
        for i, (wish, n) in enumerate(zip(wishes, sizes, strict=True))
        if n > wish.least
    ]
    heapify(gains)
    heapify(losses)

    def change(i: int, by: int) -> None:
        sizes[i] += by
        n, wish = sizes[i], wishes[i]
        if n < wish.most:
            heappush(gains, (-wish.worth(n + 1), i, n))
        if n > wish.least:
            heappush(losses, (wish.worth(n), -i, n))

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
