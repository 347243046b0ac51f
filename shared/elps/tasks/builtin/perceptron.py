"""The multilayer perceptron: dense layers, trained by backpropagation."""

from __future__ import annotations

from collections.abc import Generator
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elps.contracts.errors import TaskError
from elps.data.dataset import Dataset
from elps.tasks.builtin import losses
from elps.tasks.builtin.shapes import (
    classes_of,
    features_of,
    labels_of,
    not_negative,
    one_of,
    pair,
    whole,
)

Array = NDArray[Any]
Params = dict[str, Array]

MAX_LAYERS = 64


class Perceptron:
    """Parameters ``layer0.weights`` (inputs, outputs), ``layer0.bias`` (outputs,) and so on.

    `hidden`: sizes of the hidden layers, may be empty. `activation`: ``relu`` or ``tanh``. `loss`:
    ``softmax`` on labels 0 … classes-1, which evaluates ``loss`` and ``accuracy``; or ``squared``
    on one or several targets, which evaluates ``loss`` and ``mse``. `l2`: as in
    `elps.tasks.builtin.regression`, on all weights.
    """

    def __init__(
        self,
        hidden: list[int] | None = None,
        activation: str = "relu",
        loss: str = "softmax",
        l2: float = 0.0,
        features: int | None = None,
        classes: int | None = None,
        *,
        dataset: Dataset | None = None,
    ) -> None:
        sizes: Any = [64] if hidden is None else hidden
        if not isinstance(sizes, list | tuple):
            raise TaskError(f"task_args.hidden is {hidden!r:.80}, expected a list of layer sizes")
        if len(sizes) > MAX_LAYERS:
            raise TaskError(f"task_args.hidden has {len(sizes)} layers, at most {MAX_LAYERS}")
        sizes = [whole("hidden", size, 1) for size in sizes]
        self._relu = one_of("activation", activation, ("relu", "tanh")) == "relu"
        self._squared = one_of("loss", loss, ("softmax", "squared")) == "squared"
        self._l2 = not_negative("l2", l2)
        if not self._squared:
            outputs = classes_of(dataset, classes)
        elif classes is not None:
            raise TaskError('task_args.classes goes with loss "softmax"; leave it out')
        else:
            targets = labels_of(dataset).shape[1:] if dataset is not None else ()
            outputs = int(np.prod(targets))
        self._shapes = list(pairwise([features_of(dataset, features), *sizes, outputs]))

    def init(self, rng: np.random.Generator) -> Params:
        """Normal weights of a size that keeps the signal's (He before a relu, else LeCun), no bias."""
        params: Params = {}
        last = len(self._shapes) - 1
        for k, (fan_in, fan_out) in enumerate(self._shapes):
            gain = (
                2.0 if self._relu and k < last else 1.0
            )  # He et al. 2015 before a relu, else LeCun et al. 1998
            params[f"layer{k}.weights"] = rng.standard_normal((fan_in, fan_out)) * np.sqrt(
                gain / fan_in
            )
            params[f"layer{k}.bias"] = np.zeros(fan_out)
        return params

    def grad_stream(self, params: Params, batch: Any) -> Generator[tuple[str, Array], None, float]:
        """The layers' gradients from the last to the first."""
        x, y = pair(batch)
        inputs, scores = self._forward(params, x)
        loss, derivative = self._loss(scores, y)
        total = float(loss.sum(dtype=np.float64))
        samples = loss.shape[0]
        for k in reversed(range(len(self._shapes))):
            w = params[f"layer{k}.weights"]
            gradient = np.asarray(inputs[k].T @ derivative)
            if self._l2:
                total += samples * self._l2 / 2 * float((w * w).sum(dtype=np.float64))
                gradient = gradient + w.dtype.type(samples * self._l2) * w
            yield f"layer{k}.weights", gradient
            yield f"layer{k}.bias", derivative.sum(axis=0)
            if k:
                derivative = derivative @ w.T
                out = inputs[k]
                derivative *= (out > 0) if self._relu else (1 - out * out)
        return total

    def loss_and_grad(self, params: Params, batch: Any) -> tuple[float, Params]:
        """Sums over the batch (x, y)."""
        gradients: Params = {}
        stream = self.grad_stream(params, batch)
        while True:
            try:
                name, gradient = next(stream)
            except StopIteration as end:
                return float(end.value), gradients
            gradients[name] = gradient

    def evaluate(self, params: Params, batch: Any) -> dict[str, float]:
        """Sums over the batch; the loss without l2."""
        x, y = pair(batch)
        _, scores = self._forward(params, x)
        loss, _ = self._loss(scores, y)
        total = float(loss.sum(dtype=np.float64))
        if self._squared:
            return {"loss": total, "mse": 2 * total}
        return {"loss": total, "accuracy": float((scores.argmax(axis=1) == y).sum())}

    def _forward(self, params: Params, x: Any) -> tuple[list[Any], Array]:
        """What goes into each layer, and the scores, shape (n, outputs)."""
        inputs = [x]
        last = len(self._shapes) - 1
        for k in range(last + 1):
            z = np.asarray(inputs[k] @ params[f"layer{k}.weights"]) + params[f"layer{k}.bias"]
            if k == last:
                return inputs, z
            inputs.append(np.maximum(z, 0) if self._relu else np.tanh(z))
        raise AssertionError("there is always a last layer")

    def _loss(self, scores: Array, y: Array) -> tuple[Array, Array]:
        return (
            losses.squared(scores, y.reshape(scores.shape))
            if self._squared
            else losses.softmax(scores, y)
        )
