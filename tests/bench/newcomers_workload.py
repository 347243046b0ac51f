"""One workload for several ways of scheduling it: a long job on a full cluster, and trials that arrive while it trains.

Fixed before anything was measured. A trial is what people do who search for a good model: they look at its first
results and keep it, or kill it.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

WORKERS, SHARDS, BATCH = 8, 3, 64
SAMPLE_S = 0.01
"""An iteration takes 0.64 s with one worker, 0.08 s with eight."""
FEEDBACK = 10
"""Iterations until a job's early feedback."""


@dataclass(frozen=True)
class Arrival:
    """A job, and when it is handed in."""

    name: str
    at_s: float
    iterations: int
    kept: bool = True
    """Else its user kills it when it gives its feedback."""


WORKLOAD = (
    Arrival("long", 0.0, 300),
    Arrival("trial-0", 4.0, 60),
    Arrival("trial-1", 6.0, 60, kept=False),
    Arrival("trial-2", 6.5, 60, kept=False),
    Arrival("trial-3", 14.0, 60),
    Arrival("trial-4", 20.0, 60, kept=False),
)


def document(name: str, iterations: int) -> dict[str, Any]:
    """A job that takes one worker to all of them."""
    return {
        "id": name,
        "task": "idle:Idle",
        "task_args": {"size": 10_000, "sample_s": SAMPLE_S},
        "iterations": iterations,
        "batch": {"global": BATCH, "policy": "fixed"},
        "optimizer": {"name": "sgd", "lr": 0.01},
        "workers": {"min": 1, "max": WORKERS},
        "shards": {"min": 1, "max": 2},
        "checkpoint": {"every_s": 0},
        "feedback": {"iterations": FEEDBACK},
    }


def simulated(iteration_s: Mapping[int, float], costs: Mapping[str, float]) -> dict[str, Any]:
    """The same as a document for `elps simulate`, with times that were measured."""
    return {
        "cluster": {"workers": WORKERS, "shards": SHARDS},
        "profiles": {"idle": {"measured": {str(n): s for n, s in iteration_s.items()}}},
        "costs": dict(costs),
        "jobs": [
            {
                "id": job.name,
                "at_s": job.at_s,
                "profile": "idle",
                "iterations": job.iterations,
                "feedback": FEEDBACK,
                "keep": float(job.kept),
                "workers": {"min": 1, "max": WORKERS},
                "shards": {"min": 1, "max": 2},
            }
            for job in WORKLOAD
        ],
    }


@dataclass(frozen=True)
class Ended:
    """A job of the workload, measured or simulated; seconds from when it was handed in."""

    job: Arrival
    fed_s: float
    ended_s: float


def figures(ended: Sequence[Ended]) -> dict[str, float]:
    """Seconds. The long job's feedback is left out: it has the cluster for itself."""
    fed = [one.fed_s for one in ended if one.job.at_s]
    return {
        "feedback": statistics.fmean(fed),
        "feedback_longest": max(fed),
        "completion": statistics.fmean(one.ended_s for one in ended),
        "completion_of_kept": statistics.fmean(one.ended_s for one in ended if one.job.kept),
        "completion_of_long": next(one.ended_s for one in ended if not one.job.at_s),
        "makespan": max(one.job.at_s + one.ended_s for one in ended),
    }
