"""A small regression whose code asks a gate (see `gates.py`) what to do when it meets certain samples."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence
from typing import Any

import numpy as np

FEATURES = np.arange(1.0, 7.0)


class Directed:
    """Linear regression of a wave. `at`: stage (init, data, compute, evaluate) to the samples at which it asks.

    The samples of ``init`` do not matter; without `gate` nothing is asked. Answers: ``go``, ``raise``, ``rant``,
    ``exit``, ``kill``, ``nan``, ``inf``, ``inf loss``, ``shape``, ``missing``, ``unknown``, ``write``, ``text``,
    ``memory``.
    """

    def __init__(
        self,
        gate: str = "",
        at: dict[str, list[int]] | None = None,
        samples: int = 60,
        wide: int = 0,
    ) -> None:
        self.gate, self.at, self.samples, self.wide = gate, at or {}, samples, wide

    def data(self) -> tuple[Waves, Waves]:
        return Waves(self, self.samples, "data"), Waves(self, 20, "")

    def init(self, rng: np.random.Generator) -> dict[str, Any]:
        self.obey("init", self.at.get("init", []))
        weights = {"weights": rng.standard_normal(len(FEATURES)), "bias": np.zeros(())}
        return {**weights, "wide": np.ones(self.wide)} if self.wide else weights

    def loss_and_grad(self, params: Any, batch: Any) -> tuple[float, dict[str, Any]]:
        numbers, x, y = batch
        off = x @ params["weights"] + params["bias"] - y
        loss = 0.5 * float(off @ off)
        gradient: dict[str, Any] = {"weights": x.T @ off, "bias": off.sum()}
        if self.wide:
            gradient["wide"] = params["wide"] * params["wide"].dtype.type(len(numbers))
        match self.obey("compute", numbers):
            case "nan":
                gradient["bias"] = np.nan
            case "inf":
                gradient["weights"][0] = np.inf
            case "inf loss":
                loss = np.inf
            case "shape":
                gradient["weights"] = gradient["weights"][:-1]
            case "missing":
                del gradient["bias"]
            case "unknown":
                gradient["weight"] = gradient["weights"]
            case "text":
                return "a loss", gradient  # type: ignore[return-value]
            case "write":
                params["weights"] -= 0.1 * gradient["weights"]
        return loss, gradient

    def evaluate(self, params: Any, batch: Any) -> dict[str, float]:
        numbers, x, y = batch
        self.obey("evaluate", numbers)
        off = x @ params["weights"] + params["bias"] - y
        return {"square": float(off @ off)}

    def obey(self, stage: str, samples: Sequence[int]) -> str:
        """Ask at the gate if this is the place, and do what needs no arguments."""
        met = sorted(set(self.at.get(stage, [])) & {int(i) for i in samples})
        if not self.gate or stage not in self.at or (not met and stage != "init"):
            return "go"
        with socket.socket(socket.AF_UNIX) as way:
            way.connect(self.gate)
            ask = {"pid": os.getpid(), "stage": stage, "samples": [int(i) for i in samples]}
            way.sendall(json.dumps(ask).encode() + b"\n")
            answer = way.makefile().readline().strip() or "go"
        match answer:
            case "raise":
                raise ArithmeticError(f"told to fail in {stage}")
            case "rant":
                raise ArithmeticError("told to fail at length " + "x" * 100_000)
            case "exit":
                print("this is the end", flush=True)
                os._exit(3)
            case "memory":
                raise MemoryError("told to have no memory left")
        return answer


class Waves:
    """Points on a wave; a batch is their numbers, features and targets."""

    def __init__(self, task: Directed, samples: int, stage: str) -> None:
        self._task, self._samples, self._stage = task, samples, stage

    def __len__(self) -> int:
        return self._samples

    def get(self, indices: np.ndarray) -> tuple[list[int], np.ndarray, np.ndarray]:
        if self._stage:
            self._task.obey(self._stage, [int(i) for i in indices])
        return (
            [int(i) for i in indices],
            np.sin(0.1 * indices[:, None] * FEATURES),
            np.cos(indices / 9),
        )


class Printing:
    """A task that says far too much."""

    def data(self) -> Waves:
        return Waves(Directed(), 40, "")

    def init(self, rng: np.random.Generator) -> dict[str, Any]:
        return {"w": np.zeros(2)}

    def loss_and_grad(self, params: Any, batch: Any) -> tuple[float, dict[str, Any]]:
        for number in batch[0]:
            print(f"sample {number} " + "x" * 20_000)
        os.write(1, b"\xff\x00 no text at all \r")
        return 0.0, {"w": np.zeros(2)}
