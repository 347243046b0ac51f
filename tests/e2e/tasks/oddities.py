"""What users' models and gradients can be like."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import numpy as np
from counting import Numbers

Arrays = dict[str, Any]


def _odd() -> Arrays:
    return {
        "scalar": np.array(0.5),
        "empty": np.zeros(0),
        "five": np.full((2, 1, 3, 1, 2), 0.25),
        "empty in the middle": np.zeros((3, 0, 2)),
        "one": np.ones(1),
        "nothing left": np.zeros((0, 4)),
    }


def _named() -> Arrays:
    names = [
        "a.b/c",
        "../x",
        "größe",
        "层/权重",
        "with space",
        "🙂",
        "#",
        "a:b",
        "x" * 256,
        "weights",
        "0",
    ]
    return {name: np.full(k + 1, 0.1 * k) for k, name in enumerate(names)}


def _uneven() -> Arrays:
    return {"huge": np.linspace(-1, 1, 300_000)} | {
        f"tiny{k}": np.full(3, k / 50) for k in range(50)
    }


def _layouts() -> Arrays:
    ramp = np.linspace(-1, 1, 24)
    return {
        "fortran": np.asfortranarray(ramp.reshape(4, 6)),
        "strided": ramp[::2],
        "backwards": ramp[::-1],
        "transposed": ramp.reshape(4, 6).T,
        "big endian": ramp.astype(">f4"),
        "half": ramp.astype(np.float16),
        "broadcast": np.broadcast_to(np.array([1.0, 2.0, 3.0]), (4, 3)),
    }


def _large() -> Arrays:
    return {"a": np.linspace(-1, 1, 500_000).reshape(1000, 500), "b": np.linspace(0, 1, 400_001)}


MODELS: dict[str, Callable[[], Arrays]] = {
    "odd": _odd,
    "named": _named,
    "uneven": _uneven,
    "layouts": _layouts,
    "large": _large,
    "single": lambda: {"w": np.array([0.0])},
}


class Pulled:
    """Sample *i* pulls every element towards cos(i): loss (p - cos i)² / 2."""

    def __init__(self, model: str = "single", samples: int = 24, gradient: str = "same") -> None:
        self.model, self.samples, self.gradient = model, samples, gradient

    def data(self) -> Numbers:
        return Numbers(self.samples)

    def init(self, rng: np.random.Generator) -> Arrays:
        return MODELS[self.model]()

    def loss_and_grad(self, params: Arrays, batch: np.ndarray) -> tuple[Any, Arrays]:
        targets = np.cos(batch.astype(float))
        loss = sum(self._loss(p, targets) for p in params.values())
        return loss, {n: self._shaped(self._gradient(p, targets)) for n, p in params.items()}

    @staticmethod
    def _loss(p: Any, targets: np.ndarray) -> Any:
        wide = np.asarray(p, float)
        return 0.5 * sum(((wide - t) ** 2).sum() for t in targets)

    @staticmethod
    def _gradient(p: Any, targets: np.ndarray) -> Any:
        return p * p.dtype.type(len(targets)) - p.dtype.type(targets.sum())

    def _shaped(self, gradient: Any) -> Any:
        match self.gradient:
            case "float64":
                return np.asarray(gradient, np.float64)
            case "float32":
                return np.asarray(gradient, np.float32)
            case "big endian":
                return np.asarray(gradient).astype(">f8")
            case "fortran":
                return np.asfortranarray(gradient)
            case "list":
                return np.asarray(gradient).tolist()
        return gradient


class Streamed(Pulled):
    """The same, handed out piece by piece from one buffer, the last parameter first."""

    def grad_stream(
        self, params: Arrays, batch: np.ndarray
    ) -> Generator[tuple[str, Any], None, Any]:
        targets = np.cos(batch.astype(float))
        buffer = np.empty(max(p.size for p in params.values()), next(iter(params.values())).dtype)
        for name in reversed(params):
            gradient = buffer[: params[name].size].reshape(params[name].shape)
            gradient[...] = self._gradient(params[name], targets)
            yield name, gradient
            buffer.fill(7)
        return sum(self._loss(p, targets) for p in params.values())


class Views:
    """A granule's gradient is the parameters themselves, some from behind: nothing is copied."""

    def data(self) -> Numbers:
        return Numbers(24)

    def init(self, rng: np.random.Generator) -> Arrays:
        return {"w": rng.standard_normal(6), "m": rng.standard_normal((3, 3))}

    def loss_and_grad(self, params: Arrays, batch: np.ndarray) -> tuple[float, Arrays]:
        w, m = params["w"], params["m"]
        return float(w @ w[::-1] + (m * m.T).sum()) / 2, {"w": w[::-1], "m": m.T}


class Coupled:
    """Couples the samples of a granule, as batch normalisation does: each is taken relative to their mean."""

    def __init__(self, drop: bool = False) -> None:
        self.drop = drop

    def data(self) -> tuple[Numbers, Numbers]:
        return Numbers(50), Numbers(13)

    def init(self, rng: np.random.Generator) -> Arrays:
        return {"w": rng.standard_normal(5), "b": np.zeros(())}

    def loss_and_grad(self, params: Arrays, batch: np.ndarray, rng: Any) -> tuple[float, Arrays]:
        x = np.sin(batch[:, None] * np.arange(1.0, 6.0))
        x = x - x.mean(axis=0)
        if self.drop:
            x = x * (rng.random(5) < 0.5)
        off = x @ params["w"] + params["b"] - np.cos(batch)
        return 0.5 * float(off @ off), {"w": x.T @ off, "b": off.sum()}

    def evaluate(self, params: Arrays, batch: np.ndarray) -> dict[str, Any]:
        x = np.sin(batch[:, None] * np.arange(1.0, 6.0))
        return {"square": ((x @ params["w"]) ** 2).sum(), "count": np.float32(len(batch))}


class Dropping:
    """Linear regression with a dropout that is drawn for each sample."""

    def data(self) -> Numbers:
        return Numbers(50)

    def init(self, rng: np.random.Generator) -> Arrays:
        return {"w": rng.standard_normal(5)}

    def loss_and_grad(self, params: Arrays, batch: np.ndarray, rng: Any) -> tuple[float, Arrays]:
        kept = np.array([rng[i].random(5) < 0.5 for i in range(len(batch))])
        x = np.sin(batch[:, None] * np.arange(1.0, 6.0)) * kept
        off = x @ params["w"] - np.cos(batch)
        return 0.5 * float(off @ off), {"w": x.T @ off}
