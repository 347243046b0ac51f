"""What became of the jobs of a simulation, and the figures that people compare policies by."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from elps.scheduler.simulator.running import Running
from elps.scheduler.simulator.workload import Job


@dataclass(frozen=True)
class Ended:
    """A job's life, in seconds of virtual time."""

    job: Job
    started_at: float
    fed_at: float | None
    """None if it was killed before."""
    ended_at: float
    done: float
    """Iterations."""
    held_s: float
    """Slots times seconds."""
    resizes: int
    lost_s: float
    """Of training, by changes of its size."""

    @classmethod
    def of(cls, run: Running, now: float) -> Ended:
        """A job that ends now."""
        return cls(
            run.job,
            run.started_at,
            run.fed_at,
            now,
            run.done,
            run.held_s,
            run.resizes,
            run.lost_s,
        )


@dataclass(frozen=True)
class Outcome:
    """One workload under one policy."""

    workload: str
    policy: str
    workers: int
    jobs: tuple[Ended, ...]
    """In their order of arrival."""
    ended_at: float
    used_s: float
    """Slots held, times seconds, over all."""
    decisions: int


def figures(outcome: Outcome) -> dict[str, float]:
    """Seconds, but for what is named otherwise.

    `utilisation` is the part of all slots that was held until the last job ended. `fairness` is Jain's index of the
    jobs' slowdowns: time to completion over the time that the job would take alone, at its most. 1: all were slowed
    alike, 1/n: one bore it all. `slowdown` is their mean. `lost` is what changes of size cost, as a part of the time
    that jobs had a place.
    """
    jobs = outcome.jobs
    begun = jobs[0].job.at_s if jobs else 0.0
    feedback = [j.fed_at - j.job.at_s for j in jobs if j.fed_at is not None]
    completion = [j.ended_at - j.job.at_s for j in jobs]
    slowdowns = [c / alone_s(j.job) for c, j in zip(completion, jobs, strict=True)]
    makespan = outcome.ended_at - begun
    placed = sum(j.ended_at - j.started_at for j in jobs)
    return {
        "feedback_mean_s": _mean(feedback),
        "feedback_p50_s": quantile(feedback, 0.5),
        "feedback_p95_s": quantile(feedback, 0.95),
        "completion_mean_s": _mean(completion),
        "completion_p95_s": quantile(completion, 0.95),
        "makespan_s": makespan,
        "utilisation": outcome.used_s / (outcome.workers * makespan) if makespan else 0.0,
        "resizes": float(sum(j.resizes for j in jobs)),
        "lost_s": sum(j.lost_s for j in jobs),
        "lost": sum(j.lost_s for j in jobs) / placed if placed else 0.0,
        "slowdown": _mean(slowdowns),
        "fairness": jain(slowdowns),
        "decisions": float(outcome.decisions),
    }


def alone_s(job: Job) -> float:
    """Seconds that a job would train if it had its most all the time."""
    most = job.fixed if job.fixed is not None else job.workers.max
    iterations = job.iterations if job.killed is None else min(job.killed, job.iterations)
    return iterations * min(sum(job.profile.parts_s(n, job.shards.max)) for n in range(1, most + 1))


def jain(values: Sequence[float]) -> float:
    """Jain's fairness index of what each got."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0


def quantile(values: Sequence[float], part: float) -> float:
    """The least value that so large a part of them does not exceed; NaN of none."""
    if not values:
        return math.nan
    return sorted(values)[max(0, math.ceil(part * len(values)) - 1)]


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else math.nan
