"""Models that are linear in their parameters: linear, logistic and softmax regression, and the
support vector machine.

Their loss is that of `elps.tasks.builtin.losses` plus l2/2 · |weights|² for each sample; the bias
is not held down.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from elps.contracts.errors import TaskError
from elps.data.dataset import Dataset
from elps.tasks.builtin import losses
from elps.tasks.builtin.shapes import (
    check_two_classes,
    classes_of,
    features_of,
    labels_of,
    not_negative,
    one_of,
    origin_of,
    pair,
)

Array = NDArray[Any]
Params = dict[str, Array]


class _Regression:
    """``weights`` of shape (features,) or (features, classes) and ``bias``, both from 0."""

    _outputs: tuple[int, ...] = ()

    def __init__(
        self, l2: float = 0.0, features: int | None = None, *, dataset: Dataset | None = None
    ) -> None:
        self._l2 = not_negative("l2", l2)
        self._features = features_of(dataset, features)

    def init(self, rng: np.random.Generator) -> Params:  # noqa: ARG002  # the problem is convex
        """Zeros."""
        return {
            "weights": np.zeros((self._features, *self._outputs)),
            "bias": np.zeros(self._outputs),
        }

    def loss_and_grad(self, params: Params, batch: Any) -> tuple[float, Params]:
        """Sums over the batch (x, y)."""
        x, y = pair(batch)
        w = params["weights"]
        loss, derivative = self._loss(self._scores(params, x), y)
        total = float(loss.sum(dtype=np.float64))
        gradient = np.asarray(x.T @ derivative)
        if self._l2:
            samples = loss.shape[0]
            total += samples * self._l2 / 2 * float((w * w).sum(dtype=np.float64))
            gradient = gradient + w.dtype.type(samples * self._l2) * w
        return total, {"weights": gradient, "bias": derivative.sum(axis=0)}

    def evaluate(self, params: Params, batch: Any) -> dict[str, float]:
        """Sums over the batch; the loss without l2."""
        x, y = pair(batch)
        scores = self._scores(params, x)
        loss, _ = self._loss(scores, y)
        return {"loss": float(loss.sum(dtype=np.float64)), **self._metrics(scores, y)}

    def _scores(self, params: Params, x: Any) -> Array:
        return np.asarray(x @ params["weights"]) + params["bias"]

    def _loss(self, scores: Array, y: Array) -> tuple[Array, Array]:
        raise NotImplementedError

    def _metrics(self, scores: Array, y: Array) -> dict[str, float]:
        raise NotImplementedError


class Linear(_Regression):
    """Linear regression: (x·w + b - y)² / 2. Evaluates ``loss`` and ``mse``, which is twice the
    loss.
    """

    def __init__(
        self, l2: float = 0.0, features: int | None = None, *, dataset: Dataset | None = None
    ) -> None:
        super().__init__(l2, features, dataset=dataset)
        if dataset is not None and (shape := labels_of(dataset).shape[1:]):
            raise TaskError(
                f"{origin_of(dataset)}: targets have shape {shape} a sample; linear takes a single number"
            )

    def _loss(self, scores: Array, y: Array) -> tuple[Array, Array]:
        return losses.squared(scores, y)

    def _metrics(self, scores: Array, y: Array) -> dict[str, float]:
        return {"mse": float(((scores - y) ** 2).sum(dtype=np.float64))}


class Logistic(_Regression):
    """Logistic regression on labels 0 and 1, or -1 and 1. Evaluates ``loss`` and ``accuracy``."""

    def __init__(
        self, l2: float = 0.0, features: int | None = None, *, dataset: Dataset | None = None
    ) -> None:
        super().__init__(l2, features, dataset=dataset)
        check_two_classes(dataset, "logistic")

    def _loss(self, scores: Array, y: Array) -> tuple[Array, Array]:
        return losses.logistic(scores, y)

    def _metrics(self, scores: Array, y: Array) -> dict[str, float]:
        return {"accuracy": float(((scores > 0) == (y > 0)).sum())}


class SupportVector(_Regression):
    """The linear support vector machine on labels 0 and 1, or -1 and 1. Evaluates ``loss`` and
    ``accuracy``. `loss`: ``hinge`` or ``squared_hinge``.
    """

    def __init__(
        self,
        l2: float = 1e-4,
        features: int | None = None,
        loss: str = "hinge",
        *,
        dataset: Dataset | None = None,
    ) -> None:
        super().__init__(l2, features, dataset=dataset)
        check_two_classes(dataset, "svm")
        one_of("loss", loss, ("hinge", "squared_hinge"))
        self._of = losses.hinge if loss == "hinge" else losses.squared_hinge

    def _loss(self, scores: Array, y: Array) -> tuple[Array, Array]:
        return self._of(scores, y)

    def _metrics(self, scores: Array, y: Array) -> dict[str, float]:
        return {"accuracy": float(((scores > 0) == (y > 0)).sum())}


class Softmax(_Regression):
    """Softmax regression on labels 0 … classes-1. Evaluates ``loss`` and ``accuracy``."""

    def __init__(
        self,
        l2: float = 0.0,
        features: int | None = None,
        classes: int | None = None,
        *,
        dataset: Dataset | None = None,
    ) -> None:
        super().__init__(l2, features, dataset=dataset)
        self._outputs = (classes_of(dataset, classes),)

    def _loss(self, scores: Array, y: Array) -> tuple[Array, Array]:
        return losses.softmax(scores, y)

    def _metrics(self, scores: Array, y: Array) -> dict[str, float]:
        return {"accuracy": float((scores.argmax(axis=1) == y).sum())}
