"""Sums of gradients and optimizer steps over flat arrays.

Every function releases the interpreter lock under numba and works on any size, 0 and 1 included.
Arrays are one-dimensional, contiguous, of one dtype (float32 or float64) and of one length; else
`ValueError`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elps.contracts.job import Optimizer
from elps.optim.kernels import Kernels, chosen_kernels

Floats = NDArray[np.floating[Any]]

_STATE_NAMES: dict[str, tuple[str, ...]] = {
    "sgd": (),
    "momentum": ("momentum",),
    "nesterov": ("momentum",),
    "adagrad": ("squares",),
    "rmsprop": ("v",),
    "adam": ("m", "v"),
    "adamw": ("m", "v"),
    "ftrl": ("pull", "squares"),
}


_BLOCK = 16_384
"""Elements of which the squares are summed at once: they stay in the cache."""
_PLAIN = 1e-200, 1e300
"""Sums of squares that have lost nothing to the ends of the range."""


def state_names(spec: Optimizer) -> tuple[str, ...]:
    """Names of the arrays that the optimizer keeps beside the values; each is of their size and
    begins as zeros.
    """
    return _STATE_NAMES[spec.name]


def copy_into(acc: Floats, g: Floats) -> None:
    """Set acc = g."""
    _fit(acc, g).copy_into(acc, g)


def add_into(acc: Floats, g: Floats) -> None:
    """Add: acc += g."""
    _fit(acc, g).add_into(acc, g)


def all_finite(x: Floats) -> bool:
    """Whether no element is NaN or infinite."""
    return bool(_fit(x).all_finite(x))


def norm(x: Floats) -> float:
    """Euclidean norm, reckoned in float64. Not finite only if an element is not, or if it is above 1.8e308."""
    total = _squares(x, 1.0)
    if _PLAIN[0] < total < _PLAIN[1]:
        return math.sqrt(total)
    peak = float(np.max(np.abs(x), initial=0.0))
    if not 0.0 < peak < math.inf:
        return peak
    return peak * math.sqrt(_squares(x, peak))


def _squares(x: Floats, unit: float) -> float:
    """Sum of the squares of x / unit."""
    total = 0.0
    with np.errstate(over="ignore", under="ignore"):
        for lo in range(0, x.size, _BLOCK):
            part = x[lo : lo + _BLOCK].astype(np.float64)
            part /= unit
            total += float(np.sum(np.square(part, out=part)))
    return total


def apply(
    spec: Optimizer,
    acc: Floats,
    scale: float,
    values: Floats,
    out: Floats,
    state: Mapping[str, Floats],
    lr: float,
    step: int,
) -> None:
    """One optimizer step in one pass: ``out`` becomes the new values, the state arrays are updated
    in place.

    The gradient is ``acc * scale``; `scale` is 1 over the samples counted, and then the sum is
    really divided by that whole number, so that the mean is correctly rounded (49 times the
    gradient 1 gives 1). `lr` is the rate with the schedule's factor in it, `step` counts from 1.
    `out` may be `values`; no other two arrays may share memory.
    """
    if step < 1:
        raise ValueError(f"steps count from 1, got {step}")
    arrays = [state[name] for name in state_names(spec)]
    chosen = _fit(acc, values, out, *arrays)
    real = acc.dtype.type
    scale, divisor = _as_division(scale)
    decay = 0.0 if spec.name == "adamw" else spec.weight_decay
    gradient = (acc, real(scale), real(divisor), real(decay), values, out)
    scalars: tuple[float, ...]
    match spec.name:
        case "sgd":
            chosen.sgd(*gradient, real(lr))
        case "momentum":
            chosen.momentum(*gradient, real(lr), real(spec.momentum), *arrays)
        case "nesterov":
            chosen.nesterov(*gradient, real(lr), real(spec.momentum), *arrays)
        case "adagrad":
            chosen.adagrad(*gradient, real(lr), _eps(spec, real), *arrays)
        case "rmsprop":
            scalars = (spec.alpha, 1.0 - spec.alpha)
            chosen.rmsprop(*gradient, real(lr), *map(real, scalars), _eps(spec, real), *arrays)
        case "ftrl" if real(lr) <= _LEAST_RATE * np.finfo(real).tiny:
            np.copyto(out, values)  # it divides by the rate; without one nothing is learned
        case "ftrl":
            scalars = (lr, spec.beta, spec.l1, -spec.l1, spec.l2)
            chosen.ftrl(*gradient, *map(real, scalars), *arrays)
        case "adam" | "adamw":
            keep = 1.0 - lr * spec.weight_decay if spec.name == "adamw" else 1.0
            scalars = (
                keep,
                lr / (1.0 - spec.beta1**step),
                spec.beta1,
                1.0 - spec.beta1,
                spec.beta2,
                1.0 - spec.beta2,
                1.0 / math.sqrt(1.0 - spec.beta2**step),
            )
            chosen.adam(*gradient, *map(real, scalars), _eps(spec, real), *arrays)


def warm_up(dtype: str | np.dtype[Any]) -> None:
    """Load (or compile) every kernel for a dtype and run it once, so that no later call waits for
    it.
    """
    one = np.ones(1, dtype)
    copy_into(one.copy(), one)
    add_into(one.copy(), one)
    all_finite(one)
    for name in _STATE_NAMES:
        spec = Optimizer(name=name)  # type: ignore[arg-type]
        apply(spec, one, 1.0, one, one.copy(), {s: one.copy() for s in state_names(spec)}, 0.1, 1)


_LEAST_RATE = 1e9
"""Times the smallest number: below it the inverse of a rate, times what FTRL adds up, may not be finite."""


def _eps(spec: Optimizer, real: Any) -> Any:
    """The spec's, at least the smallest that the dtype holds: 0 would give 0 / 0 without a gradient."""
    return real(max(real(spec.eps), np.finfo(real).tiny))


def _as_division(scale: float) -> tuple[float, float]:
    """Factor and divisor that together are `scale`; one of them is 1."""
    if 0.0 < scale <= 1.0:
        count = round(1.0 / scale)
        if 1.0 / count == scale:
            return 1.0, float(count)
    return scale, 1.0


def _fit(first: Floats, *others: Floats) -> Kernels:
    dtype, shape = first.dtype, first.shape
    for array in (first, *others):
        if (
            array.shape != shape
            or array.dtype != dtype
            or array.ndim != 1
            or not array.flags.c_contiguous
        ):
            contiguous = "" if array.flags.c_contiguous else ", not contiguous"
            raise ValueError(
                f"arrays do not fit: {dtype} {shape} and {array.dtype} {array.shape}{contiguous}"
            )
    return chosen_kernels(dtype)
