"""Conversion of plain JSON values into typed structs that reports every fault, not only the first."""

from __future__ import annotations

import difflib
import functools
import types
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import msgspec

S = TypeVar("S", bound=msgspec.Struct)


def convert_all(value: object, kind: type[S]) -> tuple[S | None, list[str]]:
    """Convert `value` to `kind`.

    Returns the struct and an empty list, or None and one line per fault, each beginning with the path of the field.
    """
    problems: list[str] = []
    _check(value, kind, "", problems)
    if problems:
        return None, problems
    try:
        return msgspec.convert(value, kind), []
    except msgspec.ValidationError as error:
        return None, [str(error)]


@functools.cache
def _fields(kind: type[msgspec.Struct]) -> dict[str, msgspec.structs.FieldInfo]:
    """Fields by their names in JSON; finding their types out takes longer than all the rest of a check."""
    return {f.encode_name: f for f in msgspec.structs.fields(kind)}


@functools.cache
def _struct_of(kind: Any) -> type[msgspec.Struct] | None:
    """The struct behind ``Struct`` or ``Struct | None``."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind
    if get_origin(kind) in (Union, types.UnionType):
        structs = [
            a for a in get_args(kind) if isinstance(a, type) and issubclass(a, msgspec.Struct)
        ]
        if len(structs) == 1:
            return structs[0]
    return None


def _check(value: object, kind: type[msgspec.Struct], path: str, problems: list[str]) -> None:
    here = path or "document"
    if not isinstance(value, dict):
        problems.append(f"{here}: expected a table, got {_name(value)}")
        return
    fields = _fields(kind)
    for key in value:
        if key not in fields:
            close = difflib.get_close_matches(str(key), fields, n=1)
            hint = f"; did you mean {close[0]}?" if close else f"; known: {', '.join(fields)}"
            problems.append(f"{_join(path, str(key)[:64])}: unknown{hint}")
    for name, field in fields.items():
        if name not in value:
            if field.required:
                problems.append(f"{_join(path, name)}: missing")
            continue
        inner = value[name]
        struct = _struct_of(field.type)
        if struct is not None and not (inner is None and field.type is not struct):
            _check(inner, struct, _join(path, name), problems)
            continue
        try:
            msgspec.convert(inner, field.type)
        except msgspec.ValidationError as error:
            problems.append(f"{_join(path, name)}: {_expected(str(error), inner, field.type)}")


def _expected(text: str, value: object, kind: object) -> str:
    if get_origin(kind) is Literal:
        choices = ", ".join(map(str, get_args(kind)))
        return f"{_name(value)} is not one of {choices}"
    text = text.replace("`", "")
    shown = repr(value)
    return f"{text[0].lower()}{text[1:]}, value {shown if len(shown) <= 80 else shown[:77] + '…'}"


def _name(value: object) -> str:
    if isinstance(value, str | int | float | bool) or value is None:
        shown = repr(value)
        return shown if len(shown) <= 80 else shown[:77] + "…"
    return {"dict": "a table", "list": "a list"}.get(type(value).__name__, type(value).__name__)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
