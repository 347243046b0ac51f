"""Marginal gain: the next worker goes to the job whose remaining time falls most by it.

After Optimus (Peng, Bao, Chen, Wu, Guo; EuroSys 2018, section 4.1). It differs in three ways: shards are shared by
weight, since their effect on the speed is not measured; a worker changes its job only if that pays by a margin; and
jobs of which nothing is known count as of middling length, where Optimus runs each on a few samples beforehand.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from elps.contracts.ids import JobId
from elps.scheduler.core.gain import time_s
from elps.scheduler.core.policy import Decision, Facts, HeldFact, QueuedFact
from elps.scheduler.core.sharing import Wish
from elps.scheduler.core.steering import Rule, steered
from elps.scheduler.core.work import works


class Optimus:
    """A worker goes where it takes most off the time to completion, times the job's weight."""

    name, resizes = "optimus", True

    def decide(self, facts: Facts) -> Decision:
        """See `Policy.decide`."""
        return steered(facts, _Optimus(works([*facts.held, *facts.queued])))


class _Optimus(Rule):
    margin = 1.25
    up, down = "its time to completion falls most by it", "it takes more off the time of others"

    def __init__(self, left: dict[JobId, float]) -> None:
        self._left = left

    def order(self, queue: Sequence[QueuedFact], facts: Facts) -> list[QueuedFact]:
        return list(queue)

    def wishes(
        self, jobs: Sequence[HeldFact | QueuedFact], bounds: Sequence[tuple[int, int, int]]
    ) -> list[Wish]:
        return [
            Wish(job.job, *bound, partial(_worth, job, job.weight * self._left[job.job]))
            for job, bound in zip(jobs, bounds, strict=True)
        ]


def _worth(job: HeldFact | QueuedFact, left: float, n: int) -> float:
    """Seconds taken off by the n-th worker, times the weight."""
    one = time_s(job.rates, 1)
    saved = time_s(job.rates, n - 1) - time_s(job.rates, n) if n > 1 else one
    return left * saved / one
