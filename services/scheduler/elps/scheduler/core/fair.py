"""Max-min fairness: whoever has least for its weight is given to first."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from elps.scheduler.core.policy import Decision, Facts, HeldFact, QueuedFact
from elps.scheduler.core.sharing import Wish
from elps.scheduler.core.steering import Rule, steered


class Fair:
    """Everybody the same number of workers, and of shards, by weight and within its bounds.

    What one job cannot take the others share. Who is new waits for no more than that running jobs give up what they have
    above their share.
    """

    name, resizes = "fair", True

    def decide(self, facts: Facts) -> Decision:
        """See `Policy.decide`."""
        return steered(facts, _RULE)


class _Fair(Rule):
    margin = 1.0
    up, down = "has less than its fair share", "has more than its fair share"

    def order(self, queue: Sequence[QueuedFact], facts: Facts) -> list[QueuedFact]:
        return list(queue)

    def wishes(
        self, jobs: Sequence[HeldFact | QueuedFact], bounds: Sequence[tuple[int, int, int]]
    ) -> list[Wish]:
        return [
            Wish(job.job, *bound, partial(_worth, job.weight))
            for job, bound in zip(jobs, bounds, strict=True)
        ]


def _worth(weight: float, n: int) -> float:
    """Highest averages first is max-min fair."""
    return weight / n


_RULE = _Fair()
