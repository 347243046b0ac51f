"""Tasks that compute next to nothing, so that what is measured is elps."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class Numbers:
    """A data set of sample numbers."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def get(self, indices: Array) -> Array:
        return indices


class Idle:
    """`size` float32 parameters, all in one array; every sample's gradient is the same small number.

    It may take its time over a sample, in which it leaves the machine to others.
    """

    def __init__(self, size: int, samples: int = 1024, sample_s: float = 0.0) -> None:
        self.size, self.samples, self.sample_s = size, samples, sample_s
        self._gradient = np.full(size, 1e-6, np.float32)

    def data(self) -> Numbers:
        return Numbers(self.samples)

    def init(self, rng: np.random.Generator) -> Mapping[str, Array]:
        return {"x": np.zeros(self.size, np.float32)}

    def loss_and_grad(
        self, params: Mapping[str, Array], batch: Array
    ) -> tuple[float, Mapping[str, Array]]:
        if self.sample_s:
            time.sleep(self.sample_s * len(batch))
        return float(len(batch)), {"x": self._gradient}
