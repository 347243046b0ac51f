"""A task whose computation is sleep, so that many emulated workers fit a machine of few cores."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from idle import Array, Numbers


class Sleeping:
    """A few parameters; a call takes `call_ms`, `sample_ms` for each sample, and up to `jitter` of it more or less."""

    def __init__(
        self, sample_ms: float, jitter: float = 0.0, call_ms: float = 0.0, samples: int = 1_000_000
    ) -> None:
        self.sample_s, self.call_s = sample_ms / 1000, call_ms / 1000
        self.jitter, self.samples = jitter, samples
        self._chance = np.random.default_rng()  # of the time alone: each trainer draws its own
        self._gradient = np.full(16, 1e-6, np.float32)

    def data(self) -> Numbers:
        return Numbers(self.samples)

    def init(self, rng: np.random.Generator) -> Mapping[str, Array]:
        return {"x": np.zeros(16, np.float32)}

    def loss_and_grad(
        self, params: Mapping[str, Array], batch: Array
    ) -> tuple[float, Mapping[str, Any]]:
        noise = self._chance.uniform(1 - self.jitter, 1 + self.jitter)
        time.sleep((self.call_s + self.sample_s * len(batch)) * noise)
        return float(len(batch)), {"x": self._gradient}
