"""The set of kernels for one dtype, compiled by numba or written in numpy."""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from elps.contracts.errors import SetupError
from elps.optim import loops, plain

KERNELS_SETTING = "ELPS_KERNELS"


@dataclass(frozen=True)
class Kernels:
    """Functions over flat arrays of one dtype; their arguments are those of `elps.optim.loops`."""

    copy_into: Callable[..., None]
    add_into: Callable[..., None]
    all_finite: Callable[[Any], bool]
    sgd: Callable[..., None]
    momentum: Callable[..., None]
    nesterov: Callable[..., None]
    adagrad: Callable[..., None]
    rmsprop: Callable[..., None]
    adam: Callable[..., None]
    ftrl: Callable[..., None]


@functools.cache
def chosen_kernels(dtype: np.dtype[Any]) -> Kernels:
    """The kernels for a dtype, in the way that ``ELPS_KERNELS`` names: the first call in a process
    reads it and loads them.
    """
    return kernels(dtype.name, os.environ.get(KERNELS_SETTING, "numba"))


@functools.cache
def kernels(dtype: str, way: str) -> Kernels:
    """The kernels for ``float32`` or ``float64`` by ``numba`` or ``numpy``."""
    if dtype not in ("float32", "float64"):
        raise ValueError(f"there are kernels for float32 and float64, not for {dtype}")
    match way:
        case "numba":
            return _compiled(dtype)
        case "numpy":
            return Kernels(**{f.name: getattr(plain, f.name) for f in fields(Kernels)})
    raise SetupError(f"{KERNELS_SETTING} is {way!r}; expected numba or numpy")


def _compiled(dtype: str) -> Kernels:
    """Load the kernels from numba's cache, or compile them for a second or two and leave them
    there.

    Signatures are given, so nothing is ever compiled in the middle of training; inputs are declared
    read-only, which writable arrays fit as well.
    """
    numba: Any = importlib.import_module("numba")
    types: Any = numba.types
    real = getattr(types, dtype)
    written = types.Array(real, 1, "C")
    read = types.Array(real, 1, "C", readonly=True)
    whole, bits_of, mask = (
        (types.uint32, np.uint32, np.uint32(0x7F80_0000))
        if dtype == "float32"
        else (types.uint64, np.uint64, np.uint64(0x7FF0_0000_0000_0000))
    )
    gradient = (read, real, real, real, read, written)  # acc, scale, divisor, decay, values, out
    any_ones = _jit(loops.any_ones, types.boolean(types.Array(whole, 1, "C", readonly=True), whole))
    return Kernels(
        copy_into=_jit(loops.copy_into, types.void(written, read)),
        add_into=_jit(loops.add_into, types.void(written, read)),
        all_finite=lambda x: not any_ones(x.view(bits_of), mask),
        sgd=_jit(loops.sgd, types.void(*gradient, real)),
        momentum=_jit(loops.momentum, types.void(*gradient, real, real, written)),
        nesterov=_jit(loops.nesterov, types.void(*gradient, real, real, written)),
        adagrad=_jit(loops.adagrad, types.void(*gradient, real, real, written)),
        rmsprop=_jit(loops.rmsprop, types.void(*gradient, *[real] * 4, written)),
        adam=_jit(loops.adam, types.void(*gradient, *[real] * 8, written, written)),
        ftrl=_jit(loops.ftrl, types.void(*gradient, *[real] * 5, written, written)),
    )


def _jit(function: Callable[..., Any], signature: Any) -> Callable[..., Any]:
    """Compile for one signature, with the result kept on disk.

    numba keeps it in ``NUMBA_CACHE_DIR``, else beside the source, else in the user's cache folder.
    Where none of them can be written it is compiled in each process: a shared place like /tmp would
    let others plant code. `error_model="numpy"`: with Python's, the check for a division by 0 keeps
    loops from being vectorized.
    """
    numba: Any = importlib.import_module("numba")
    options = {"nogil": True, "error_model": "numpy", "fastmath": False, "parallel": False}
    try:
        compiled: Callable[..., Any] = numba.njit([signature], cache=True, **options)(function)
    except RuntimeError as error:
        if "cache" not in str(error):
            raise
        compiled = numba.njit([signature], cache=False, **options)(function)
    return compiled
