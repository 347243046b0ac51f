"""What one local step tells about a job: the questions of `elps check`, as functions of a gradient.

Everything that training relies on and that a task can get wrong is asked here with the smallest computation that shows
it: sums that are sums, randomness from the given generators, finite numbers, a gradient that is the loss's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elps.cli import figures
from elps.contracts.errors import TaskError
from elps.contracts.job import JobDocument
from elps.optim import apply, state_names
from elps.optim.schedule import factor
from elps.stream.geometry import Geometry
from elps.stream.interval import Interval
from elps.tasks.layout import Layout

Floats = NDArray[np.floating[Any]]

Sums = tuple[float, Floats]
"""Loss sum and flat gradient sum of the samples of an interval."""

Gradient = Callable[[Floats, Interval], Sums]
"""Loss sum and flat gradient sum of the samples of an interval, at flat parameters; neither argument is changed."""

ADDITIVE_TOLERANCE = {"float32": 1e-4, "float64": 1e-8}
"""Relative, in the norm over all parameters: the order of additions alone costs less by orders of magnitude."""
MEANS_ADD_UP = (1.7, 2.3)
"""Two halves' losses by that of the whole: means give 2, but for the samples' differences; sums give 1."""
SLOPE_TOLERANCE = 1e-3
SLOPE_COORDINATES = 8
SLOPE_STEP = 1e-6
"""Relative to the parameter, absolute below 1: near the cube root of float64's precision, as is best."""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    about: str
    ok: bool
    text: str
    grave: bool = True
    """When not ok: training would go wrong, not merely badly."""


@dataclass(frozen=True)
class ParameterNorms:
    """One parameter: norms of its values and of the mean gradient."""

    name: str
    shape: tuple[int, ...]
    value_norm: float
    gradient_norm: float


@dataclass(frozen=True)
class Step:
    """One step on the first batch."""

    samples: int
    loss_before: float
    loss_after: float
    gradient_norm: float
    """Of the mean gradient."""
    parameters: list[ParameterNorms]


def geometry_of(job: JobDocument, samples: int) -> Geometry:
    """Where the job's iterations lie."""
    return Geometry(samples, job.batch.global_, job.batch.granule)


def take_step(
    job: JobDocument,
    layout: Layout,
    start: Floats,
    first: Sums,
    gradient: Gradient,
    geometry: Geometry,
) -> Step:
    """The job's first optimizer step, and the loss of the same batch before and after.

    `first` is what `gradient` gave for the first batch.
    """
    batch = geometry.iteration(0)
    loss, g = first
    total = job.iterations or (job.passes or 1) * geometry.per_pass
    after = start.copy()
    state = {name: np.zeros_like(start) for name in state_names(job.optimizer)}
    lr = job.optimizer.lr * factor(job.schedule, 1, total)
    apply(job.optimizer, g.copy(), 1.0 / batch.size, start.copy(), after, state, lr, 1)
    mean = layout.views(g / g.dtype.type(batch.size))
    values = layout.views(start)
    return Step(
        samples=batch.size,
        loss_before=loss / batch.size,
        loss_after=gradient(after, batch)[0] / batch.size,
        gradient_norm=float(np.linalg.norm(g.astype(np.float64))) / batch.size,
        parameters=[
            ParameterNorms(p.name, p.shape, _norm(values[p.name]), _norm(mean[p.name]))
            for p in layout.parameters
            if not p.rule
        ],
    )


def judge_step(step: Step) -> Iterator[Finding]:
    """Whether the step did what a step is for."""
    if not np.isfinite([step.loss_before, step.gradient_norm]).all():
        bad = [p.name for p in step.parameters if not np.isfinite(p.gradient_norm)]
        where = f", gradient not finite in {', '.join(bad)}" if bad else ""
        yield Finding(
            "finite",
            False,
            f"loss {step.loss_before}{where}: look for a division by zero, a log of zero or overflow in the task, for "
            "NaN in the data, and for features that need data.scale",
        )
        return
    yield Finding("finite", True, "loss and gradient are finite numbers")
    if not np.isfinite(step.loss_after):
        text = f"the loss is {step.loss_after} after one step: optimizer.lr is far too large, or use data.scale"
        yield Finding("step", False, text)
    elif step.gradient_norm == 0:
        text = "the gradient is 0 everywhere, so nothing will be learned: start from other values in init"
        yield Finding("step", False, text)
    elif step.loss_after < step.loss_before:
        change = f"{figures.value(step.loss_before)} to {figures.value(step.loss_after)}"
        yield Finding("step", True, f"one step takes the batch's loss from {change}")
    else:
        change = f"from {figures.value(step.loss_before)} to {figures.value(step.loss_after)}"
        yield Finding(
            "step",
            False,
            f"one step does not lower the batch's loss ({change}): try a smaller optimizer.lr",
            False,
        )
    still = [p.name for p in step.parameters if p.gradient_norm == 0 and np.prod(p.shape) > 0]
    if still and step.gradient_norm > 0:
        text = f"no gradient in {', '.join(still)} on the first batch: is it used by the loss?"
        yield Finding("step", False, text, False)


def judge_sums(
    job: JobDocument,
    start: Floats,
    twice: tuple[Sums, Sums],
    gradient: Gradient,
    geometry: Geometry,
) -> Iterator[Finding]:
    """Whether the same call gives the same, and two halves give the whole.

    `twice` is what `gradient` gave for the first batch, asked two times.
    """
    batch = geometry.iteration(0)
    tolerance = ADDITIVE_TOLERANCE[job.dtype]
    (loss, whole), (again_loss, again) = twice
    if _distance(again, whole) > tolerance or _apart(again_loss, loss) > tolerance:
        yield Finding(
            "repeatable",
            False,
            "the same batch gives another gradient when it is computed again: take random numbers only from the "
            "rng that loss_and_grad is given, and keep no state in the task",
        )
        return
    yield Finding("repeatable", True, "the same batch gives the same gradient again")
    parts = [part for part in geometry.cut(batch, [1, 1]) if part.size]
    if len(parts) < 2:
        text = f"the batch of {batch.size} is one granule of {geometry.granule}: it always goes to one worker whole"
        yield Finding("additive", True, text)
        return
    (loss_1, first), (loss_2, second) = gradient(start, parts[0]), gradient(start, parts[1])
    apart = max(_distance(first + second, whole), _apart(loss_1 + loss_2, loss))
    halves = f"{parts[0].size} and {parts[1].size} samples"
    if apart <= tolerance:
        text = f"the sum over {halves} equals the whole to {apart:.1e}: any cut among workers gives the same training"
        yield Finding("additive", True, text)
    elif _is_mean(parts, (first, second), whole):
        yield Finding(
            "additive",
            False,
            "loss_and_grad gives means over its batch, expected sums: multiply loss and gradients by the number of "
            "samples (do not divide by it)",
        )
    else:
        yield Finding(
            "additive",
            False,
            f"the sum over {halves} differs from the whole by {apart:.1e} relative, {tolerance:g} allowed: the task "
            f"couples the samples of a batch. Set batch.granule (for instance {_granule(job.batch.global_)}), so that "
            "cuts among workers do not change the result",
        )


def judge_means(start: Floats, gradient: Gradient, geometry: Geometry) -> Iterator[Finding]:
    """Whether the losses of two halves of a granule add up to twice that of both, as means would.

    `judge_sums` does not see it: granules are as large as each other, and so are all means' weights.
    """
    lo, size = geometry.iteration(0).lo, min(geometry.granule, geometry.iteration(0).size)
    if geometry.granule == 1 or size < 4:
        return
    cut = lo + size // 2
    whole, *halves = (
        gradient(start, Interval(*ends))[0]
        for ends in ((lo, lo + size), (lo, cut), (cut, lo + size))
    )
    if whole and MEANS_ADD_UP[0] <= sum(halves) / whole <= MEANS_ADD_UP[1]:
        yield Finding(
            "means",
            False,
            f"the losses of {cut - lo} and {lo + size - cut} samples add up to about twice the loss of all {size}: is "
            "it their mean? Expected is their sum",
            False,
        )


def judge_tail(start: Floats, gradient: Gradient, geometry: Geometry) -> Iterator[Finding]:
    """Whether the task can do with what is left over for the last batch of a pass."""
    tail = geometry.last_of_pass
    told = f"the last batch of a pass, of {tail.size} sample{'s' if tail.size > 1 else ''}"
    piece = tail.size % geometry.granule
    if 0 < piece < tail.size:
        told += f", the last {piece} in a call of {'its' if piece == 1 else 'their'} own"
    todo = (
        f"Set batch.global or batch.granule so that more of the {geometry.samples} samples are left over for it, "
        "or none"
    )
    try:
        loss, whole = gradient(start, tail)
    except TaskError as error:
        yield Finding("tail", False, f"{told}: {error}. {todo}")
        return
    if not (np.isfinite(loss) and np.isfinite(whole).all()):
        yield Finding("tail", False, f"{told}: loss or gradient is not finite. {todo}", False)


def computes_in_float32(start: Floats, gradient: Gradient, batch: Interval) -> bool:
    """Whether a change of the parameters that float32 cannot hold leaves loss and gradient as they are."""
    rounded = start.astype(np.float32).astype(np.float64)
    rounded[rounded == 0] = 2.0**-4
    loss, g = gradient(rounded, batch)
    moved_loss, moved_g = gradient(rounded * (1 + 1e-9), batch)
    return loss == moved_loss and np.array_equal(g, moved_g)


def judge_slope(start: Floats, gradient: Gradient, batch: Interval) -> Finding:
    """Whether the gradient is the slope of the loss, by central differences at a few coordinates, all in float64."""
    _, g = gradient(start, batch)
    order = np.argsort(-np.abs(g), kind="stable")
    spread = np.linspace(0, len(order) - 1, SLOPE_COORDINATES).astype(np.int64)
    coordinates = sorted({int(i) for i in order[spread]} | {int(order[0])})
    scale = max(float(np.max(np.abs(g))), 1e-12)
    wrong = []
    for i in coordinates:
        h = SLOPE_STEP * max(1.0, abs(float(start[i])))
        above, below = start.copy(), start.copy()
        above[i] += h
        below[i] -= h
        slope = (gradient(above, batch)[0] - gradient(below, batch)[0]) / (above[i] - below[i])
        if abs(slope - g[i]) > SLOPE_TOLERANCE * max(abs(slope), abs(float(g[i])), 0.01 * scale):
            wrong.append((i, float(g[i]), float(slope)))
    tried = f"{len(coordinates)} of {start.size} coordinates"
    if (
        len(wrong) <= len(coordinates) // 4
    ):  # a kink of the loss (a ReLU at 0) may lie on one of them
        return Finding("slope", True, f"the gradient agrees with finite differences at {tried}")
    i, said, slope = wrong[0]
    return Finding(
        "slope",
        False,
        f"the gradient differs from finite differences at {len(wrong)} of {tried}; element {i} of the flat vector: "
        f"gradient {said:.6g}, slope of the loss {slope:.6g}. Is the gradient of the same loss, term by term?",
    )


def _granule(batch: int) -> int:
    """The largest divisor of the batch that still gives four cuts, to begin with."""
    return next(g for g in range(max(1, batch // 4), 0, -1) if batch % g == 0)


def _is_mean(parts: list[Interval], gradients: tuple[Floats, Floats], whole: Floats) -> bool:
    sizes = [part.size for part in parts]
    weighted = (gradients[0] * sizes[0] + gradients[1] * sizes[1]) / sum(sizes)
    return bool(_distance(weighted.astype(whole.dtype), whole) <= 1e-3)


def _distance(a: Floats, b: Floats) -> float:
    gap = float(np.linalg.norm(a.astype(np.float64) - b.astype(np.float64)))
    size = float(np.linalg.norm(b.astype(np.float64)))
    return gap / size if size > 0 else (0.0 if gap == 0 else float("inf"))


def _apart(a: float, b: float) -> float:
    return abs(a - b) / max(abs(b), 1e-6)


def _norm(array: Floats) -> float:
    return float(np.linalg.norm(array.astype(np.float64)))
