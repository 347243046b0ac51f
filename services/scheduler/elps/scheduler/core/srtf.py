"""Shortest remaining time first: who is done soonest has all that it can use."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from elps.contracts.ids import JobId
from elps.scheduler.core.gain import LEAST_GAIN, gain
from elps.scheduler.core.policy import Decision, Facts, HeldFact, QueuedFact
from elps.scheduler.core.sharing import Wish
from elps.scheduler.core.steering import Rule, steered
from elps.scheduler.core.work import works


class Srtf:
    """The job with the least work left (`work`) is given as many workers as it has a use for, then the next one.

    The others keep their least, since nobody is stopped for another. Whoever waits is served in the same order, so a
    long job may wait for as long as shorter ones arrive; jobs of which nothing is known count as of middling length.
    """

    name, resizes = "srtf", True

    def decide(self, facts: Facts) -> Decision:
        """See `Policy.decide`."""
        return steered(facts, _Srtf(works([*facts.held, *facts.queued])))


class _Srtf(Rule):
    margin = 1.25
    up, down = "is done sooner than others", "others are done sooner"

    def __init__(self, left: dict[JobId, float]) -> None:
        self._left = left

    def order(self, queue: Sequence[QueuedFact], facts: Facts) -> list[QueuedFact]:
        return sorted(queue, key=lambda job: self._left[job.job])

    def wishes(
        self, jobs: Sequence[HeldFact | QueuedFact], bounds: Sequence[tuple[int, int, int]]
    ) -> list[Wish]:
        return [
            Wish(job.job, *bound, partial(_worth, job, 1 / self._left[job.job]))
            for job, bound in zip(jobs, bounds, strict=True)
        ]


def _worth(job: HeldFact | QueuedFact, hurry: float, n: int) -> float:
    return hurry if n <= 1 or gain(job.rates, n - 1, n) > LEAST_GAIN else 0.0
