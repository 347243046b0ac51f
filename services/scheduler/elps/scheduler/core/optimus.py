"""Marginal gain: the next worker goes to the job whose remaining time falls most by it.

After Optimus (Peng, Bao, Chen, Wu, Guo; EuroSys 2018, section 4.1). It differs in three ways: shards are shared by
weight, since their effect on the speed is not measured; a worker changes its job only if that pays by a margin; and
jobs of which nothing is known count as of middling length, where Optimus runs each on a few samples beforehand.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from elps.scheduler.core.policy import Decision, Facts, HeldFact, QueuedFact
from elps.scheduler.core.sharing import Floats, Ints, Worth
from elps.scheduler.core.steering import Rule, steered
from elps.scheduler.core.work import works


class Optimus:
    """A worker goes where it takes most off the time to completion, times the job's weight."""

    name, resizes, told_held = "optimus", True, True

    def decide(self, facts: Facts) -> Decision:
        """See `Policy.decide`."""
        return steered(facts, _RULE)


class _Optimus(Rule):
    margin = 1.25
    up, down = "its time to completion falls most by it", "it takes more off the time of others"

    def worth(self, jobs: Sequence[HeldFact | QueuedFact]) -> Worth:
        return _Saved(jobs)


class _Saved:
    """Seconds taken off by the n-th worker, times the weight: what is shared by n workers falls by 1 / (n (n - 1))."""

    def __init__(self, jobs: Sequence[HeldFact | QueuedFact]) -> None:
        self._shared = [
            job.weight * left * job.parts_s[1] / sum(job.parts_s)
            for job, left in zip(jobs, works(jobs), strict=True)
        ]

    def of_all(self, n: Ints) -> Floats:
        """See `sharing.Worth`."""
        saved: Floats = np.asarray(self._shared) / np.maximum(n * (n - 1), 1)
        return saved

    def of(self, job: int, n: int) -> float:
        """See `sharing.Worth`."""
        return self._shared[job] / max(n * (n - 1), 1)


_RULE = _Optimus()
