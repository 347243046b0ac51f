"""One call of a user's gradient function, and what it returned checked to the letter."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elps.contracts.errors import TaskError
from elps.data.failing import UserCode
from elps.tasks.layout import Floats

Emit = Callable[[str], None]


@dataclass(frozen=True)
class Call:
    """One call of the task's gradient function, on so many samples."""

    task: Any
    method: str
    where: str
    """For messages."""
    samples: int
    rules: Mapping[str, str]
    """Of the state, by name."""
    params: dict[str, Floats]
    batch: Any
    extra: Mapping[str, Any]
    """Further arguments."""

    def run(self, places: Mapping[str, Floats], add: bool, emit: Emit | None) -> float:
        """Copy the gradients to their places, or add them there; return the loss sum."""
        if self.method == "grad_into":
            return self._into(places, add, emit)
        if self.method == "grad_stream":
            return self._stream(places, add, emit)
        with UserCode(self.where):
            result = self.task.loss_and_grad(self.params, self.batch, **self.extra)
        if (
            not isinstance(result, tuple | list)
            or len(result) != 2
            or not isinstance(result[1], Mapping)
        ):
            raise TaskError(
                f"{self.where} returned {_shape_of(result)}; expected (loss sum, dict of parameter to gradient sum)"
            )
        loss, gradients = result
        value = number(loss, f"{self.where}: the loss")
        self._check_names(set(gradients), places)
        for name, place in places.items():
            self._put(name, gradients[name], place, add)
            if emit is not None:
                emit(name)
        return value

    def _into(self, places: Mapping[str, Floats], add: bool, emit: Emit | None) -> float:
        """The task adds its gradients where they belong; only the state's values are copied."""
        gradients = {name: place for name, place in places.items() if name not in self.rules}
        if not add:
            for place in gradients.values():
                place.fill(0)
        with UserCode(self.where):
            result = self.task.grad_into(self.params, self.batch, dict(gradients), **self.extra)
        if (
            not isinstance(result, tuple | list)
            or len(result) != 2
            or not isinstance(result[1], Mapping)
        ):
            raise TaskError(
                f"{self.where} returned {_shape_of(result)}; expected (loss sum, dict of state to value)"
            )
        value = number(result[0], f"{self.where}: the loss")
        self._check_names(set(result[1]) | gradients.keys(), places)
        for name in self.rules:
            self._put(name, result[1][name], places[name], add)
        for name in places if emit is not None else ():
            emit(name)  # type: ignore[misc]  # not None here
        return value

    def _stream(self, places: Mapping[str, Floats], add: bool, emit: Emit | None) -> float:
        done: set[Any] = set()
        with UserCode(self.where):
            stream = iter(self.task.grad_stream(self.params, self.batch, **self.extra))
        while True:
            with UserCode(self.where):
                item = _next_of(stream)
            if isinstance(item, _End):
                self._check_names(done, places)
                return number(item.value, f"{self.where}: the loss")
            if not isinstance(item, tuple | list) or len(item) != 2:
                raise TaskError(
                    f"{self.where} yielded {_shape_of(item)}; expected (parameter, gradient sum)"
                )
            name, gradient = item
            if name not in places or name in done:
                problem = "yielded twice" if name in done else "no parameter of init"
                raise TaskError(
                    f"{self.where}: {name!r:.300} is {problem}; expected {_names(places.keys() - done)}"
                )
            done.add(name)
            self._put(name, gradient, places[name], add)
            if emit is not None:
                emit(name)

    def _put(self, name: str, gradient: Any, place: Floats, add: bool) -> None:
        array = gradient
        if not isinstance(array, np.ndarray):
            with UserCode(f"{self.where}: gradient of {name!r}"):
                array = np.asarray(gradient)
        if array.dtype.kind not in "fiu":
            raise TaskError(
                f"{self.where}: gradient of {name!r} is of {array.dtype}, expected {place.dtype}"
            )
        if array.shape != place.shape:
            raise TaskError(
                f"{self.where}: gradient of {name!r} has shape {array.shape}, expected {place.shape} as the parameter"
            )
        with np.errstate(over="ignore", invalid="ignore"):
            rule = self.rules.get(name)
            if rule is not None:
                _contribute(rule, array, self.samples, place, add)
            elif add:
                np.add(place, array, out=place, casting="unsafe")
            else:
                np.copyto(place, array, casting="unsafe")

    def _check_names(self, given: set[Any], places: Mapping[str, Floats]) -> None:
        if given == places.keys():
            return
        missing, extra = places.keys() - given, given - places.keys()
        lines = [f"no gradient for {_names(missing)}"] if missing else []
        lines += [f"{_names(extra)} not among the parameters of init"] if extra else []
        raise TaskError(
            f"{self.where}: {'; '.join(lines)}; expected one for each of {_names(places.keys())}"
        )


@dataclass(frozen=True)
class _End:
    """What a generator returned."""

    value: Any


def _next_of(stream: Iterator[Any]) -> Any:
    try:
        return next(stream)
    except StopIteration as end:
        return _End(end.value)


def _contribute(rule: str, value: NDArray[Any], samples: int, place: Floats, add: bool) -> None:
    """What a call's samples give to a part of the state; with `add` those before them are in the
    place already.
    """
    if rule == "mean":
        weighted = np.multiply(value, samples, dtype=place.dtype, casting="unsafe")
        np.add(place, weighted, out=place) if add else np.copyto(place, weighted)
    elif rule == "max" and add:
        np.maximum(place, value, out=place, casting="unsafe")
    else:  # calls come in the order of the samples
        np.copyto(place, value, casting="unsafe")


def number(value: Any, what: str) -> float:
    """A loss or metric as a float; an array of one element will do, a text or None will not."""
    with UserCode(what):
        array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "fiu":
        raise TaskError(
            f"{what} is {_shape_of(value)}; expected one real number, the sum over the samples"
        )
    return float(array.reshape(()))


def _shape_of(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} with shape {value.shape}"
    if isinstance(value, tuple):
        return f"a tuple ({', '.join(type(v).__name__ for v in value)})"
    return f"{value!r:.80} ({type(value).__name__})"


def _names(names: Any) -> str:
    listed = sorted(map(repr, names))
    return ", ".join(listed[:10]) + (f" and {len(listed) - 10} more" if len(listed) > 10 else "")
