"""How much of a job is left, for policies that go by it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from elps.scheduler.core.policy import HeldFact, QueuedFact


def works(jobs: Sequence[HeldFact | QueuedFact]) -> list[float]:
    """Seconds that each job has to go, had it one worker: iterations left times the fitted time of one.

    Where the length of a job or its speed is not known, which is so of every newcomer, the median of those that are
    known is taken: nobody is preferred for what is not known of it. The unit does not matter while nothing is known.
    """
    known = [job.work for job in jobs if job.work is not None]
    usual = statistics.median(known) if known else 1.0
    return [usual if job.work is None else job.work for job in jobs]
