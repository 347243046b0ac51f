"""A task whose parameters count the samples that training used."""

from __future__ import annotations

from typing import Any

import numpy as np


class Numbers:
    """Samples that are their own numbers."""

    def __init__(self, samples: int) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return self._samples

    def get(self, indices: np.ndarray) -> np.ndarray:
        return np.array(indices)


class Counting:
    """Parameter *i* goes up by lr / (samples counted in the iteration) whenever sample *i* is used."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def data(self) -> Numbers:
        return Numbers(self.samples)

    def init(self, rng: np.random.Generator) -> dict[str, Any]:
        return {"count": np.zeros(self.samples)}

    def loss_and_grad(self, params: Any, batch: np.ndarray) -> tuple[float, dict[str, Any]]:
        gradient = np.zeros_like(params["count"])
        np.subtract.at(gradient, batch, 1.0)
        return float(len(batch)), {"count": gradient}
