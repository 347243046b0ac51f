"""A task with state: a linear regression that learns the scale of its features on the way."""

from __future__ import annotations

import numpy as np


class Standardizing:
    """`mean` follows the features, `largest` is the largest yet, `newest` the last sample's; `steps` counts."""

    state_rules = {"mean": "mean", "largest": "max", "steps": "max", "newest": "last"}  # noqa: RUF012

    def __init__(self, dataset, rate: float = 0.1) -> None:
        self._features = dataset.get(np.zeros(1, dtype=np.int64))[0].shape[1]
        self._rate = rate

    def init(self, rng):
        zeros = np.zeros(self._features)
        return {
            "mean": zeros,
            "weights": zeros,
            "largest": zeros - 100,
            "steps": 0.0,
            "bias": 0.0,
            "newest": zeros,
        }

    def loss_and_grad(self, params, batch):
        x, y = batch
        centred = (x - params["mean"]) / np.maximum(1, np.abs(params["largest"]))
        off = centred @ params["weights"] + params["bias"] - y
        return (off @ off) / 2, {
            "weights": centred.T @ off,
            "bias": off.sum(),
            "mean": (1 - self._rate) * params["mean"] + self._rate * x.mean(axis=0),
            "largest": np.maximum(params["largest"], x.max(axis=0)),
            "steps": params["steps"] + 1,
            "newest": x[-1],
        }

    def evaluate(self, params, batch):
        x, y = batch
        centred = (x - params["mean"]) / np.maximum(1, np.abs(params["largest"]))
        off = centred @ params["weights"] + params["bias"] - y
        return {"mse": (off @ off), "wildest": np.abs(off).sum()}
