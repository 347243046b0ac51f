"""What the zygote imports, so that no trainer has to."""

from __future__ import annotations

import gc
import importlib
import threading
from collections.abc import Callable, Sequence

import numpy as np

from elps.contracts.errors import SetupError
from elps.contracts.messages import StartTrainer
from elps.worker.zygote.linux import thread_count

Trainer = Callable[[StartTrainer, dict[str, str]], int]
"""Runs a trainer to its end and returns its exit code."""

PRELOAD = ("numpy", "scipy.sparse", "elps.tasks.opening", "elps.optim")
"""Beside the trainer's own module and whatever that imports."""

ONE_THREAD = dict.fromkeys(
    (
        "OPENBLAS_NUM_THREADS",
        "OMP_NUM_THREADS",
        "MKL_NUM_THREADS",
        "BLIS_NUM_THREADS",
        "NUMEXPR_NUM_THREADS",
        "VECLIB_MAXIMUM_THREADS",
    ),
    "1",
)
"""Environment of the zygote, set before it imports anything: a process with threads cannot be forked safely."""


def preload(modules: Sequence[str], trainer: str) -> Trainer:
    """Import the modules, compile the kernels, and return the trainer's function, given as ``module:function``.

    Raises `SetupError` naming the module that cannot be imported or that starts a thread.
    """
    for name in modules:
        _import(name)
    module, _, function = trainer.partition(":")
    _import(module)
    run: Trainer = getattr(importlib.import_module(module), function)
    if "elps.optim" in modules:
        for dtype in ("float32", "float64"):
            importlib.import_module("elps.optim").warm_up(dtype)
            square = np.ones((256, 256), dtype)
            np.matmul(square, square)  # the library sets itself up
        require_one_thread("compiling the kernels")
    # What lives now lives for ever: kept out of collections, its pages stay shared with the trainers.
    gc.collect()
    gc.freeze()
    return run


def _import(name: str) -> None:
    try:
        importlib.import_module(name)
    except Exception as error:
        raise SetupError(f"importing {name}: {type(error).__name__}: {error}") from error
    require_one_thread(f"importing {name}")


def require_one_thread(doing: str) -> None:
    """Raise `SetupError` if this process has more than one thread."""
    count = max(thread_count(), threading.active_count())
    if count != 1:
        names = ", ".join(t.name for t in threading.enumerate() if t is not threading.main_thread())
        raise SetupError(
            f"{doing} left {count} threads ({names or 'of a C library'}); a process with threads cannot be forked "
            "safely: take the module out of ELPS_PRELOAD"
        )
