"""Balancing on paper: what batches that follow speeds gain, how well speeds are predicted, and what deciding costs.

No process is started: machines are emulated by how long a sample takes them, iteration by iteration, and recorded
traces are used where this machine has them. Every gain is a ratio to equal batches on the very same times.
"""

from __future__ import annotations

import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from measuring import arguments, emit, median, say

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from emulated import alibaba, oracle, pattern, staff, train, with_tail

from elps.balance import (
    PREDICTORS,
    Balancer,
    Limits,
    Observation,
    Policy,
    Readings,
    proportional,
)
from elps.balance.arrays import NEW, FloatArray
from elps.balance.observing import Circumstances
from elps.contracts.codec import parse_job
from elps.contracts.ids import WorkerId
from elps.psshard.core.batches import Batches
from elps.stream.interval import Interval
from elps.tasks.opening import open_job

JOBS = (1, 2, 3)
POLICIES = ("last+proportional", "average", "median", "narx", "line", "leader-straggler", "lb-bsp")
PATTERNS = ("even", "mix 1:2:4", "one straggler", "step", "square wave", "random walk")
PAPER = "LB-BSP paper: up to 54 % faster on GPU, 38.7 % on CPU clusters"
NOISE = 0.05
TRANSFER_S = 0.002
BATCH = 1000
"""Samples of an equal share on the recorded traces: fine enough that rounding does not matter."""
SETTLED = 6
"""Iterations at the beginning that are not counted: warm-up and the first plan."""
AFTER_STEP = 5
PREDICTED_FROM = 20
"""Iteration from which errors of forecasts are counted."""


def policy(name: str, *, tail: bool = False) -> Policy:
    return replace(Policy.named(name), may_tail=tail)


def recorded_gains() -> None:
    """Gain over equal batches on recorded jobs, with the best there is beside."""
    for job in JOBS:
        if (cost := alibaba(job)) is None:
            say("balance: the recorded traces are not on this machine")
            return
        workers = cost.shape[1]
        total, equal = BATCH * workers, np.full(workers, BATCH)
        fixed = float((cost.max(axis=1) * BATCH).sum())
        best = fixed / float(oracle(cost, total).seconds.sum())
        about: dict[str, Any] = {"workers": workers, "iterations": len(cost)}
        name = f"balance.alibaba{job}"
        emit(f"{name}.best", best, "x equal batches", **about)
        sizes = [proportional(1 / row, total, Limits.of(workers)).samples for row in cost]
        rows = zip(sizes[:-1], cost[1:], strict=True)
        last = sum(float((size * row).max()) for size, row in rows)
        gain = float((cost[1:].max(axis=1) * BATCH).sum()) / last
        _gain(f"{name}.last_value_ungated", gain, best, about)
        for share in (0.05, 0.1, 0.2):
            took = sum(float(with_tail(row, equal, total, share)[1].max()) for row in cost)
            _gain(f"{name}.equal_with_tail_{share}", fixed / took, best, about | {"extra_ms": 0})
        fixed += TRANSFER_S * len(cost)
        for tail in (False, True):
            for each in POLICIES if not tail else ("lb-bsp",):
                run = train(cost, total, policy(each, tail=tail), transfer_s=TRANSFER_S)
                shown = f"{name}.{each}" + (".tail" if tail else "")
                more = {"changes": len(run.changes), "tails": run.tails, "push_ms": 1}
                _gain(shown, fixed / float(run.seconds.sum()), best, about | more)


def _gain(name: str, gain: float, best: float, about: dict[str, Any]) -> None:
    emit(name, gain, "x equal batches", ratio=(gain - 1) / (best - 1), to="best gain", **about)


def emulated_gains(sizes: tuple[int, ...], iterations: int) -> None:
    """Rate over that of the oracle, which knows the coming times, on emulated clusters."""
    for name in PATTERNS:
        for workers in sizes:
            cost = pattern(name, workers, iterations, NOISE)
            counted = np.ones(iterations, dtype=np.bool_)
            counted[:SETTLED] = False
            if name == "step":
                counted[iterations // 2 : iterations // 2 + AFTER_STEP] = False
            total = 64 * workers
            best = float(oracle(cost, total).seconds[counted].sum())
            fixed = float(train(cost, total, policy("fixed")).seconds[counted].sum())
            shown = name.replace(" ", "_").replace(":", "_")
            about: dict[str, Any] = {"workers": workers, "noise": NOISE}
            emit(f"balance.{shown}.{workers}.fixed", best / fixed, "of the oracle's rate", **about)
            for each in POLICIES:
                run = train(cost, total, policy(each))
                took = float(run.seconds[counted].sum())
                emit(
                    f"balance.{shown}.{workers}.{each}",
                    best / took,
                    "of the oracle's rate",
                    ratio=fixed / took,
                    to="rate of fixed",
                    changes=len(run.changes),
                    paper=PAPER,
                    **about,
                )


def contended(iterations: int, workers: int) -> tuple[FloatArray, FloatArray]:
    """Machines that others use too: the processor time that is left jumps about, and what is left is known."""
    rng = np.random.default_rng(3)
    walk = np.cumsum(rng.normal(0, 0.3, (iterations, workers)), axis=0)
    cpu = 0.25 + 0.75 * np.abs(np.sin(walk))
    return 1e-3 / cpu * rng.uniform(0.97, 1.03, cpu.shape), cpu


def forecasts(name: str, cost: FloatArray, cpu: FloatArray | None) -> FloatArray:
    """Forecast of each iteration but the first, seconds per sample."""
    workers = cost.shape[1]
    predictor = PREDICTORS[name](0)
    predictor.arrange(np.full(workers, NEW))
    nothing, samples = np.full(workers, np.nan), np.full(workers, 100.0)
    said = []
    for t in range(len(cost) - 1):
        now = Circumstances(nothing if cpu is None else cpu[t + 1], nothing, nothing)
        zero, same = np.zeros(workers), np.zeros(workers, dtype=np.bool_)
        predictor.observe(Readings(samples, cost[t] * samples, zero, zero, now, same))
        said.append(predictor.predict().time_s(samples) / samples)
    return np.array(said)


def arima(cost: FloatArray, last: int) -> FloatArray | None:
    """Forecasts of ARIMA(2, 1, 1) for the last iterations, refitted every 20; None without the library."""
    try:
        from statsmodels.tsa.arima.model import ARIMA
    except ImportError:
        return None
    said = np.empty((last, cost.shape[1]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for worker, series in enumerate(np.log(cost).T):
            fit = None
            for i, t in enumerate(range(len(series) - last, len(series))):
                if fit is None or i % 20 == 0:
                    fit = ARIMA(series[:t], order=(2, 1, 1)).fit(method_kwargs={"maxiter": 30})
                else:
                    fit = fit.append(series[t - 1 : t])
                said[i, worker] = fit.forecast(1)[0]
    return np.exp(said)


def errors(full: bool) -> None:
    """Relative root mean square error of every predictor on the same times."""
    traces: list[tuple[str, FloatArray, FloatArray | None]] = [
        (f"alibaba{job}", cost, None) for job in JOBS if (cost := alibaba(job)) is not None
    ]
    traces.append(("contended", *contended(250, 8)))
    traces += [
        (n.replace(" ", "_"), pattern(n, 8, 250, NOISE), None) for n in ("step", "random walk")
    ]
    for trace, cost, cpu in traces:
        last = len(cost) - PREDICTED_FROM if full else 60
        found = {n: forecasts(n, cost, cpu)[-last:] for n in PREDICTORS}
        if (other := arima(cost, last)) is not None:
            found["arima"] = other
        else:
            say("balance: ARIMA is left out, statsmodels is not installed (dependency group bench)")
        rms = {
            n: float(np.sqrt(np.mean((said / cost[-last:] - 1) ** 2))) for n, said in found.items()
        }
        for name, value in rms.items():
            ratio = value / rms["last"]
            emit(
                f"balance.error.{trace}.{name}", value, "relative RMS", ratio=ratio, to="last value"
            )


def jobs_of(workers: int, name: str, repeats: int) -> Iterator[Callable[[], float]]:
    """Seconds of one decision of a job whose workers all jump about."""
    rng = np.random.default_rng(0)
    cost = rng.choice([1e-3, 2e-3, 4e-3], workers) * np.exp(rng.normal(0, 0.2, (repeats, workers)))
    balancer = Balancer(64 * workers, staff(workers), policy=Policy.named(name))
    for t in range(repeats):
        told = [
            Observation(w, n, n * each, 0.001, 0.001, 0.001, 1.0, 2.0, 1e9)
            for (w, n), each in zip(balancer.decision.sizes.items(), cost[t].tolist(), strict=True)
        ]

        def decide(iteration: int = t, told: list[Observation] = told) -> float:
            began = time.perf_counter()
            balancer.observe(iteration, told)
            return time.perf_counter() - began

        yield decide


def decision_times(repeats: int) -> None:
    """What a decision takes, from timings as they come off the wire to the plan: aims 5 ms and 50 ms."""
    names = ("last", "narx", "lb-bsp")
    for workers, aim_ms in ((1_000, 5), (10_000, 50)):
        taken: dict[str, list[float]] = {name: [] for name in names}
        for turn in zip(*(jobs_of(workers, name, repeats) for name in names), strict=True):
            for name, decide in zip(names, turn, strict=True):
                taken[name].append(decide() * 1e3)
        base = median(taken["last"][repeats // 2 :])
        for name, each in taken.items():
            late = each[repeats // 2 :]  # every model has learned enough to be used
            emit(
                f"balance.decision.{workers}.{name}",
                statistics.median(late),
                "ms",
                ratio=median(late) / base,
                to="last value",
                least_ms=min(late),
                aim_ms=aim_ms,
            )


def change_costs(sizes: int, again: int = 4) -> None:
    """A gradient at a size that was not computed before, over those at the same size after it; and taking a plan."""
    document = {
        "id": "j", "task": "mlp", "iterations": 1, "data": {"source": "digits"},
        "batch": {"global": 512}, "task_args": {"hidden": [256]},
    }  # fmt: skip
    job = open_job(parse_job(document), {})
    params, order = np.asarray(job.initial()), job.order()
    gradient, rng = np.zeros_like(params), np.random.default_rng(1)

    def computed(samples: int) -> float:
        began = time.perf_counter()
        job.gradient(params, Interval(0, samples), order, gradient)
        return (time.perf_counter() - began) / samples

    for _ in range(10):
        computed(256)  # what is only slow once
    taken = [[computed(n) for _ in range(1 + again)] for n in rng.integers(100, 500, sizes)]
    first, later = (
        median([t[0] for t in taken]),
        median([t for each in taken for t in each[1:]]),
    )
    emit("balance.change.first", first / later, "x at the same size later", sizes=sizes)
    workers, batches, took_s = [WorkerId(f"w{i}") for i in range(64)], Batches(), []
    for number in range(1, 1 + sizes):
        began = time.perf_counter()
        batches.plan(number, {w: 10 + i * number % 7 for i, w in enumerate(workers)})
        batches.shares(workers)
        took_s.append(time.perf_counter() - began)
    emit("balance.change.taken", median(took_s) * 1e6, "µs", workers=len(workers))


def main() -> None:
    """Run all."""
    full = arguments(__doc__ or "").full
    say("balance: what a decision takes")
    decision_times(200 if full else 80)
    say("balance: what a change costs")
    change_costs(200 if full else 60)
    say("balance: recorded jobs")
    recorded_gains()
    say("balance: emulated clusters")
    emulated_gains((8, 16), 400 if full else 150)
    say("balance: errors of predictors")
    errors(full)


if __name__ == "__main__":
    main()
