"""Settings from the environment: one frozen object for each service, read once, all problems reported at once.

    class Settings(msgspec.Struct, frozen=True, kw_only=True):
        shard_slots: Annotated[int, Meta(ge=1)] = 4
        task_path: tuple[Path, ...] = ()

    settings = read(Settings, context.env)  # ELPS_SHARD_SLOTS, ELPS_TASK_PATH

A field is read from the variable of its name in capitals after the prefix. An empty variable counts as absent.
"""

from __future__ import annotations

import dataclasses
import math
import os
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin

import msgspec

from elps.contracts.errors import SetupError
from elps.contracts.urls import masked

T = TypeVar("T")

PREFIX = "ELPS_"


class Secret:
    """A text that is shown only on purpose; of a URL only the password is hidden."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """The text itself."""
        return self._value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __repr__(self) -> str:
        return masked(self._value) if "://" in self._value else "***"

    __str__ = __repr__


def read(cls: type[T], env: Mapping[str, str], prefix: str = PREFIX) -> T:
    """Make a settings object (msgspec Struct or dataclass) from the environment; `SetupError` lists every problem."""
    values: dict[str, Any] = {}
    problems: list[str] = []
    hints = typing.get_type_hints(cls, include_extras=True)
    for name, required in _fields(cls):
        variable = prefix + name.upper()
        text = env.get(variable, "")
        if not text:
            if required:
                problems.append(f"{variable} is not set; expected {_described(hints[name])}")
            continue
        try:
            values[name] = _parsed(text, hints[name])
        except ValueError as error:  # msgspec's ValidationError is one
            secret = _bare(hints[name]) is Secret
            shown = "" if secret else f", got {text[:80]!r}"
            problems.append(f"{variable}: {_fault(error, hints[name])}{shown}")
    if problems:
        raise SetupError("settings: " + "; ".join(problems))
    try:
        return cls(**values)
    except (ValueError, TypeError) as error:  # a check in __post_init__
        raise SetupError(f"settings: {error}") from None


def _fields(cls: type[Any]) -> list[tuple[str, bool]]:
    """Names of the fields and whether each must be given."""
    if issubclass(cls, msgspec.Struct):
        return [(field.name, field.required) for field in msgspec.structs.fields(cls)]
    missing = dataclasses.MISSING
    return [
        (field.name, field.default is missing and field.default_factory is missing)
        for field in dataclasses.fields(cls)
    ]


def _bare(kind: Any) -> Any:
    """The type without ``Annotated`` and ``| None``."""
    if get_origin(kind) is typing.Annotated:
        return _bare(get_args(kind)[0])
    if get_origin(kind) in (Union, types.UnionType):
        rest = [arg for arg in get_args(kind) if arg is not type(None)]
        if len(rest) == 1:
            return _bare(rest[0])
    return kind


def _parsed(text: str, kind: Any) -> Any:
    bare = _bare(kind)
    if bare is Secret:
        return Secret(text)
    if bare is Path:
        return Path(text).expanduser()
    if get_origin(bare) is tuple:
        (inner, *_) = get_args(bare)
        return tuple(_parsed(part, inner) for part in text.split(os.pathsep) if part)
    value = msgspec.convert(text.strip(), kind, strict=False)
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("expected a finite number")
    return value


def _described(kind: Any) -> str:
    bare = _bare(kind)
    if bare is Secret:
        return "a text"
    return getattr(bare, "__name__", str(bare))


def _fault(error: ValueError, kind: Any) -> str:
    bare = _bare(kind)
    if get_origin(bare) is typing.Literal:
        return f"expected one of {', '.join(map(str, get_args(bare)))}"
    text = str(error).replace("`", "").partition(", got ")[0]
    return text[0].lower() + text[1:]
