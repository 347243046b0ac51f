"""A regression that sleeps for each sample; the first trainer of a job that opens it may be told to sleep longer."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np

FEATURES = np.arange(1.0, 7.0)


class Uneven:
    """Linear regression of a wave.

    `folder`: where the first trainer leaves its mark, and where the test says how fast everything is: the file ``pace``
    has milliseconds per sample, of the first trainer and of the others. Without a folder nobody sleeps.
    """

    def __init__(self, folder: str = "", samples: int = 480) -> None:
        self.folder, self.samples, self.first = folder, samples, False

    def data(self) -> Waves:
        if self.folder:
            try:
                with (Path(self.folder) / "first").open("x") as mark:
                    mark.write(str(os.getpid()))
                self.first = True
            except FileExistsError:
                self.first = False
        return Waves(self.samples)

    def init(self, rng: np.random.Generator) -> dict[str, Any]:
        return {"weights": rng.standard_normal(len(FEATURES)), "bias": np.zeros(())}

    def loss_and_grad(self, params: Any, batch: Any) -> tuple[float, dict[str, Any]]:
        x, y = batch
        if self.folder:
            first_ms, other_ms = map(float, (Path(self.folder) / "pace").read_text().split())
            time.sleep((first_ms if self.first else other_ms) * len(y) / 1000)
        off = x @ params["weights"] + params["bias"] - y
        return 0.5 * float(off @ off), {"weights": x.T @ off, "bias": off.sum()}


class Waves:
    """Points on a wave."""

    def __init__(self, samples: int) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return self._samples

    def get(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.sin(0.1 * indices[:, None] * FEATURES), np.cos(indices / 9)
