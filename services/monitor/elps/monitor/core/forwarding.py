"""What the scheduler needs of a batch of rows, to decide the coming batches of a job's workers.

Nothing of it is kept.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from elps.contracts.ids import WorkerId
from elps.contracts.telemetry import (
    ExtraLeases,
    IterationRows,
    IterationTimings,
    TelemetryMessage,
    WorkerMean,
    WorkerTiming,
)


def timings_of(message: TelemetryMessage) -> IterationTimings | None:
    """The timings in a message, those of its newest epoch; None if nobody waits for any."""
    if not isinstance(message, IterationRows) or not message.balanced or not message.rows:
        return None
    newest = max(message.rows, key=lambda row: (row.standing, row.iteration))
    parts: dict[WorkerId, list[WorkerTiming]] = {}
    for row in message.rows:
        for timing in row.workers if row.standing == newest.standing else ():
            if timing.samples > 0:
                parts.setdefault(timing.worker, []).append(timing)
    return IterationTimings(
        job=message.job,
        term=newest.term,
        n=newest.n,
        waiting=newest.waiting,
        iteration=newest.iteration,
        workers=[_mean(worker, timings) for worker, timings in sorted(parts.items())],
    )


def _mean(worker: WorkerId, timings: list[WorkerTiming]) -> WorkerMean:
    newest = timings[-1]
    return WorkerMean(
        worker=worker,
        samples=fmean([t.samples for t in timings]),
        compute_s=fmean([t.compute_s for t in timings]),
        pull_s=fmean([t.pull_s for t in timings]),
        push_s=fmean([t.push_s for t in timings]),
        wait_s=fmean([t.wait_s for t in timings]),
        cpu_process=newest.cpu_process,
        cpu_host=newest.cpu_host,
        memory_bytes=newest.memory_bytes,
        extra=_mean_extra([t.extra for t in timings]),
    )


def _mean_extra(extras: Sequence[ExtraLeases | None]) -> ExtraLeases | None:
    some = [extra for extra in extras if extra is not None]
    if not some:
        return None
    return ExtraLeases(
        leases=math.fsum(e.leases for e in some) / len(extras),
        samples=math.fsum(e.samples for e in some) / len(extras),
        compute_s=math.fsum(e.compute_s for e in some) / len(extras),
        wait_s=math.fsum(e.wait_s for e in some) / len(extras),
    )
