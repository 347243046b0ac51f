"""The plan that iterations are cut by: what the scheduler last said, and what follows for the workers there are.

A plan never touches what is cut already: an interval once lent is fixed, so a plan counts from the next fresh cut on,
and then whole. It may be lost, doubled or late, and name workers that are gone or lack some that came since.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from elps.contracts.ids import WorkerId

NEWCOMER = 4
"""A worker that the plan does not name yet gets a part of an equal share, one over this: of its speed nothing is known,
and the next plan will say better."""


class Batches:
    """Outlives the epochs of a term, as the numbers of its plans do."""

    def __init__(self) -> None:
        self.number = 0  #: of the newest plan heard; 0: none was
        self.planned: dict[WorkerId, int] = {}
        self.reason = ""

    def plan(self, number: int, shares: Mapping[WorkerId, int], reason: str = "") -> bool:
        """Take a plan; False if it is late or a repeat. Shares that cannot be are none."""
        if number <= self.number:
            return False
        self.number, self.reason = number, reason
        self.planned = {worker: max(0, share) for worker, share in shares.items()}
        return True

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
