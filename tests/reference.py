"""The plain loop that every trained job is compared with: one process, one whole batch an iteration.

It shares with elps what defines the problem (the document, the stream's geometry and order, the user's
task and data) and nothing that solves it: the gradient sums, the mean, the optimizers and the schedule
are written here anew, on a dict of arrays, as a textbook has them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elps.contracts.job import JobDocument, Optimizer, Schedule
from elps.stream.geometry import Geometry
from elps.stream.interval import Interval, IntervalSet
from elps.stream.order import Order, init_rng, sample_rng
from elps.tasks.opening import OpenJob, open_job
from elps.tasks.task import SampleRngs, arguments_of

Arrays = dict[str, NDArray[Any]]

STATES = {
    "momentum": ["momentum"],
    "nesterov": ["momentum"],
    "adagrad": ["squares"],
    "rmsprop": ["v"],
    "adam": ["m", "v"],
    "adamw": ["m", "v"],
    "ftrl": ["z", "squares", "inverse"],
}
"""What each optimizer keeps, here, by name."""


@dataclass
class Reference:
    """What the loop gave."""

    params: Arrays
    """The parameters after the last iteration."""
    losses: list[float | None]
    """Mean loss over the counted samples of each iteration; None where none was counted."""
    evaluations: dict[int, dict[str, float]]
    """Iterations done when it was evaluated, to the mean metrics over the test part."""
    iterations: int
    steps: int
    """Optimizer steps: iterations in which a sample was counted."""
    states: dict[str, Arrays] = field(default_factory=dict)
    """The optimizer's arrays (`STATES`) by parameter."""

    def flat(self) -> NDArray[Any]:
        """The parameters in one vector, in the order of the task's `init`, the state after the others."""
        return np.concatenate([value.ravel() for value in self.params.values()])


def run(
    document: JobDocument,
    env: Mapping[str, str] | None = None,
    *,
    skips: Iterable[Interval] = (),
    iterations: int | None = None,
    job: OpenJob | None = None,
) -> Reference:
    """Train a document as the plain loop does.

    `skips`: intervals of the sample stream whose samples count neither in the sum nor in the mean; an
    iteration of which nothing is left makes no step. `iterations`: stop after so many.
    """
    job = job or open_job(document, env or {})
    dtype = np.dtype(document.dtype)
    rules = job.layout.rules
    params = {
        k: np.array(v, dtype=dtype) for k, v in job.task.init(init_rng(document.seed)).items()
    }
    params = {k: params[k] for k in sorted(params, key=lambda k: k in rules)}
    samples = len(job.train)
    geometry = Geometry(samples, document.batch.global_, document.batch.granule)
    total = (
        document.iterations
        if document.iterations is not None
        else (document.passes or 1) * geometry.per_pass
    )
    skipped = IntervalSet(skips)
    order = Order(document.seed, samples)
    states: dict[str, Arrays] = {
        s: {k: np.zeros_like(v) for k, v in params.items()}
        for s in STATES.get(document.optimizer.name, [])
    }
    result = Reference(params, [], {}, 0, 0, states)
    for t in range(total if iterations is None else min(iterations, total)):
        counted = list(skipped.gaps(geometry.iteration(t)))
        count = sum(interval.size for interval in counted)
        if count:
            loss, sums = _sums(document, job, order, params, counted)
            result.losses.append(loss / count)
            result.steps += 1
            rate = document.optimizer.lr * schedule_factor(document.schedule, result.steps, total)
            factor = _clipping(document.optimizer.clip_norm, count, sums, rules)
            for name, value in params.items():
                mean = sums[name] / dtype.type(count)
                if name in rules:
                    params[name] = mean if rules[name] == "mean" else sums[name]
                    continue
                mean = mean * dtype.type(factor)
                mine = {s: arrays[name] for s, arrays in states.items()}
                params[name], new = textbook_step(
                    document.optimizer, value, mean, mine, rate, result.steps
                )
                for s, array in new.items():
                    states[s][name] = array
        else:
            result.losses.append(None)
        result.iterations = t + 1
        if job.test is not None and _evaluates(document, geometry, t + 1, total):
            result.evaluations[t + 1] = evaluate(document, job, params)
    return result


def _clipping(limit: float | None, count: int, sums: Arrays, untrained: Iterable[str]) -> float:
    """What makes the mean gradient, of all that is trained, as long as the limit if it is longer."""
    if limit is None:
        return 1.0
    trained = [sums[name].ravel() for name in sums if name not in untrained]
    norm = float(np.linalg.norm(np.concatenate(trained).astype(np.float64) / count))
    return min(1.0, limit / norm) if norm else 1.0


def _sums(
    document: JobDocument, job: OpenJob, order: Order, params: Arrays, counted: list[Interval]
) -> tuple[float, Arrays]:
    """Loss and gradient sums: one call for all counted samples, or one for each granule."""
    granule = document.batch.granule
    task: Any = job.task
    calls: list[tuple[int, NDArray[np.int64], int]] = []
    if granule == 1:
        parts = [order.indices(interval) for interval in counted]
        calls.append((parts[0][0], np.concatenate([indices for _, indices in parts]), 0))
    else:
        for interval in counted:
            begin = interval.lo // order.samples * order.samples
            lo = interval.lo
            while lo < interval.hi:
                number = (lo - begin) // granule
                hi = min(interval.hi, begin + (number + 1) * granule)
                pass_, indices = order.indices(Interval(lo, hi))
                calls.append((pass_, indices, number))
                lo = hi
    loss, sums = 0.0, {k: np.zeros_like(v) for k, v in params.items()}
    seen: set[str] = set()
    for pass_, indices, number in calls:
        extra = {}
        if "rng" in arguments_of(task.loss_and_grad):
            rngs = SampleRngs(document.seed, pass_, indices)
            extra = {"rng": rngs if granule == 1 else sample_rng(document.seed, pass_, number)}
        part, gradient = task.loss_and_grad(dict(params), job.train.get(indices), **extra)
        loss += float(part)
        for name, value in gradient.items():
            array = np.asarray(value, dtype=sums[name].dtype)
            rule = job.layout.rules.get(name, "sum")
            if rule == "mean":
                array = array * sums[name].dtype.type(len(indices))
            if rule == "last" or (rule == "max" and name not in seen):
                sums[name] = array
            else:
                sums[name] = np.maximum(sums[name], array) if rule == "max" else sums[name] + array
            seen.add(name)
    return loss, sums


def evaluate(document: JobDocument, job: OpenJob, params: Arrays) -> dict[str, float]:
    """Mean metrics over the whole test part, at one go."""
    assert job.test is not None
    count = len(job.test)
    batch = job.test.get(np.arange(count, dtype=np.int64))
    if hasattr(job.task, "evaluate"):
        return {
            name: float(value) / count
            for name, value in job.task.evaluate(dict(params), batch).items()
        }
    loss, _ = job.task.loss_and_grad(dict(params), batch)
    return {"loss": float(loss) / count}


def _evaluates(document: JobDocument, geometry: Geometry, done: int, total: int) -> bool:
    when = document.evaluate
    if when.every:
        due = done % when.every == 0
    else:
        due = when.every_passes > 0 and done % (when.every_passes * geometry.per_pass) == 0
    return due or (when.at_end and done == total)


def textbook_step(
    spec: Optimizer,
    value: NDArray[Any],
    g: NDArray[Any],
    state: Mapping[str, NDArray[Any]],
    lr: float,
    step: int,
) -> tuple[NDArray[Any], Arrays]:
    """One step in the dtype of `value`: new value and new state.

    Polyak 1964 (momentum, as torch's SGD with dampening 0), Kingma and Ba 2015 (Adam, algorithm 1),
    Loshchilov and Hutter 2019 (AdamW), torch's SGD (Nesterov), Duchi et al. 2011 (AdaGrad), Tieleman and
    Hinton 2012 (RMSprop), McMahan et al. 2013 (FTRL, with its σ as the difference of the inverse rates,
    so that these may change). `step` counts from 1.
    """
    kind = value.dtype.type
    if spec.name != "adamw" and spec.weight_decay:
        g = g + kind(spec.weight_decay) * value
    if spec.name == "sgd":
        return value - kind(lr) * g, {}
    if spec.name == "momentum":
        velocity = kind(spec.momentum) * state["momentum"] + g
        return value - kind(lr) * velocity, {"momentum": velocity}
    if spec.name == "nesterov":
        velocity = kind(spec.momentum) * state["momentum"] + g
        return value - kind(lr) * (g + kind(spec.momentum) * velocity), {"momentum": velocity}
    if spec.name == "adagrad":
        squares = state["squares"] + g**2
        return value - kind(lr) * g / (np.sqrt(squares) + kind(spec.eps)), {"squares": squares}
    if spec.name == "rmsprop":
        v = kind(spec.alpha) * state["v"] + kind(1 - spec.alpha) * g**2
        return value - kind(lr) * g / (np.sqrt(v) + kind(spec.eps)), {"v": v}
    if spec.name == "ftrl":
        squares = state["squares"] + g**2
        inverse = (kind(spec.beta) + np.sqrt(squares)) / kind(lr)
        z = state["z"] + g - (inverse - state["inverse"]) * value
        new = -(z - np.sign(z) * kind(spec.l1)) / (inverse + kind(spec.l2))
        new = np.where(np.abs(z) <= spec.l1, kind(0), new)
        return new, {"z": z, "squares": squares, "inverse": inverse}
    b1, b2 = kind(spec.beta1), kind(spec.beta2)
    # 1 - 0.999 taken in float32 is off by 1e-5, which would be more than what is compared here.
    m = b1 * state["m"] + kind(1 - spec.beta1) * g
    v = b2 * state["v"] + kind(1 - spec.beta2) * g**2
    m_hat = m / kind(1 - spec.beta1**step)
    v_hat = v / kind(1 - spec.beta2**step)
    if spec.name == "adamw":
        value = value - kind(lr * spec.weight_decay) * value
    return value - kind(lr) * m_hat / (np.sqrt(v_hat) + kind(spec.eps)), {"m": m, "v": v}


def schedule_factor(schedule: Schedule, step: int, total: int) -> float:
    """The factor at a step counted from 1: warm-up times schedule."""
    warm = step / schedule.warmup if schedule.warmup > step else 1.0
    if schedule.name == "step":
        return warm * math.prod([schedule.gamma] * ((step - 1) // schedule.step_size))
    if schedule.name == "inverse_sqrt":
        return min(step / max(schedule.warmup, 1), (max(schedule.warmup, 1) / step) ** 0.5)
    if schedule.name == "polynomial":
        x = min((step - 1) / (schedule.total if schedule.total > 0 else total), 1)
        return warm * (schedule.floor + (1 - schedule.floor) * (1 - x) ** schedule.power)
    if schedule.name == "cosine":
        x = (step - 1) / (schedule.total if schedule.total > 0 else total)
        wave = 0.5 * (1 + math.cos(math.pi * x)) if x < 1 else 0.0
        return warm * (schedule.floor + (1 - schedule.floor) * wave)
    return warm
