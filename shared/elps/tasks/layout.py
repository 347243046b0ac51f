"""Where each parameter lies in the one flat vector of a job.

Parameters follow each other in the order in which the task's `init` gave them, without gaps, in C
order and in the job's dtype: element *i* of the vector belongs to exactly one parameter, so
partitions may cut anywhere and every element counts.

Those that no gradient trains, such as the statistics of a batch normalisation, come last, whatever
their order was: the model's state. Its rule says how what several workers make of it becomes one:
``mean`` over the samples, ``max``, or ``last`` in the order of the samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from elps.contracts.errors import ProtocolError, TaskError

Floats = NDArray[np.floating[Any]]
"""An array of the job's dtype, float32 or float64."""

MAX_NAME_CHARS = 256
MAX_PARAMETERS = 100_000
"""So that a layout is one message of the control plane."""
MAX_DIMENSIONS = 32
MAX_ELEMENTS = 2**40
"""Far above any memory; bounds the arithmetic on layouts that come from a peer."""
RULES = ("mean", "max", "last")
RESERVED_NAMES = ("__metadata__",)
"""Has a meaning of its own in the safetensors files that parameters are exported to."""


@dataclass(frozen=True)
class Parameter:
    """One named array and its place in the vector."""

    name: str
    shape: tuple[int, ...]
    offset: int
    """Index of its first element."""
    size: int
    """Number of elements; 0 for an empty array, 1 for a scalar."""
    rule: str = ""
    """Of `RULES` for a part of the model's state; empty for what is trained."""


@dataclass(frozen=True)
class Layout:
    """Names, shapes and places of all parameters. Two trainers fit together when their layouts are
    equal.
    """

    dtype: np.dtype[Any]
    parameters: tuple[Parameter, ...]

    @property
    def size(self) -> int:
        """Elements in the vector, at least 1."""
        last = self.parameters[-1]
        return last.offset + last.size

    @property
    def size_bytes(self) -> int:
        """Bytes of the vector."""
        return self.size * self.dtype.itemsize

    @property
    def trained(self) -> int:
        """Elements that are trained; the state's follow them."""
        return min((p.offset for p in self.parameters if p.rule), default=self.size)

    @property
    def rules(self) -> dict[str, str]:
        """The state's rules by name."""
        return {p.name: p.rule for p in self.parameters if p.rule}

    @classmethod
    def of(
        cls, arrays: object, dtype: str | np.dtype[Any], rules: Mapping[str, str] | None = None
    ) -> Self:
        """The layout of what `init` returned; raise `TaskError` naming the parameter and what to do
        about it.

        Float arrays of any width, byte order and memory layout are taken; they are cast when
        packed. `rules` are those of the state.
        """
        if not isinstance(arrays, Mapping):
            raise TaskError(
                f"init returned {type(arrays).__name__}; expected a dict of name to array"
            )
        shapes = []
        for name, value in arrays.items():
            if problem := _name_problem(name):
                raise TaskError(f"init returned a parameter whose name {problem}")
            shapes.append((name, _float_array(name, value).shape))
        rules = _checked_rules(rules or {}, arrays)
        shapes.sort(key=lambda entry: entry[0] in rules)
        return cls._arrange(np.dtype(dtype), shapes, rules, TaskError)

    @classmethod
    def _arrange(
        cls,
        dtype: np.dtype[Any],
        shapes: list[tuple[str, tuple[int, ...]]],
        rules: Mapping[str, str],
        error: Callable[[str], Exception],
    ) -> Self:
        if len(shapes) > MAX_PARAMETERS:
            raise error(
                f"{len(shapes)} parameters, at most {MAX_PARAMETERS}; join small arrays into larger ones"
            )
        parameters, offset = [], 0
        for name, shape in shapes:
            size = math.prod(shape)
            parameters.append(Parameter(name, shape, offset, size, rules.get(name, "")))
            offset += size
        if not any(p.size for p in parameters if not p.rule):
            raise error("there is nothing to train: init gave no parameter with an element in it")
        if offset > MAX_ELEMENTS:
            raise error(f"{offset} parameter elements, at most {MAX_ELEMENTS}")
        return cls(dtype, tuple(parameters))

    def views(self, flat: Floats, writable: bool = False) -> dict[str, Floats]:
        """The parameters as arrays that share the memory of `flat`, shape (size,); read-only unless
        `writable`.
        """
        self._check(flat)
        views = {}
        for p in self.parameters:
            view = flat[p.offset : p.offset + p.size].reshape(p.shape)
            if not writable:
                view.flags.writeable = False
            views[p.name] = view
        return views

    def pack(self, arrays: Mapping[str, Any], out: Floats) -> None:
        """Copy the parameters into `out`, shape (size,), cast to its dtype.

        `TaskError` when the names or a shape differ from the layout's; `out` may then hold a part
        of the arrays.
        """
        self._check(out)
        if arrays.keys() != {p.name for p in self.parameters}:
            given = ", ".join(map(repr, arrays)) or "none"
            raise TaskError(
                f"parameters {given} given, expected {', '.join(repr(p.name) for p in self.parameters)}"
            )
        for name, place in self.views(out, writable=True).items():
            array = _float_array(name, arrays[name])
            if array.shape != place.shape:
                raise TaskError(
                    f"parameter {name!r} has shape {array.shape}, expected {place.shape}"
                )
            with np.errstate(over="ignore", invalid="ignore"):
                np.copyto(place, array, casting="unsafe")

    def _check(self, flat: Floats) -> None:
        if flat.shape != (self.size,) or flat.dtype != self.dtype or not flat.flags.c_contiguous:
            raise ValueError(
                f"expected a contiguous vector of {self.size} {self.dtype}, got {flat.dtype} of shape {flat.shape}"
            )

    def to_wire(self) -> dict[str, Any]:
        """The layout as plain JSON values; rules only where there is state."""
        wire: dict[str, Any] = {
            "dtype": self.dtype.name,
            "parameters": [[p.name, list(p.shape)] for p in self.parameters],
        }
        return {**wire, "rules": rules} if (rules := self.rules) else wire

    @classmethod
    def from_wire(cls, value: object) -> Self:
        """Read what `to_wire` gave, from a peer that is not trusted; raise `ProtocolError` saying
        what is wrong.
        """
        if not isinstance(value, dict) or value.keys() - {"rules"} != {"dtype", "parameters"}:
            raise ProtocolError("a layout is a table of dtype and parameters")
        if value["dtype"] not in ("float32", "float64"):
            raise ProtocolError("the dtype of a layout is float32 or float64")
        entries = value["parameters"]
        if not isinstance(entries, list) or len(entries) > MAX_PARAMETERS:
            raise ProtocolError(
                f"the parameters of a layout are a list of at most {MAX_PARAMETERS}"
            )
        shapes: dict[str, tuple[int, ...]] = {}
        for entry in entries:
            if not isinstance(entry, list) or len(entry) != 2 or not isinstance(entry[1], list):
                raise ProtocolError("a parameter of a layout is a name and a list of lengths")
            name, shape = entry
            if problem := _name_problem(name):
                raise ProtocolError(f"a parameter's name {problem}")
            if name in shapes:
                raise ProtocolError(f"parameter {name!r} stands twice in the layout")
            if len(shape) > MAX_DIMENSIONS or not all(
                type(n) is int and 0 <= n <= MAX_ELEMENTS for n in shape
            ):
                raise ProtocolError(
                    f"parameter {name!r} has no shape that can be: {len(shape)} dimensions"
                )
            shapes[name] = tuple(shape)
        rules = value.get("rules", {})
        if not isinstance(rules, dict) or any(
            name not in shapes or rule not in RULES for name, rule in rules.items()
        ):
            raise ProtocolError("the rules of a layout are one of a few words for some parameters")
        if any(name not in rules for name in list(shapes)[len(shapes) - len(rules) :]):
            raise ProtocolError("the state of a layout comes last")
        return cls._arrange(np.dtype(value["dtype"]), list(shapes.items()), rules, ProtocolError)


def _checked_rules(rules: object, arrays: Mapping[str, Any]) -> Mapping[str, str]:
    """The rules of a task's state; `TaskError` for one that means nothing."""
    if not isinstance(rules, Mapping):
        raise TaskError(f"state_rules is {rules!r:.80}; expected a dict of name to rule")
    for name, rule in rules.items():
        if name not in arrays:
            raise TaskError(f"state_rules names {name!r:.80}, which init does not return")
        if rule not in RULES:
            raise TaskError(
                f"state_rules has {rule!r:.80} for {name!r}; expected {', '.join(RULES)}"
            )
    return rules


def _name_problem(name: object) -> str | None:
    """What is wrong with a parameter's name, or None. Dots, slashes, spaces and any script are
    fine.
    """
    if not isinstance(name, str):
        return f"is a {type(name).__name__}, not a string: {name!r:.80}"
    if not name:
        return "is empty"
    if len(name) > MAX_NAME_CHARS:
        return f"has {len(name)} characters, at most {MAX_NAME_CHARS}: {name[:40]!r}…"
    if name in RESERVED_NAMES:
        return f"{name!r} is reserved by the export format; choose another"
    try:
        name.encode()
    except UnicodeEncodeError:
        return f"cannot be written as UTF-8: {name!r}"
    return None


def _float_array(name: str, value: object) -> NDArray[Any]:
    try:
        array = np.asarray(value)
    except Exception as error:
        raise TaskError(f"parameter {name!r} cannot be made a numpy array: {error}") from error
    if array.dtype.kind == "f":
        if array.ndim > MAX_DIMENSIONS:
            raise TaskError(
                f"parameter {name!r} has {array.ndim} dimensions, at most {MAX_DIMENSIONS}"
            )
        return array
    if array.dtype.kind in "iub":
        raise TaskError(
            f"parameter {name!r} is of {array.dtype}: parameters are trained by gradient and so are floats; "
            "give it as a float array, or keep it in the task if it is a constant"
        )
    raise TaskError(
        f"parameter {name!r} is of {array.dtype}; expected an array of float32 or float64"
    )
