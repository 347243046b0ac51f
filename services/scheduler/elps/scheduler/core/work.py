"""How much of a job is left, for policies that go by it."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from elps.contracts.ids import JobId
from elps.scheduler.core.gain import time_s
from elps.scheduler.core.policy import HeldFact, QueuedFact


def works(jobs: Iterable[HeldFact | QueuedFact]) -> dict[JobId, float]:
    """Seconds that each job has to go, had it one worker: iterations left times the fitted time of one.

    Where the length of a job or its speed is not known, which is so of every newcomer, the median of those that are
    known is taken: nobody is preferred for what is not known of it. The unit does not matter while nothing is known.
    """
    jobs = list(jobs)
    known = {job.job: work for job in jobs if (work := _work(job)) is not None}
    usual = statistics.median(known.values()) if known else 1.0
    return {job.job: known.get(job.job, usual) for job in jobs}


def _work(job: HeldFact | QueuedFact) -> float | None:
    if job.left is None or not job.rates:
        return None
    return max(job.left, 1.0) * time_s(job.rates, 1)
