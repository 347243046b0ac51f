"""Max-min fairness: whoever has least for its weight is given to first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from elps.scheduler.core.policy import Decision, Facts, HeldFact, QueuedFact
from elps.scheduler.core.sharing import Floats, Ints, Worth
from elps.scheduler.core.steering import Rule, steered


class Fair:
    """Everybody the same number of workers, and of shards, by weight and within its bounds.

    What one job cannot take the others share. Who is new waits for no more than that running jobs give up what they
    have above their share.
    """

    name, resizes, told_held = "fair", True, True

    def decide(self, facts: Facts) -> Decision:
        """See `Policy.decide`."""
        return steered(facts, _RULE)


class _Fair(Rule):
    margin = 1.0
    up, down = "has less than its fair share", "has more than its fair share"

    def worth(self, jobs: Sequence[HeldFact | QueuedFact]) -> Worth:
        return ByWeight([job.weight for job in jobs])


class ByWeight:
    """The n-th slot is worth the weight over n: highest averages first is max-min fair."""

    def __init__(self, weights: list[float]) -> None:
        self._weights = weights

    def of_all(self, n: Ints) -> Floats:
        """See `sharing.Worth`."""
        return np.asarray(self._weights) / np.maximum(n, 1)

    def of(self, job: int, n: int) -> float:
        """See `sharing.Worth`."""
        return self._weights[job] / n


_RULE = _Fair()
