"""Batches that follow emulated machines on a real stack, beside equal batches and an oracle that knows coming speeds.

Eight agents are slowed by a pattern each (`ELPS_WORKER_SLOWDOWN`), and jobs of all policies train on them at the same
time, so that a drift of this machine meets all alike. A computation sleeps, or eight would not fit a few cores. The
oracle gives each iteration of a job the best sizes for the factors at its beginning, and has no costs but computing.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from measuring import arguments, emit, median, say
from private_stack import Told, connected, private_stack, run_job

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from emulated import oracle

from elps.balance.slowdown import Slowdown, text_for
from elps.contracts.ids import AgentId, WorkerId
from elps.contracts.messages import IterationRow
from elps.local.record import StackRecord
from elps.worker.trainer.emulating import opened

WORKERS = 8
BATCH = 64 * WORKERS
POLICIES = ("fixed", "last+proportional", "lb-bsp")
SETTLED = 6
"""Iterations at the beginning that are not counted: warm-up and the first plan."""
AFTER_CHANGE = 5
"""The same after a step."""
AIM = 0.95
PAPER = "LB-BSP paper: up to 54 % faster on GPU, 38.7 % on CPU clusters"


@dataclass(frozen=True)
class Cluster:
    """How eight machines are slowed."""

    name: str
    slowdown: str
    sample_ms: float
    """On an unburdened machine; the oracle's iterations then take about 250 ms."""
    steady: bool = True
    """Between steps, after which some iterations are not counted: to foresee a step is not asked."""


def clusters(seconds: float) -> tuple[Cluster, ...]:
    """Those that are tried, for jobs of so many seconds."""
    mix = [f"agent-{n}=factor:{f}" for n, f in ((4, 2), (5, 2), (6, 2), (7, 4), (8, 4))]
    wave = [f"agent-{n}=square:1:3@5s" for n in (1, 2)]
    return (
        Cluster("mix_1_2_4", ";".join(mix), 2.5),
        Cluster("one_straggler", "agent-8=factor:4", 3.5),
        Cluster("step", f"agent-2=step:4@{seconds / 2}s", 3.5),
        Cluster("square_wave", ";".join(wave), 3.5, steady=False),
    )


def job(name: str, policy: str, sample_ms: float, seconds: float) -> dict[str, Any]:
    """A job that ends by time."""
    return {
        "id": name,
        "task": "sleeping:Sleeping",
        "task_args": {"sample_ms": sample_ms},
        "iterations": 100_000,
        "batch": {"global": BATCH, "policy": policy},
        "optimizer": {"name": "sgd", "lr": 0.01},
        "workers": {"min": WORKERS, "max": WORKERS},
        "checkpoint": {"every_s": 0},
        "stop": {"time_s": seconds},
    }


@dataclass(frozen=True)
class Machines:
    """Factors of a job's workers, by the time since each began."""

    slowdowns: dict[WorkerId, Slowdown]
    began_at: dict[WorkerId, float]

    @classmethod
    def of(cls, told: Told, slowdown: str) -> Machines:
        """Who works where is in the job's record; who began when, in its rows."""
        agents: dict[WorkerId, AgentId] = {}
        for event in told.events:
            if event.record is not None and event.record.allocation is not None:
                agents |= event.record.allocation.workers
        began: dict[WorkerId, float] = {}
        for row in told.rows:
            longest_s = max((t.compute_s for t in row.workers), default=0.0)
            for timing in row.workers:
                began.setdefault(timing.worker, row.at - longest_s)
        found = {worker: opened(text_for(agents[worker], slowdown)) for worker in sorted(began)}
        return cls(found, began)

    def factors(self, at: float) -> list[float]:
        """Of all workers at a Unix time."""
        return [s.factor(max(0.0, at - self.began_at[w])) for w, s in self.slowdowns.items()]


def counted(rows: Sequence[IterationRow], factors: np.ndarray, steady: bool) -> np.ndarray:
    """Which iterations count."""
    out = np.array([row.iteration >= SETTLED for row in rows])
    if steady:
        for t in np.flatnonzero((np.diff(factors, axis=0) != 0).any(axis=1)):
            out[t + 1 : t + 1 + AFTER_CHANGE] = False
    return out


def rate(told: Told, cluster: Cluster) -> dict[str, Any]:
    """The oracle's time over the job's, for the same iterations."""
    machines = Machines.of(told, cluster.slowdown)
    rows = [row for row in told.rows if row.samples == BATCH]
    factors = np.array([machines.factors(row.at - row.duration_s) for row in rows])
    best_s = oracle(factors * cluster.sample_ms / 1e3, BATCH).seconds
    took_s = np.array([row.duration_s for row in rows])
    rest_s = [row.duration_s - max(t.compute_s for t in row.workers) for row in rows]
    some, settled = (counted(rows, factors, steady) for steady in (cluster.steady, False))
    return {
        "rate": float(best_s[some].sum() / took_s[some].sum()),
        "with_changes": float(best_s[settled].sum() / took_s[settled].sum()),
        "whole": float(best_s.sum() / took_s.sum()),
        "iteration_ms": median(list(took_s[some])) * 1e3,
        "oracle_ms": median(list(best_s[some])) * 1e3,
        "rest_ms": median(rest_s)
        * 1e3,  # beside the longest computation: none of it is the oracle's
        "iterations": int(some.sum()),
        "samples_per_s": BATCH * float(some.sum() / took_s[some].sum()),
    }


async def measure(record: StackRecord, cluster: Cluster, seconds: float) -> None:
    """All policies at once."""
    names = {policy: policy.replace("+", "-") for policy in POLICIES}
    async with connected(record) as client, asyncio.TaskGroup() as jobs:
        running = {
            policy: jobs.create_task(run_job(client, job(name, policy, cluster.sample_ms, seconds)))
            for policy, name in names.items()
        }
    found = {policy: rate(task.result(), cluster) for policy, task in running.items()}
    fixed = found["fixed"]["samples_per_s"]
    for policy, about in found.items():
        emit(
            f"uneven.{cluster.name}.{policy}",
            about.pop("rate"),
            "of the oracle's rate",
            ratio=about.pop("samples_per_s") / fixed,
            to="rate of fixed",
            aim=AIM,
            paper=PAPER,
            workers=WORKERS,
            **about,
        )


def main() -> None:
    """Run all."""
    seconds = 60.0 if arguments(__doc__ or "").full else 20.0
    for cluster in clusters(seconds):
        say(f"uneven: {cluster.name}: {cluster.slowdown}")
        settings = {
            "ELPS_WORKER_SLOWDOWN": cluster.slowdown,
            "ELPS_WORKER_SLOTS": str(len(POLICIES)),
        }
        with private_stack(WORKERS, 1, **settings) as record:
            asyncio.run(measure(record, cluster, seconds))


if __name__ == "__main__":
    main()
