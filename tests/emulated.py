"""Clusters of uneven workers on paper: how long a sample takes each of them, iteration by iteration, and a training
loop that takes that long. For tests and benchmarks of balancing that need no process and no time.
"""

from __future__ import annotations

import csv
import heapq
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from elps.balance import (
    Balancer,
    Extra,
    Limits,
    LinearTimes,
    Member,
    Observation,
    Policy,
    equal_finish,
    held_back,
    least_lease,
    next_lease,
    scaled,
)
from elps.balance.arrays import FloatArray
from elps.contracts.ids import WorkerId

ALIBABA = "traces/alibaba/job_{}_norm.csv"
STEP_AT = 0.5
"""Where the step of the step patterns is, as a part of the run."""


def data_folder() -> Path | None:
    """Where the recorded traces are, if this machine has them."""
    for folder in Path(__file__).resolve().parents:
        if (found := folder / "shared" / "data").is_dir() and (found / "traces").is_dir():
            return found
    return None


def alibaba(job: int) -> FloatArray | None:
    """Seconds per sample of a recorded production job, ``(iterations, workers)``; None without the traces.

    Only iterations in which all workers were recorded. The recorded time (0 to 1000, unit unknown) is taken for a batch
    of 1,000 samples, and for milliseconds.
    """
    if (folder := data_folder()) is None:
        return None
    rows: dict[int, dict[int, float]] = defaultdict(dict)
    with (folder / ALIBABA.format(job)).open() as file:
        for row in csv.DictReader(file):
            rows[int(row["time"])][int(row["worker"])] = float(row["batch_time_norm"])
    workers = max(len(row) for row in rows.values())
    full = [rows[t] for t in sorted(rows) if len(rows[t]) == workers]
    return np.array([[row[w] for w in sorted(row)] for row in full]) * 1e-6


def pattern(name: str, workers: int, iterations: int, noise: float, seed: int = 0) -> FloatArray:
    """Seconds per sample, ``(iterations, workers)``: 1 ms on an unburdened machine, times the pattern, times noise."""
    rng = np.random.default_rng(seed)
    cost = np.ones((iterations, workers))
    at = int(iterations * STEP_AT)
    if name == "mix 1:2:4":
        cost *= np.array([1.0, 2.0, 4.0])[np.arange(workers) % 3]
    elif name == "one straggler":
        cost[:, -1] = 4.0
    elif name == "step":
        cost[at:, 0] = 4.0
    elif name == "square wave":
        cost[:, : workers // 4] = np.where((np.arange(iterations) // 20) % 2, 3.0, 1.0)[:, None]
    elif name == "random walk":
        walk = np.cumsum(rng.normal(0, 0.05, cost.shape), axis=0)
        cost = np.exp(np.clip(walk, -1.2, 1.2))
    elif name != "even":
        raise ValueError(f"no pattern {name}")
    return cost * 1e-3 * rng.uniform(1 - noise, 1 + noise, cost.shape)


@dataclass
class Run:
    """What a training loop on paper took."""

    seconds: FloatArray
    """Each iteration."""
    changes: list[int]
    """Iterations after which the plan changed."""
    tails: int = 0
    """Iterations with tail leases."""
    trials: int = 0
    """Iterations with one lease more, to see what it costs."""


def staff(workers: int) -> list[Member]:
    return [Member(WorkerId(f"w{i}")) for i in range(workers)]


def train(
    cost: FloatArray,
    total: int,
    policy: Policy,
    *,
    transfer_s: float = 0.0,
    fixed_s: float = 0.0,
    fixed_samples: float = 0.0,
    availability: FloatArray | None = None,
    lag: int = 0,
    seed_rows: Sequence[Member] | None = None,
) -> Run:
    """Train on paper. `lag` is how many iterations a plan comes late; tail leases are lent when the balancer says so.

    A lease takes `fixed_s`, and as long as `fixed_samples` samples, whatever its size; the latter jitters with them.
    `availability` is the processor time of the *coming* iteration as seen at the barrier before it.
    """
    iterations, workers = cost.shape
    members = list(seed_rows or staff(workers))
    balancer = Balancer(total, members, policy=policy)
    plans = [balancer.decision] * (lag + 1)
    took, changes, tails, trials = [], [], 0, 0
    for t in range(iterations):
        plan = plans.pop(0)
        sizes = np.array([plan.sizes[m.worker] for m in members])
        extra_s = transfer_s / 2
        lent = lend(
            cost[t],
            sizes,
            total,
            held_back(total, plan.tail) or plan.trial,
            extra_s=extra_s,
            fixed_s=fixed_s + fixed_samples * cost[t],
            least=math.ceil(plan.tail_least * total / workers),
        )
        tails += plan.tail > 0
        trials += plan.trial > 0
        took.append(float(lent.ends.max()) + transfer_s)
        told = [
            Observation(
                m.worker,
                int(lent.samples[i]),
                float(lent.compute_s[i]) if lent.samples[i] else None,
                transfer_s / 2,
                transfer_s / 2,
                cpu_process=None if availability is None else float(availability[t][i]),
            )
            for i, m in enumerate(members)
        ]
        extras = {m.worker: lent.extras[i] for i, m in enumerate(members) if i in lent.extras}
        decision = balancer.observe(t, told, extras)
        if decision.changed:
            changes.append(t)
        plans.append(decision)
    return Run(np.array(took), changes, tails, trials)


def oracle(cost: FloatArray, total: int, *, transfer_s: float = 0.0, fixed_s: float = 0.0) -> Run:
    """The shortest iterations there are, in whole samples."""
    limits = Limits.of(cost.shape[1])
    took = []
    for row in cost:
        times = LinearTimes.of(row, fixed_s)
        sizes = equal_finish(times, total, limits).samples
        took.append(float(times.time_s(sizes.astype(np.float64)).max()) + transfer_s)
    return Run(np.array(took), [])


def with_tail(
    cost: FloatArray,
    sizes: FloatArray,
    total: int,
    share: float,
    extra_s: float = 0.0,
    fixed_s: float = 0.0,
) -> tuple[FloatArray, FloatArray]:
    """One iteration with tail leases: samples each worker did, and when each ended.

    Whoever is free is lent more, as long as there is something left; each lease costs `extra_s`. Speeds are guessed
    from the sizes, which is all that is known before the iteration.
    """
    least = least_lease(float(np.median(cost)), extra_s)
    held = held_back(total, share)
    lent = lend(cost, sizes, total, held, extra_s=extra_s, fixed_s=fixed_s, least=least)
    return lent.samples, lent.ends


@dataclass
class Lent:
    """An iteration, by worker."""

    samples: FloatArray
    compute_s: FloatArray
    ends: FloatArray
    """When each was through."""
    extras: dict[int, Extra]
    """Of those who had more leases than one."""


def lend(
    cost: FloatArray,
    sizes: FloatArray,
    total: int,
    left: int,
    *,
    extra_s: float,
    fixed_s: FloatArray | float,
    least: int,
) -> Lent:
    """One iteration of which `left` samples are held back; every lease takes `fixed_s`, and each but the first
    `extra_s` to be fetched and pushed.
    """
    fixed = np.broadcast_to(np.asarray(fixed_s, dtype=np.float64), cost.shape)
    names = [WorkerId(str(i)) for i in range(len(cost))]
    base = scaled(dict(zip(names, np.asarray(sizes).tolist(), strict=True)), total - left)
    done = np.array([base[n] for n in names])
    compute_s = np.where(done > 0, done * cost + fixed, 0.0)
    ends, extras = compute_s.copy(), {}
    speed = np.asarray(sizes, dtype=np.float64) / max(1, int(np.sum(sizes)))
    free = [(float(ends[i]), i) for i in range(len(cost)) if done[i]]
    heapq.heapify(free)
    while left:
        at, i = heapq.heappop(free)
        size = next_lease(left, float(speed[i]), 1, least)
        took_s = float(fixed[i] + size * cost[i])
        left -= size
        done[i] += size
        compute_s[i] += took_s
        ends[i] = at + extra_s + took_s
        before = extras.get(i, Extra(0, 0, 0.0, 0.0))
        extras[i] = Extra(*(a + b for a, b in zip(before, (1, size, took_s, extra_s), strict=True)))
        heapq.heappush(free, (float(ends[i]), i))
    return Lent(done, compute_s, ends, extras)
