"""A `torch.nn.Module` and a loss as a task.

    from elps.tasks.torch import BATCH_NORM, TorchTask

    def digits(width: int = 16) -> TorchTask:
        return TorchTask(
            lambda: nn.Sequential(nn.Conv2d(1, width, 3), nn.BatchNorm2d(width), ...),
            loss=torch.nn.functional.cross_entropy,
            metrics=lambda scores, y: {"accuracy": (scores.argmax(1) == y).sum()},
            state=BATCH_NORM,
        )

The job names it as ``module:digits``. Parameters and gradients of the module are views of the
vectors that are pulled and pushed: nothing is copied on the way. A module computes on the CPU, in
the dtype of the job, with one thread (`threads`), since a host runs one trainer for each slot.

What a module makes of its samples one by one does not depend on who computes them. What couples
them does, unless the job sets ``batch.granule``: batch normalisation, dropout (torch has one random
generator, not one a sample; it is seeded anew for each call). With a granule the module is called
once for each, with a generator of its own, and nothing depends on the cut.
"""

from __future__ import annotations

import fnmatch
import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elps.contracts.errors import TaskError
from elps.tasks.layout import RULES

try:
    torch: Any = importlib.import_module("torch")
except ImportError as error:
    raise ImportError(
        "elps.tasks.torch needs torch on the worker's host: pip install 'elps[torch]'"
    ) from error

Arrays = Mapping[str, NDArray[Any]]
Build = Callable[[], Any]
"""Makes the module, from torch's global random generator: it is seeded by the job before each call."""

FIXED = "fixed"
"""Rule of a buffer that never changes: it stays in the module and does not travel."""
BATCH_NORM = {
    "*running_mean": "mean",
    "*running_var": "mean",
    "*num_batches_tracked": "max",
}
"""Rules for the buffers of torch's batch normalisations; join your own: ``{**BATCH_NORM, …}``."""


class TorchTask:
    """Trains the module that `build` makes.

    `loss(outputs, targets)` returns the **sum** over the batch, or one value a sample; a function or
    module of torch that takes ``reduction`` is told so. `metrics(outputs, targets)` returns sums by
    name; the loss is among them as ``loss`` in any case. `state` gives each buffer, by name or
    pattern, its rule: ``mean``, ``max``, ``last`` or ``fixed``. `forward(module, inputs)` in place of
    ``module(inputs)``. Batches are pairs (inputs, targets) of arrays or tensors, or of lists, tuples
    or dicts of these; floats arrive in the dtype of the job.
    """

    def __init__(
        self,
        build: Build,
        loss: Callable[[Any, Any], Any],
        *,
        metrics: Callable[[Any, Any], Mapping[str, Any]] | None = None,
        state: Mapping[str, str] | None = None,
        forward: Callable[[Any, Any], Any] | None = None,
        threads: int = 1,
    ) -> None:
        if isinstance(build, torch.nn.Module) or not callable(build):
            raise TaskError(
                "the first argument of TorchTask is a function that makes the module, such as lambda: Net(), "
                "so that its first values come from the job's seed"
            )
        self._build, self._loss, self._metrics = build, _summing(loss), metrics
        self._forward = forward or (lambda module, inputs: module(inputs))
        self._given = dict(state or {})
        for name, rule in self._given.items():
            if rule not in (*RULES, FIXED):
                raise TaskError(
                    f"state has {rule!r} for {name!r}; expected {', '.join(RULES)} or {FIXED}"
                )
        self._bound: _Bound | None = None
        torch.set_num_threads(threads)

    @property
    def state_rules(self) -> dict[str, str]:
        """Rules of the buffers that travel."""
        return self._made.rules

    def init(self, rng: np.random.Generator) -> dict[str, NDArray[Any]]:
        """Make the module; its parameters, then its state."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(rng.integers(2**63)))
            module = self._build()
        self._bound = _bind(module, self._given)
        return self._bound.first_values()

    def grad_into(
        self, params: Arrays, batch: Any, gradients: Arrays, rng: Any
    ) -> tuple[float, dict[str, NDArray[Any]]]:
        """Add the gradient sums of a batch; the loss sum, and the state after the batch."""
        bound = self._made
        bound.take(params, gradients)
        torch.manual_seed(_seed(rng))
        bound.module.train()
        _, loss = self._compute(bound, batch)
        if not loss.requires_grad:
            raise TaskError("the loss does not depend on any parameter of the module")
        loss.backward()
        bound.check(gradients)
        return float(loss.detach()), bound.state()

    def evaluate(self, params: Arrays, batch: Any) -> dict[str, float]:
        """Sums over the batch, with the module in its evaluation mode."""
        bound = self._made
        bound.take(params, {})
        bound.module.eval()
        with torch.no_grad():
            (outputs, targets), loss = self._compute(bound, batch)
            more = self._metrics(outputs, targets) if self._metrics is not None else {}
        return {"loss": float(loss), **_metric_sums(more)}

    @property
    def _made(self) -> _Bound:
        if self._bound is None:
            raise TaskError("init comes first: it makes the module")
        return self._bound

    def _compute(self, bound: _Bound, batch: Any) -> tuple[tuple[Any, Any], Any]:
        """Outputs with targets, and the loss sum."""
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            raise TaskError(
                f"a TorchTask takes batches (inputs, targets); the data set gives {type(batch).__name__}"
            )
        inputs, targets = (_tensors(part, bound.dtype) for part in batch)
        outputs = self._forward(bound.module, inputs)
        loss = self._loss(outputs, targets)
        if not isinstance(loss, torch.Tensor) or loss.ndim > 1:
            shown = f"shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else repr(loss)
            raise TaskError(
                f"the loss is {shown:.80}; expected a tensor: the sum over the batch, or one value a sample"
            )
        return (outputs, targets), loss.sum()


class Items:
    """A `torch.utils.data.Dataset` of numbered items as the data of a job.

    Batches are put together by `collate`, by default as torch's `DataLoader` does. An item must be the
    same each time that it is asked for: a random transformation belongs into the module.
    """

    def __init__(self, dataset: Any, collate: Callable[[list[Any]], Any] | None = None) -> None:
        self._dataset = dataset
        self._collate = collate or torch.utils.data.default_collate

    def __len__(self) -> int:
        return len(self._dataset)

    def get(self, indices: NDArray[np.int64]) -> Any:
        """The batch of these items."""
        return self._collate([self._dataset[int(i)] for i in indices])


@dataclass
class _Bound:
    """A module whose parameters and gradients lie in arrays of elps."""

    module: Any
    trained: dict[str, Any]
    rules: dict[str, str]
    """Of the buffers that travel."""
    places: dict[str, tuple[Any, str]]
    """Buffer to the submodule that holds it, and its name there: a module may replace the tensor."""
    dtype: Any
    versions: dict[str, int] = field(default_factory=dict)
    """Of tensors that a call may not change, before it."""
    _params: tuple[int, ...] = ()
    _gradients: tuple[int, ...] = ()

    def first_values(self) -> dict[str, NDArray[Any]]:
        """Copies of the parameters, and of the state after them."""
        trained = {name: _floats(p) for name, p in self.trained.items()}
        return {**trained, **{name: _floats(self.buffer(name)) for name in self.rules}}

    def buffer(self, name: str) -> Any:
        """The buffer as it is now."""
        owner, attribute = self.places[name]
        return owner._buffers[attribute]

    def take(self, params: Arrays, gradients: Arrays) -> None:
        """Let the module's tensors be views of these, and its state what it was at their version."""
        self._cast(params)
        if (at := _addresses(params)) != self._params:
            for name, parameter in self.trained.items():
                parameter.data = torch.from_numpy(_writable(params[name]))
            self._params = at
        if gradients and (at := _addresses(gradients)) != self._gradients:
            for name, parameter in self.trained.items():
                parameter.grad = torch.from_numpy(gradients[name])
            self._gradients = at
        with torch.no_grad():
            for name in self.rules:
                value = torch.from_numpy(_writable(params[name]))
                tensor = self.buffer(name)
                tensor.copy_(value if tensor.is_floating_point() else value.round())
        self.versions = {name: tensor._version for name, tensor in self._still().items()}

    def _cast(self, params: Arrays) -> None:
        """Bring the module into the job's dtype, once."""
        dtype = torch.from_numpy(np.empty(0, params[next(iter(self.trained))].dtype)).dtype
        if dtype != self.dtype:
            self.module.to(dtype)
            self.dtype, self._params, self._gradients = dtype, (), ()
            for parameter in self.trained.values():
                parameter.grad = None

    def _still(self) -> dict[str, Any]:
        """Tensors that a call may not change."""
        return {
            **self.trained,
            **{name: self.buffer(name) for name in self.places if name not in self.rules},
        }

    def check(self, gradients: Arrays) -> None:
        """See that a call has left the rest of the module alone, and its gradients where they belong."""
        for name, tensor in self._still().items():
            if tensor._version != self.versions[name]:
                what = "parameter" if name in self.trained else "buffer"
                raise TaskError(
                    f"the module changed its {what} {name!r} while it computed; "
                    + (
                        "parameters change by their gradients alone"
                        if what == "parameter"
                        else f"declare how those of several workers become one: {_example([name])}"
                    )
                )
        for (name, parameter), at in zip(self.trained.items(), self._gradients, strict=True):
            given = parameter.grad
            if given is None or given.data_ptr() == at or not given.numel():
                continue
            gradients[name][...] += given.to_dense().numpy()  # the module threw the other one away
            self._gradients = ()

    def state(self) -> dict[str, NDArray[Any]]:
        """The state after a call, in the dtype of the job."""
        return {name: self.buffer(name).detach().to(self.dtype).numpy() for name in self.rules}


def _bind(module: Any, given: Mapping[str, str]) -> _Bound:
    """Look a module over; `TaskError` for what elps cannot keep for it."""
    if not isinstance(module, torch.nn.Module):
        raise TaskError(
            f"the function given to TorchTask made {type(module).__name__}; expected a torch.nn.Module"
        )
    trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if tensor.device.type != "cpu":
            raise TaskError(f"{name!r} lies on {tensor.device}; elps computes on the CPU")
        if name in trained and not tensor.is_floating_point():
            raise TaskError(f"parameter {name!r} is of {tensor.dtype}; expected real floats")
    if not trained:
        raise TaskError("the module has no parameter that requires a gradient")
    places = {
        f"{prefix}.{name}" if prefix else name: (owner, name)
        for prefix, owner in module.named_modules()
        for name, tensor in owner._buffers.items()
        if tensor is not None
    }
    rules = _rules(places, module, given)
    travelling = {name: rule for name, rule in rules.items() if rule != FIXED}
    return _Bound(module, trained, travelling, places, None)


def _rules(places: Mapping[str, Any], module: Any, given: Mapping[str, str]) -> dict[str, str]:
    """The rule of each buffer; one that is not saved with the module need not have any."""
    saved, rules = module.state_dict().keys(), {}
    undeclared = []
    for name in places:
        fits = [rule for pattern, rule in given.items() if fnmatch.fnmatchcase(name, pattern)]
        if name in given:
            rules[name] = given[name]
        elif fits:
            rules[name] = fits[0]
        elif name in saved:
            undeclared.append(name)
        else:
            rules[name] = FIXED
    if undeclared:
        names = ", ".join(map(repr, undeclared[:10])) + (", …" if len(undeclared) > 10 else "")
        raise TaskError(
            f"no gradient trains the module's {names}, and each worker would make its own of it. "
            f"Declare how these become one: {_example(undeclared)}"
        )
    plain = [name for name in given if not any(c in name for c in "*?[") and name not in places]
    if plain:
        known = ", ".join(places) or "none"
        raise TaskError(f"state names {plain[0]!r}, which is no buffer of the module: {known}")
    return rules


def _example(names: list[str]) -> str:
    """What to write for buffers, for people."""
    usual = all(any(fnmatch.fnmatchcase(n, pattern) for pattern in BATCH_NORM) for n in names)
    if usual:
        return "TorchTask(…, state=BATCH_NORM), from elps.tasks.torch"
    return (
        f"TorchTask(…, state={{{names[0]!r}: 'mean'}}), with 'mean' over the samples, 'max', "
        f"'last' in their order, or {FIXED!r} for one that never changes"
    )


def _summing(loss: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """The loss as a sum over the batch, where torch lets one choose."""
    if isinstance(loss, type):
        raise TaskError(
            f"the loss is the class {loss.__name__}; give an object of it, such as {loss.__name__}(reduction='sum')"
        )
    reduction = getattr(loss, "reduction", None)
    if isinstance(reduction, str):
        if reduction == "mean":
            raise TaskError(
                f"{type(loss).__name__} gives the mean over the batch; make it with reduction='sum'"
            )
        return loss
    try:
        takes = "reduction" in inspect.signature(loss).parameters
    except (TypeError, ValueError):
        takes = False
    with_reduction: Any = loss
    return partial(with_reduction, reduction="sum") if takes else loss


def _metric_sums(given: Any) -> dict[str, float]:
    """What `metrics` returned as numbers by name."""
    if not isinstance(given, Mapping):
        raise TaskError(
            f"metrics gives {type(given).__name__}; expected a dict of names to sums over the batch"
        )
    for name, value in given.items():
        if isinstance(value, torch.Tensor) and value.numel() != 1:
            raise TaskError(
                f"metrics gives shape {tuple(value.shape)} for {name!r}; expected one number, the sum over the batch"
            )
    return {name: float(value) for name, value in given.items()}


def _seed(rng: Any) -> int:
    """A seed for torch from the generator of the granule, or from that of the first sample."""
    generator = rng if isinstance(rng, np.random.Generator) else rng[0]
    return int(generator.integers(2**63))


def _tensors(value: Any, dtype: Any) -> Any:
    """A part of a batch as tensors, without a copy where there is nothing to change."""
    if isinstance(value, Mapping):
        return {key: _tensors(item, dtype) for key, item in value.items()}
    if isinstance(value, tuple | list):
        items = [_tensors(item, dtype) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if hasattr(value, "tocoo"):
        raise TaskError("a TorchTask takes dense features; the data set gives sparse ones")
    if isinstance(value, np.ndarray):
        native = np.ascontiguousarray(value, value.dtype.newbyteorder("="))
        value = torch.from_numpy(native if native.flags.writeable else native.copy())
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.to(dtype)
    return value


def _floats(tensor: Any) -> NDArray[Any]:
    """A tensor's values as a float array of their own."""
    wide = tensor.dtype == torch.float64 or not tensor.is_floating_point()
    dtype = torch.float64 if wide else torch.float32
    return np.array(tensor.detach().to(dtype).numpy())


def _writable(view: NDArray[Any]) -> NDArray[Any]:
    """The same memory as an array that torch takes without a warning: it knows none that is read-only."""
    other = view.view()
    if not other.flags.writeable:
        other.flags.writeable = True
    return other


def _addresses(arrays: Arrays) -> tuple[int, ...]:
    return tuple(array.__array_interface__["data"][0] for array in arrays.values())
