"""The interface between elps and a user's task.

A task is a plain object: ``init(rng)`` gives the parameters, ``loss_and_grad(params, batch)`` the
loss and the gradient, both **summed** over the samples of the batch, and a data set gives batches
by sample numbers. elps decides which samples go to which worker and divides by the samples counted,
so a task must not average, nor depend on how a batch is cut (or the job sets ``batch.granule`` to
the number of samples that must stay together).

    class Mean:
        def init(self, rng):
            return {"mean": rng.standard_normal(3)}

        def loss_and_grad(self, params, batch):
            off = params["mean"] - batch
            return 0.5 * (off**2).sum(), {"mean": off.sum(axis=0)}

The parameters arrive as read-only arrays of the job's dtype. Optional besides:

- ``evaluate(params, batch) -> {metric: sum over the samples}``, for the test part; without it the
  loss is reported;
- ``data() -> Dataset`` or ``(train, test)``, when the job's document names no data;
- a constructor argument ``dataset``, which then is the opened training part; all others come from
  ``task_args``;
- an argument ``rng`` of ``loss_and_grad``: ``rng[i]`` is the random generator of the batch's *i*-th
  sample (`SampleRngs`), or `rng` is the one generator of the granule when ``batch.granule`` is
  above 1;
- ``grad_stream(params, batch)``, a generator used in place of ``loss_and_grad``: it yields ``(name,
  gradient sum)`` as soon as each is ready, which lets them travel while the rest is computed, and
  returns the loss sum;
- ``grad_into(params, batch, gradients)``, in place of both: it adds its gradient sums to the arrays
  of `gradients`, which lie where they are sent from, and returns the loss sum and the values of the
  state;
- ``state_rules``, a dict, for what no gradient trains (statistics, counters): `init` gives its
  first value, the gradient function in place of a gradient its *value* after the batch, and the
  rule says how what several workers found becomes one: ``"mean"`` over the samples, ``"max"``, or
  ``"last"`` in the order of the samples.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from elps.data.dataset import Dataset, Indices
from elps.stream.order import sample_rng

__all__ = [
    "ANY",
    "Dataset",
    "EvaluatingTask",
    "InPlaceTask",
    "SampleRngs",
    "StreamingTask",
    "Task",
    "arguments_of",
]

Params = Mapping[str, NDArray[Any]]
Gradients = Mapping[str, NDArray[Any]]


class Task(Protocol):
    """What every task has."""

    def init(self, rng: np.random.Generator) -> Params:
        """The parameters at the start: at least one element, float arrays, names of 1 to 256
        characters.
        """

    def loss_and_grad(self, params: Params, batch: Any) -> tuple[float, Gradients]:
        """Loss and gradient of each parameter, summed over the batch; NaN or infinity means that it
        is to be skipped.
        """


class EvaluatingTask(Task, Protocol):
    """A task with metrics of its own."""

    def evaluate(self, params: Params, batch: Any) -> Mapping[str, float]:
        """Metrics, each as a sum over the samples: elps divides by their number."""


class StreamingTask(Task, Protocol):
    """A task that hands out parts of its gradient early."""

    def grad_stream(
        self, params: Params, batch: Any
    ) -> Generator[tuple[str, NDArray[Any]], None, float]:
        """Yield each parameter's gradient sum once, return the loss sum. An array may be used again
        after the next yield.
        """


class InPlaceTask(Protocol):
    """A task that adds its gradients to arrays which it is given."""

    state_rules: Mapping[str, str]

    def init(self, rng: np.random.Generator) -> Params:
        """As that of `Task`."""

    def grad_into(
        self, params: Params, batch: Any, gradients: Gradients
    ) -> tuple[float, Mapping[str, NDArray[Any]]]:
        """Add the gradient sums; return the loss sum and the state's values after the batch."""


class SampleRngs:
    """One random generator per sample of a batch, made when first asked for (about 10 µs) and then
    kept.

    What it draws depends on the job's seed, the pass and the sample alone.
    """

    def __init__(self, seed: int, pass_: int, indices: Indices) -> None:
        self._seed, self._pass, self._indices = seed, pass_, indices
        self._made: dict[int, np.random.Generator] = {}

    def __len__(self) -> int:
        return int(self._indices.size)

    def __getitem__(self, i: int) -> np.random.Generator:
        sample = int(self._indices[i])
        if sample not in self._made:
            self._made[sample] = sample_rng(self._seed, self._pass, sample)
        return self._made[sample]


ANY = "**"
"""In what `arguments_of` returns: any other argument is taken too."""


def arguments_of(function: Callable[..., Any]) -> frozenset[str]:
    """The arguments that a function or class takes by name, with `ANY` when it takes others too or
    does not say.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # built in C, without a signature
        return frozenset({ANY})
    names = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    return frozenset(names | {ANY for p in parameters if p.kind is p.VAR_KEYWORD})
