"""Shortest remaining time first: who is done soonest has all that it can use."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from elps.scheduler.core.gain import LEAST_GAIN
from elps.scheduler.core.policy import Decision, Facts, HeldFact, QueuedFact
from elps.scheduler.core.sharing import Floats, Ints, Worth
from elps.scheduler.core.steering import Rule, steered
from elps.scheduler.core.work import works

FASTER = math.exp(LEAST_GAIN)
"""A worker more makes a job so many times as fast at least, else it has no use for it."""


class Srtf:
    """The job with the least work left (`work`) is given as many workers as it has a use for, then the next one.

    The others keep their least, since nobody is stopped for another. Whoever waits is served in the same order, so a
    long job may wait for as long as shorter ones arrive; jobs of which nothing is known count as of middling length.
    """

    name, resizes, told_held = "srtf", True, True

    def decide(self, facts: Facts) -> Decision:
        """See `Policy.decide`."""
        return steered(facts, _RULE)


class _Srtf(Rule):
    margin = 1.25
    up, down = "is done sooner than others", "others are done sooner"

    shortest_first = True

    def worth(self, jobs: Sequence[HeldFact | QueuedFact]) -> Worth:
        return _Hurry(jobs)


class _Hurry:
    """A slot is worth the more the less is left, while the job has a use for it."""

    def __init__(self, jobs: Sequence[HeldFact | QueuedFact]) -> None:
        self._hurry = [1 / left for left in works(jobs)]
        self._parts = [job.parts_s for job in jobs]

    def of_all(self, n: Ints) -> Floats:
        """See `sharing.Worth`."""
        parts = np.asarray(self._parts).reshape(len(n), 2)
        fixed, shared = parts[:, 0], parts[:, 1]
        useful = fixed + shared / np.maximum(n - 1, 1) > FASTER * (
            fixed + shared / np.maximum(n, 1)
        )
        return np.where(useful, np.asarray(self._hurry), 0.0)

    def of(self, job: int, n: int) -> float:
        """See `sharing.Worth`."""
        fixed, shared = self._parts[job]
        useful = fixed + shared / max(n - 1, 1) > FASTER * (fixed + shared / max(n, 1))
        return self._hurry[job] if useful else 0.0


_RULE = _Srtf()
