"""Counts of samples; a call takes a while by itself and for each sample, now more and now less."""

from __future__ import annotations

import time
from typing import Any

import numpy as np


class Jumpy:
    """A call sleeps `call_ms`, and `sample_ms` for each sample, all of it times 1 - `jump` to 1 + `jump`."""

    def __init__(self, call_ms: float, sample_ms: float, jump: float, elements: int = 4) -> None:
        self.elements = elements
        self.call_s, self.sample_s, self.jump = call_ms / 1000, sample_ms / 1000, jump
        self._chance = np.random.default_rng()  # of the time alone: each trainer draws its own

    def data(self) -> Numbers:
        return Numbers()

    def init(self, rng: np.random.Generator) -> dict[str, Any]:
        return {"count": np.zeros(self.elements)}

    def loss_and_grad(self, params: Any, batch: Any) -> tuple[float, dict[str, Any]]:
        took_s = self.call_s + self.sample_s * len(batch)
        time.sleep(took_s * self._chance.uniform(1 - self.jump, 1 + self.jump))
        return float(len(batch)), {"count": np.full(self.elements, -float(len(batch)))}


class Numbers:
    """Samples that are their numbers."""

    def __len__(self) -> int:
        return 100_000

    def get(self, indices: np.ndarray) -> np.ndarray:
        return indices
