"""The plan that iterations are cut by: what the scheduler last said, and what follows for the workers there are.

A plan never touches what is cut already: an interval once lent is fixed, so a plan counts from the next fresh cut on,
and then whole. It may be lost, doubled or late, and name workers that are gone or lack some that came since.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from elps.balance.tail import held_back, next_lease
from elps.contracts.ids import WorkerId

NEWCOMER = 4
"""A worker that the plan does not name yet gets a part of what the others have on average, one over this: of its speed
nothing is known, and the next plan will say better."""


MOST_HELD_BACK = 0.5


class Tail(NamedTuple):
    """What of a batch is held back, and lent in shrinking leases to whoever is free (`elps.balance.tail`)."""

    share: float = 0.0
    """Of the batch; 0: nothing is."""
    least: float = 0.0
    """Part of its own share of the batch that a worker's lease has at least: a smaller one is not worth its request."""
    trial: int = 0
    """Samples of the next fresh cut alone that are held back for a single lease: what one costs is to be seen."""

    def sane(self) -> Tail:
        """What can be done: a tail that cannot be is none."""
        share, least = (x if math.isfinite(x) else 0.0 for x in self[:2])
        return Tail(
            min(max(share, 0.0), MOST_HELD_BACK), min(max(least, 0.0), 1.0), max(self.trial, 0)
        )


class Batches:
    """Outlives the epochs of a term, as the numbers of its plans do."""

    def __init__(self) -> None:
        self.number = 0  #: of the newest plan heard; 0: none was
        self.planned: dict[WorkerId, int] = {}
        self.reason = ""
        self.tail = Tail()

    def plan(
        self,
        number: int,
        shares: Mapping[WorkerId, int],
        reason: str = "",
        tail: Tail = Tail(),  # noqa: B008 (it never changes)
    ) -> bool:
        """Take a plan; False if it is late or a repeat. Shares that cannot be are none."""
        if number <= self.number:
            return False
        self.number, self.reason = number, reason
        self.planned = {worker: max(0, share) for worker, share in shares.items()}
        self.tail = tail.sane()
        return True

    def rebalances(self, shares: Mapping[WorkerId, int], tail: Tail) -> bool:
        """Whether a plan is worth telling: any but a first one that only says that equal shares fit."""
        sizes = shares.values()
        equal = max(sizes, default=0) - min(sizes, default=0) <= 1 and tail == Tail()
        return bool(self.number) or not equal

    def shares(self, workers: Iterable[WorkerId]) -> dict[WorkerId, int]:
        """In what proportion a fresh cut is shared out: by the plan as far as it goes, otherwise equally."""
        there = sorted(workers)
        known = {w: self.planned[w] for w in there if w in self.planned}
        if not sum(known.values()):
            return dict.fromkeys(there, 1)
        new = len(there) - len(known)
        # Multiplied out, so that whole numbers stay exact: the mean of the known ones over NEWCOMER.
        scale = NEWCOMER * len(known) if new else 1
        part = sum(known.values())
        return {w: known[w] * scale if w in known else part for w in there}

    def hold_back(self, samples: int, granule: int) -> int:
        """Samples of an iteration of so many, which is cut now, that nobody is given beforehand."""
        share, trial = self.tail.share, self.tail.trial
        self.tail = self.tail._replace(trial=0)
        if share or not 0 < trial < MOST_HELD_BACK * samples:
            return held_back(samples, share, granule)
        return samples - (samples - trial) // granule * granule

    def tail_lease(
        self, worker: WorkerId, workers: Iterable[WorkerId], left: int, granule: int
    ) -> int:
        """Samples of a tail that a worker is lent which is free, `left` ones being left; 0 if it is to sit out.

        Whoever got nothing of the batch is not to have the others wait for a part of it.
        """
        shares = self.shares(workers)
        if not shares.get(worker):
            return 0
        least = math.ceil(self.tail.least * self.planned.get(worker, 0))
        return next_lease(left, shares[worker] / sum(shares.values()), granule, least)
