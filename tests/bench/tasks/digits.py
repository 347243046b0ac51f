"""Softmax regression of handwritten digits that takes as long as on a slow machine: the rest of it is sleep."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from idle import Array
from sklearn.datasets import load_digits


class Images:
    """Pixels between 0 and 1, and which digit it is."""

    def __init__(self, pixels: Array, digits: Array) -> None:
        self.pixels, self.digits = pixels, digits

    def __len__(self) -> int:
        return len(self.digits)

    def get(self, indices: Array) -> tuple[Array, Array]:
        return self.pixels[indices], self.digits[indices]


class Digits:
    """A call takes `sample_ms` for each sample."""

    def __init__(self, sample_ms: float) -> None:
        self.sample_s = sample_ms / 1000
        pixels, digits = load_digits(return_X_y=True)
        self._images = pixels.astype(np.float32) / 16, digits

    def data(self) -> tuple[Images, Images]:
        pixels, digits = self._images
        test = np.arange(len(digits)) % 5 == 0
        return Images(pixels[~test], digits[~test]), Images(pixels[test], digits[test])

    def init(self, rng: np.random.Generator) -> Mapping[str, Array]:
        return {"w": np.zeros((64, 10), np.float32), "b": np.zeros(10, np.float32)}

    def loss_and_grad(
        self, params: Mapping[str, Array], batch: tuple[Array, Array]
    ) -> tuple[float, Mapping[str, Any]]:
        pixels, digits = batch
        time.sleep(self.sample_s * len(digits))
        shares, loss = self._shares(params, pixels, digits)
        shares[np.arange(len(digits)), digits] -= 1
        return loss, {"w": pixels.T @ shares, "b": shares.sum(axis=0)}

    def evaluate(
        self, params: Mapping[str, Array], batch: tuple[Array, Array]
    ) -> Mapping[str, float]:
        pixels, digits = batch
        shares, loss = self._shares(params, pixels, digits)
        return {"loss": loss, "accuracy": float((shares.argmax(axis=1) == digits).sum())}

    @staticmethod
    def _shares(params: Mapping[str, Array], pixels: Array, digits: Array) -> tuple[Array, float]:
        scores = pixels @ params["w"] + params["b"]
        scores -= scores.max(axis=1, keepdims=True)
        shares = np.exp(scores)
        shares /= shares.sum(axis=1, keepdims=True)
        return shares, float(-np.log(shares[np.arange(len(digits)), digits] + 1e-12).sum())
