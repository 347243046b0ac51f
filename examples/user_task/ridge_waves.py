"""A task of one's own: robust regression of a noisy wave, with data made on the spot.

Run it: the worker's operator allows this folder by ``ELPS_TASK_PATH``, and the job names ``ridge_waves:RidgeWaves``.

elps calls `loss_and_grad` with any cut of a batch and adds the sums up, so everything here is a *sum over the samples*,
the ridge term included: one share of it for each sample.
"""

from __future__ import annotations

import numpy as np


class Waves:
    """Points (t, y) on a sum of three waves; a few of them are far off."""

    def __init__(self, samples: int, first: int, seed: int) -> None:
        rng = np.random.default_rng([seed, first])
        self.t = rng.uniform(0.0, 1.0, samples)
        truth = (
            np.sin(2 * np.pi * self.t)
            + 0.5 * np.cos(6 * np.pi * self.t)
            - 0.3 * np.sin(10 * np.pi * self.t)
        )
        far_off = rng.random(samples) < 0.05
        self.y = (
            truth + 0.1 * rng.standard_normal(samples) + far_off * rng.normal(0.0, 8.0, samples)
        )

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.t)

    def get(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The batch of these samples."""
        return self.t[indices], self.y[indices]


class RidgeWaves:
    """Fits sines and cosines with Huber's loss, which far-off points pull on only so hard."""

    def __init__(
        self,
        waves: int = 8,
        samples: int = 2000,
        ridge: float = 1e-4,
        delta: float = 0.2,
        seed: int = 0,
    ):
        self.waves, self.samples, self.ridge, self.delta, self.seed = (
            waves,
            samples,
            ridge,
            delta,
            seed,
        )

    def data(self) -> tuple[Waves, Waves]:
        """Training and test part."""
        return Waves(self.samples, 0, self.seed), Waves(self.samples // 4, 1, self.seed)

    def init(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Small random coefficients."""
        return {
            "sine": 0.1 * rng.standard_normal(self.waves),
            "cosine": 0.1 * rng.standard_normal(self.waves + 1),
        }

    def loss_and_grad(self, params, batch):
        """Huber's loss and its gradient, summed over the batch."""
        t, y = batch
        sine, cosine = self._basis(t)
        off = sine @ params["sine"] + cosine @ params["cosine"] - y
        pull = np.clip(off, -self.delta, self.delta)
        loss = (pull * (off - pull / 2)).sum()
        gradient = {"sine": pull @ sine, "cosine": pull @ cosine}
        for name, value in params.items():
            loss += len(t) * self.ridge / 2 * (value**2).sum()
            gradient[name] = gradient[name] + len(t) * self.ridge * value
        return loss, gradient

    def evaluate(self, params, batch):
        """Absolute error and share of points within 0.3, summed over the batch."""
        t, y = batch
        sine, cosine = self._basis(t)
        off = np.abs(sine @ params["sine"] + cosine @ params["cosine"] - y)
        return {"absolute_error": off.sum(), "near": (off < 0.3).sum()}

    def _basis(self, t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        angles = 2 * np.pi * t[:, None] * np.arange(self.waves + 1)
        return np.sin(angles[:, 1:]), np.cos(angles)
