"""The loops of the update kernels, in the Python that numba compiles; `elps.optim.plain` states the
same in numpy.

Each scalar argument is of the arrays' dtype, so that float32 stays float32, and no operation is
merged or reordered (no fast-math): that is what makes the two ways agree bit for bit. All arrays
are flat and of one length; `out` may be `values`. A mean gradient is ``acc * scale / divisor +
decay * value``; one of scale and divisor is 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Scalar = Any  # a numpy scalar in Python, a float32 or float64 under numba

FINITE_BLOCK = 4096
"""Elements looked at between two checks for an early end."""


def copy_into(acc: Array, g: Array) -> None:
    """Overwrite."""
    for i in range(acc.size):
        acc[i] = g[i]


def add_into(acc: Array, g: Array) -> None:
    """Add."""
    for i in range(acc.size):
        acc[i] += g[i]


def any_ones(bits: Array, mask: Scalar) -> bool:
    """Whether any element has all bits of `mask`: NaN and infinity are the floats whose exponent is
    all ones.

    On integers, since an OR over them is vectorized, where a sum over floats may not be.
    """
    for lo in range(0, bits.size, FINITE_BLOCK):
        found = False
        for i in range(lo, min(lo + FINITE_BLOCK, bits.size)):
            found |= (bits[i] & mask) == mask
        if found:
            return True
    return False


def sgd(
    acc: Array, scale: Scalar, divisor: Scalar, decay: Scalar, values: Array, out: Array, lr: Scalar
) -> None:
    """Descend: out = value - lr * g."""
    for i in range(acc.size):
        g = acc[i] * scale / divisor + decay * values[i]
        out[i] = values[i] - lr * g


def momentum(
    acc: Array,
    scale: Scalar,
    divisor: Scalar,
    decay: Scalar,
    values: Array,
    out: Array,
    lr: Scalar,
    mu: Scalar,
    velocity: Array,
) -> None:
    """Descend: velocity = mu * velocity + g; out = value - lr * velocity.

    Polyak's, as torch's SGD with dampening 0.
    """
    for i in range(acc.size):
        g = acc[i] * scale / divisor + decay * values[i]
        moved = mu * velocity[i] + g
        velocity[i] = moved
        out[i] = values[i] - lr * moved


def nesterov(
    acc: Array,
    scale: Scalar,
    divisor: Scalar,
    decay: Scalar,
    values: Array,
    out: Array,
    lr: Scalar,
    mu: Scalar,
    velocity: Array,
) -> None:
    """Descend: velocity = mu * velocity + g; out = value - lr * (g + mu * velocity).

    As Sutskever et al. 2013 put it and torch's SGD computes it: the gradient is taken where the
    parameters stand, and the momentum's next part of the way is gone at once.
    """
    for i in range(acc.size):
        g = acc[i] * scale / divisor + decay * values[i]
        moved = mu * velocity[i] + g
        velocity[i] = moved
        out[i] = values[i] - lr * (g + mu * moved)


def adagrad(
    acc: Array,
    scale: Scalar,
    divisor: Scalar,
    decay: Scalar,
    values: Array,
    out: Array,
    lr: Scalar,
    eps: Scalar,
    squares: Array,
) -> None:
    """Descend: squares += g²; out = value - lr * g / (√squares + eps). Duchi et al. 2011."""
    for i in range(acc.size):
        g = acc[i] * scale / divisor + decay * values[i]
        total = squares[i] + g * g
        squares[i] = total
        out[i] = values[i] - lr * g / (np.sqrt(total) + eps)


def rmsprop(
    acc: Array,
    scale: Scalar,
    divisor: Scalar,
    decay: Scalar,
    values: Array,
    out: Array,
    lr: Scalar,
    alpha: Scalar,
    one_less_alpha: Scalar,
    eps: Scalar,
    v: Array,
) -> None:
    """v: running mean of g²; out = value - lr * g / (√v + eps).

    Tieleman and Hinton 2012, as torch's without momentum and not centred.
    """
    for i in range(acc.size):
        g = acc[i] * scale / divisor + decay * values[i]
        mean = alpha * v[i] + one_less_alpha * g * g
        v[i] = mean
        out[i] = values[i] - lr * g / (np.sqrt(mean) + eps)


def ftrl(
    acc: Array,
    scale: Scalar,
    divisor: Scalar,
    decay: Scalar,
    values: Array,
    out: Array,
    lr: Scalar,
    beta: Scalar,
    l1: Scalar,
    less_l1: Scalar,
    l2: Scalar,
    pull: Array,
    squares: Array,
) -> None:
    """FTRL-Proximal by coordinate (McMahan et al. 2013, algorithm 1); `less_l1` is -l1.

    With 1/η = (beta + √squares) / lr the paper keeps z, the sum of all g - (1/η - 1/η before) ·
    value, and solves value = -(z - sign(z) l1) / (1/η + l2), or 0 where |z| <= l1. Kept here is
    `pull` = z + value/η, taken after each step. Where the paper begins, at value 0 with one rate,
    that is the same number for number. It needs no rate of the step before, so that a schedule
    changes the steps and not the values (the paper's form would scale them by the rates' ratio);
    and parameters that do not begin at 0 begin where they are.
    """
    for i in range(acc.size):
        g = acc[i] * scale / divisor + decay * values[i]
        total = squares[i] + g * g
        squares[i] = total
        inverse = (beta + np.sqrt(total)) / lr
        z = pull[i] + g - values[i] * inverse
        inside = min(max(z, less_l1), l1)
        new = (inside - z) / (inverse + l2)
        pull[i] = inside - l2 * new  # z + new * inverse, without its cancellation
        out[i] = new


def adam(
    acc: Array,
    scale: Scalar,
    divisor: Scalar,
    decay: Scalar,
    values: Array,
    out: Array,
    keep: Scalar,
    size: Scalar,
    beta1: Scalar,
    one_less_beta1: Scalar,
    beta2: Scalar,
    one_less_beta2: Scalar,
    root: Scalar,
    eps: Scalar,
    m: Array,
    v: Array,
) -> None:
    """m, v: running means of g and g²; out = value * keep - size * m / (√v * root + eps).

    `size` is the rate over 1 - beta1^step, `root` is 1 / √(1 - beta2^step); `keep` is 1 - lr *
    weight decay under adamw, where `decay` is 0, and 1 under adam.
    """
    for i in range(acc.size):
        g = acc[i] * scale / divisor + decay * values[i]
        first = beta1 * m[i] + one_less_beta1 * g
        second = beta2 * v[i] + one_less_beta2 * g * g
        m[i] = first
        v[i] = second
        out[i] = values[i] * keep - size * first / (np.sqrt(second) * root + eps)
