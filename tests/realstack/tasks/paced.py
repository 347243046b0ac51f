"""A small regression that takes as long as a test wants, and that can be stopped in the middle of an iteration."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np

ARM = "arm"
LOOK_S = 0.005


class Numbers:
    """Samples drawn from a fixed seed."""

    def __init__(self, samples: int, features: int, outputs: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self._x = rng.standard_normal((samples, features))
        truth = rng.standard_normal((features, outputs))
        self._y = (self._x @ truth + rng.standard_normal((samples, outputs)) > 0).astype(float)

    def __len__(self) -> int:
        return len(self._x)

    def get(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self._x[indices], self._y[indices]


class Paced:
    """Logistic regression with several outputs; every call takes `pace_s` at least.

    `hold` is a folder: a trainer that finds a file `arm` there takes it, leaves one with its process id, and stands in
    the middle of its computation until that is gone. What is computed depends on neither.
    """

    def __init__(
        self,
        samples: int = 500,
        features: int = 30,
        outputs: int = 40,
        pace_s: float = 0.0,
        hold: str = "",
    ) -> None:
        self._shape = (features, outputs)
        self._samples, self._pace_s = samples, pace_s
        self._hold = Path(hold) if hold else None

    def data(self) -> tuple[Numbers, Numbers]:
        return Numbers(self._samples, *self._shape, seed=1), Numbers(64, *self._shape, seed=2)

    def init(self, rng: np.random.Generator) -> dict[str, Any]:
        return {"w": 0.1 * rng.standard_normal(self._shape), "b": np.zeros(self._shape[1])}

    def loss_and_grad(self, params: Any, batch: Any) -> tuple[float, dict[str, Any]]:
        time.sleep(self._pace_s)
        self._stand()
        x, y = batch
        x = x.astype(params["w"].dtype)
        z = x @ params["w"] + params["b"]
        off = 1 / (1 + np.exp(-z)) - y
        loss = float((np.logaddexp(0, z) - y * z).sum())
        return loss, {"w": x.T @ off, "b": off.sum(axis=0)}

    def evaluate(self, params: Any, batch: Any) -> dict[str, float]:
        x, y = batch
        right = ((x @ params["w"] + params["b"] > 0) == y).mean(axis=1)
        return {"accuracy": float(right.sum())}

    def _stand(self) -> None:
        if self._hold is None:
            return
        mine = self._hold / str(os.getpid())
        try:
            (self._hold / ARM).rename(mine)
        except FileNotFoundError:
            return
        while mine.exists():
            time.sleep(LOOK_S)
