"""The order of samples within a pass, and random numbers per sample: functions of the job's seed alone.

Whoever computes a sample, on whichever machine and for whichever time, sees the same order and draws the same numbers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from elps.stream.interval import Interval

_ORDER, _SAMPLE, _INIT = 0, 1, 2  # separate streams of one seed


def permutation(seed: int, pass_: int, samples: int) -> NDArray[np.int64]:
    """The order of samples in a pass: shape (samples,), a permutation of 0 … samples-1."""
    return np.random.Generator(np.random.PCG64([_ORDER, seed, pass_])).permutation(samples)


def sample_rng(seed: int, pass_: int, index: int) -> np.random.Generator:
    """The generator of one sample (or granule) in one pass. Costs about 10 µs, so it is made only when asked for."""
    return np.random.Generator(np.random.PCG64([_SAMPLE, seed, pass_, index]))


def init_rng(seed: int) -> np.random.Generator:
    """The generator that a task's `init` is given."""
    return np.random.Generator(np.random.PCG64([_INIT, seed]))


class Order:
    """Sample indices of stream intervals; keeps the permutations of the two passes used last."""

    def __init__(self, seed: int, samples: int) -> None:
        self.seed, self.samples = seed, samples
        self._kept: dict[int, NDArray[np.int64]] = {}  #: pass to permutation, at most two

    def indices(self, interval: Interval) -> tuple[int, NDArray[np.int64]]:
        """Pass and sample indices, shape (size,), of an interval that lies within one pass."""
        pass_, lo = divmod(interval.lo, self.samples)
        if pass_ not in self._kept:
            if len(self._kept) == 2:
                del self._kept[min(self._kept, key=lambda e: (abs(e - pass_) < 2, e))]
            self._kept[pass_] = permutation(self.seed, pass_, self.samples)
        return pass_, self._kept[pass_][lo : lo + interval.size]
