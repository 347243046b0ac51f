"""The update kernels in numpy, operation by operation as in `elps.optim.loops`, in blocks that stay
in the cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Scalar = Any

BLOCK = 16_384
"""Elements worked on at once; the scratch of one block is at most 5 x 128 KiB."""


def _blocks(size: int) -> Iterator[slice]:
    return (slice(lo, min(lo + BLOCK, size)) for lo in range(0, size, BLOCK))


def copy_into(acc: Array, g: Array) -> None:
    """Overwrite."""
    np.copyto(acc, g)


def add_into(acc: Array, g: Array) -> None:
    """Add."""
    with np.errstate(all="ignore"):
        np.add(acc, g, out=acc)


def all_finite(x: Array) -> bool:
    """Whether no element is NaN or infinite."""
    return all(bool(np.isfinite(x[part]).all()) for part in _blocks(x.size))


def sgd(
    acc: Array, scale: Scalar, divisor: Scalar, decay: Scalar, values: Array, out: Array, lr: Scalar
) -> None:
    """See `elps.optim.loops.sgd`."""
    with np.errstate(all="ignore"):
        for part in _blocks(acc.size):
            g = _gradient(acc[part], scale, divisor, decay, values[part])
            np.multiply(g, lr, out=g)
            np.subtract(values[part], g, out=out[part])


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
    """See `elps.optim.loops.momentum`."""
    with np.errstate(all="ignore"):
        for part in _blocks(acc.size):
            g = _gradient(acc[part], scale, divisor, decay, values[part])
            moved = velocity[part]
            np.multiply(moved, mu, out=moved)
            np.add(moved, g, out=moved)
            np.multiply(moved, lr, out=g)
            np.subtract(values[part], g, out=out[part])


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
    """See `elps.optim.loops.nesterov`."""
    with np.errstate(all="ignore"):
        for part in _blocks(acc.size):
            g = _gradient(acc[part], scale, divisor, decay, values[part])
            moved = velocity[part]
            np.multiply(moved, mu, out=moved)
            np.add(moved, g, out=moved)
            np.add(g, np.multiply(moved, mu), out=g)
            np.multiply(g, lr, out=g)
            np.subtract(values[part], g, out=out[part])


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
    """See `elps.optim.loops.adagrad`."""
    with np.errstate(all="ignore"):
        for part in _blocks(acc.size):
            g = _gradient(acc[part], scale, divisor, decay, values[part])
            total = squares[part]
            np.add(total, np.multiply(g, g), out=total)
            root = np.sqrt(total)
            np.add(root, eps, out=root)
            np.multiply(g, lr, out=g)
            np.divide(g, root, out=g)
            np.subtract(values[part], g, out=out[part])


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
    """See `elps.optim.loops.rmsprop`."""
    with np.errstate(all="ignore"):
        for part in _blocks(acc.size):
            g = _gradient(acc[part], scale, divisor, decay, values[part])
            mean = v[part]
            np.multiply(mean, alpha, out=mean)
            root = np.multiply(g, one_less_alpha)
            np.multiply(root, g, out=root)
            np.add(mean, root, out=mean)
            np.sqrt(mean, out=root)
            np.add(root, eps, out=root)
            np.multiply(g, lr, out=g)
            np.divide(g, root, out=g)
            np.subtract(values[part], g, out=out[part])


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
    """See `elps.optim.loops.ftrl`."""
    with np.errstate(all="ignore"):
        for part in _blocks(acc.size):
            z = _gradient(acc[part], scale, divisor, decay, values[part])
            total = squares[part]
            np.add(total, np.multiply(z, z), out=total)
            inverse = np.sqrt(total)
            np.add(inverse, beta, out=inverse)
            np.divide(inverse, lr, out=inverse)
            np.add(z, pull[part], out=z)
            new = np.multiply(values[part], inverse)
            np.subtract(z, new, out=z)
            np.maximum(z, less_l1, out=new)
            np.minimum(new, l1, out=new)
            inside = np.subtract(new, z)
            np.add(inverse, l2, out=inverse)
            np.divide(inside, inverse, out=inside)
            np.subtract(new, np.multiply(inside, l2, out=z), out=pull[part])
            out[part] = inside


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
    """See `elps.optim.loops.adam`."""
    with np.errstate(all="ignore"):
        for part in _blocks(acc.size):
            g = _gradient(acc[part], scale, divisor, decay, values[part])
            first, second = m[part], v[part]
            np.multiply(first, beta1, out=first)
            scaled = np.multiply(g, one_less_beta1)
            np.add(first, scaled, out=first)
            np.multiply(second, beta2, out=second)
            np.multiply(g, one_less_beta2, out=scaled)
            np.multiply(scaled, g, out=scaled)
            np.add(second, scaled, out=second)
            np.sqrt(second, out=scaled)
            np.multiply(scaled, root, out=scaled)
            np.add(scaled, eps, out=scaled)
            np.multiply(first, size, out=g)
            np.divide(g, scaled, out=g)
            np.multiply(values[part], keep, out=scaled)
            np.subtract(scaled, g, out=out[part])


def _gradient(acc: Array, scale: Scalar, divisor: Scalar, decay: Scalar, values: Array) -> Array:
    g = np.multiply(acc, scale)
    np.divide(g, divisor, out=g)
    np.add(g, np.multiply(values, decay), out=g)
    return g
