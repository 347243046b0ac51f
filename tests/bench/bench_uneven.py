"""Batches that follow emulated machines on a real stack, beside equal batches, jobs without a barrier and an oracle.

Eight agents (with ``--full`` sixteen as well) are slowed by a pattern each (`ELPS_WORKER_SLOWDOWN`), and jobs of all
modes train on them, two at a time, each beside what the oracle would have taken for the same iterations. A computation
sleeps, or they would not fit a few cores. The oracle gives each iteration of a job the best sizes for the factors at
its beginning, and has no costs but computing. Aims: 0.95 of its rate on steady and stepwise patterns, 0.7 of its gain
over equal batches where speeds jump; and on even machines 0.99 of the rate of equal batches, in pairs of jobs that
train side by side.
"""

from __future__ import annotations

import asyncio
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from measuring import arguments, emit, median, say
from private_stack import Told, connected, private_stack, run_job
from uneven_clusters import MODES, MORE_MODES, Cluster, clusters

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from emulated import oracle

from elps.balance.slowdown import Slowdown, text_for
from elps.client.control import Client
from elps.contracts.ids import AgentId, WorkerId
from elps.contracts.telemetry import IterationRow
from elps.local.record import StackRecord
from elps.runtime.emulating import opened

TOGETHER = 2
"""Jobs that train at the same time; more would wait for each other's messages. The others are queued."""
SETTLED = 6
"""Iterations at the beginning that are not counted: warm-up and the first plan."""
AFTER_CHANGE = 5
"""The same after a step."""
AIMS = {"rate": 0.95, "gain": 0.7}
PAPER = "LB-BSP paper: up to 54 % faster on GPU, 38.7 % on CPU clusters"
STUDENT_95 = {3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 8: 2.365, 10: 2.262, 12: 2.201, 16: 2.131}
"""Two-sided quantiles of Student's distribution, by the number of pairs."""


def job(name: str, mode: Mapping[str, Any], cluster: Cluster, **task: Any) -> dict[str, Any]:
    """A job that ends by time."""
    mode = dict(mode)
    policy = {"policy": mode.pop("policy")} if "policy" in mode else {}
    return {
        "id": name,
        "task": "sleeping:Sleeping",
        "task_args": {"sample_ms": cluster.sample_ms, **task},
        "iterations": 100_000,
        "batch": {"global": cluster.batch, **policy},
        "optimizer": {"name": "sgd", "lr": 0.01},
        "workers": {"min": cluster.workers, "max": cluster.workers},
        "checkpoint": {"every_s": 0},
        "stop": {"time_s": cluster.seconds},
        **mode,
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
    """The oracle's time over the job's, for the same iterations; and what equal batches would have taken of it."""
    machines, batch = Machines.of(told, cluster.slowdown), cluster.batch
    rows = [row for row in told.rows if row.samples == batch]
    factors = np.array([machines.factors(row.at - row.duration_s) for row in rows])
    cost = factors * cluster.sample_ms / 1e3
    best_s, equal_s = oracle(cost, batch).seconds, cost.max(axis=1) * batch / cluster.workers
    took_s = np.array([row.duration_s for row in rows])
    rest_s = [row.duration_s - max(t.compute_s for t in row.workers) for row in rows]
    some, settled = (counted(rows, factors, steady) for steady in (cluster.steady, False))
    extra = [sum(t.extra.leases for t in row.workers if t.extra) for row in rows]
    return {
        "rate": float(best_s[some].sum() / took_s[some].sum()),
        "with_changes": float(best_s[settled].sum() / took_s[settled].sum()),
        "whole": float(best_s.sum() / took_s.sum()),
        "iteration_ms": median(list(took_s[some])) * 1e3,
        "oracle_ms": median(list(best_s[some])) * 1e3,
        "best_over_equal": float(equal_s[some].sum() / best_s[some].sum()),
        "over_equal": float(equal_s[some].sum() / took_s[some].sum()),
        # beside the longest computation: none of it is the oracle's
        "rest_ms": median(rest_s) * 1e3,
        "iterations": int(some.sum()),
        "extra_leases": statistics.fmean(extra),
    }


async def measure(
    record: StackRecord, cluster: Cluster, modes: Mapping[str, Mapping[str, Any]]
) -> None:
    """All modes, `TOGETHER` at a time: the others wait in the queue."""
    async with connected(record) as client, asyncio.TaskGroup() as jobs:
        running = {
            name: jobs.create_task(run_job(client, job(name.replace("+", "-"), mode, cluster)))
            for name, mode in modes.items()
        }
    found = {name: rate(task.result(), cluster) for name, task in running.items()}
    fixed, aim = found["fixed"]["over_equal"], AIMS[cluster.aim]
    for name, about in found.items():
        # Each on what its own machines did: patterns go by time, and a faster job meets another part of them.
        faster = about.pop("over_equal") / fixed
        of_rate, best = about.pop("rate"), about["best_over_equal"]
        of_gain = (faster - 1) / (best - 1) if best > 1 else math.nan
        reached = of_rate if cluster.aim == "rate" else of_gain
        emit(
            f"uneven.{cluster.name}.{cluster.workers}.{name}",
            of_rate,
            "of the oracle's rate",
            ratio=faster,
            to="rate of fixed",
            of_the_oracles_gain=of_gain,
            aim=f"{aim} of its {cluster.aim}",
            reached=reached >= aim,
            paper=PAPER,
            **about,
        )


@dataclass(frozen=True)
class Pairs:
    """Two modes beside each other on machines that are all alike but for noise."""

    name: str
    modes: tuple[str, str]
    """What is compared, to what."""
    task: Mapping[str, float]
    learned: int
    """Iterations at the beginning that are not counted."""
    aim: float
    """Ratio of the rates that the 95 % interval is to reach."""


EVEN = (
    # Balance must cost next to nothing where there is nothing to balance.
    Pairs("even", ("lb-bsp", "fixed"), {"jitter": 0.05}, SETTLED, 0.99),
    # Tails must not come where a call takes 30 ms whatever its size, and are to pay where each takes another time.
    Pairs("costly_calls", ("lb-bsp", "auto"), {"call_ms": 30.0, "jitter": 0.5}, SETTLED, 0.9),
    Pairs("jumping", ("lb-bsp", "auto"), {"jitter": 0.5}, 40, 1.0),
)


async def pair(client: Client, turn: int, cluster: Cluster, pairs: Pairs) -> float:
    """Rate of the first mode over that of the second, by two jobs that train at the same time."""
    order = pairs.modes if turn % 2 else pairs.modes[::-1]
    async with asyncio.TaskGroup() as jobs:
        running = {}
        for name in order:
            document = job(f"{pairs.name}-{name}-{turn}", MODES[name], cluster, **pairs.task)
            running[name] = jobs.create_task(run_job(client, document))
    took = {}
    for name, task in running.items():
        rows = [r for r in task.result().rows if r.iteration >= pairs.learned]
        took[name] = statistics.fmean(row.duration_s for row in rows)
    return took[pairs.modes[1]] / took[pairs.modes[0]]


async def even(record: StackRecord, cluster: Cluster, pairs: Pairs, times: int) -> None:
    """All pairs of a kind, one after the other."""
    async with connected(record) as client:
        ratios = [await pair(client, turn, cluster, pairs) for turn in range(times)]
    mean = statistics.fmean(ratios)
    half = STUDENT_95[times] * statistics.stdev(ratios) / math.sqrt(times)
    first, second = pairs.modes
    emit(
        f"uneven.{pairs.name}.{cluster.workers}.{first}",
        mean,
        f"of the rate of {second}",
        ratio=mean,
        to=f"rate of {second}",
        low=mean - half,
        high=mean + half,
        aim=f"the 95 % interval reaches {pairs.aim}",
        reached=mean + half >= pairs.aim,
        pairs=times,
        workers=cluster.workers,
    )


def main() -> None:
    """Run all."""
    full = arguments(__doc__ or "").full
    modes = MODES | MORE_MODES if full else MODES
    seconds = 60.0 if full else 20.0
    for workers in (8, 16) if full else (8,):
        settings = {"ELPS_WORKER_SLOTS": str(TOGETHER), "ELPS_SHARD_SLOTS": str(TOGETHER)}
        say(f"uneven: even machines, {workers} of them")
        with private_stack(workers, 1, **settings) as record:
            for pairs in EVEN:
                sample_ms = 0.05 if "call_ms" in pairs.task else 3.5
                each_s = 40.0 if full else 20.0 if pairs.learned > SETTLED else 10.0
                alike = Cluster("even", workers, "", sample_ms, each_s)
                asyncio.run(even(record, alike, pairs, 10 if full else 4))
        for cluster in clusters(workers, seconds, whole_traces=full):
            say(f"uneven: {cluster.name}: {cluster.slowdown[:160]}")
            slowed = settings | {"ELPS_WORKER_SLOWDOWN": cluster.slowdown}
            with private_stack(workers, 1, **slowed) as record:
                asyncio.run(measure(record, cluster, modes))


if __name__ == "__main__":
    main()
