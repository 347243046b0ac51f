"""Job files: TOML, YAML or JSON into plain values, with file and line in every complaint.

Checking the fields is `elps.contracts.codec.parse_job`'s; here are syntax, and values that JSON could not carry.
"""

from __future__ import annotations

import json
import math
import re
import sys
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import yaml

from elps.contracts.codec import MAX_MESSAGE_BYTES
from elps.contracts.errors import InvalidDocument

STDIN = "-"
MAX_DEPTH = 64
"""Nesting beyond this is a mistake, or an attack; JSON readers give up not much later."""


def load(path: str | Path) -> dict[str, Any]:
    """Read the job file at `path` by its suffix; ``-`` reads standard input in whichever of the formats it is.

    Raises `InvalidDocument` whose problems begin with ``file:line`` where the line is known.
    """
    name = str(path)
    if name == STDIN:
        return read(sys.stdin.buffer.read(MAX_MESSAGE_BYTES + 1), "standard input", None)
    suffix = Path(name).suffix.lower()
    if suffix not in _READERS:
        raise InvalidDocument(
            "job file",
            [
                f"{name}: expected a name that ends in {', '.join(_READERS)}; for standard input give -"
            ],
        )
    try:
        with Path(name).open("rb") as file:
            body = file.read(MAX_MESSAGE_BYTES + 1)
    except OSError as error:
        raise InvalidDocument("job file", [f"{name}: {error.strerror or error}"]) from None
    return read(body, name, suffix)


def read(body: bytes, name: str, suffix: str | None) -> dict[str, Any]:
    """Parse `body`, called `name` in complaints; with no suffix the format is found by trying."""
    if len(body) > MAX_MESSAGE_BYTES:
        raise InvalidDocument("job file", [f"{name}: larger than {MAX_MESSAGE_BYTES >> 20} MiB"])
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = body[: error.start].count(b"\n") + 1
        raise InvalidDocument("job file", [f"{name}:{line}: not UTF-8 text"]) from None
    readers = [_READERS[suffix]] if suffix else _guess(text)
    complaints: list[str] = []
    for reader in readers:
        try:
            value = reader(text)
        except _SyntaxFault as fault:
            complaints.append(f"{name}:{fault.line}: {fault}" if fault.line else f"{name}: {fault}")
            continue
        except RecursionError:
            complaints.append(f"{name}: nested too deeply")
            continue
        if not isinstance(value, dict):
            complaints.append(
                f"{name}: expected a table of fields such as task and data, got {_kind(value)}"
            )
            continue
        if problems := list(_unfit(value, "", 0)):
            raise InvalidDocument("job file", [f"{name}: {problem}" for problem in problems])
        return value
    raise InvalidDocument("job file", complaints)


def assign(document: dict[str, Any], setting: str) -> None:
    """Set one field in place from ``key.path=value``; the value is JSON if it reads as such, else a string.

    Raises `InvalidDocument` when the setting has no ``=`` or its path goes through something that is no table.
    """
    path, equals, text = setting.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise InvalidDocument(
            "setting", [f"{setting!r}: expected key.path=value, such as optimizer.lr=0.1"]
        )
    table = document
    for depth, key in enumerate(keys[:-1]):
        inner = table.get(key)
        if inner is None:
            inner = table[key] = {}
        if not isinstance(inner, dict):
            at = ".".join(keys[: depth + 1])
            raise InvalidDocument("setting", [f"{setting!r}: {at} is {_kind(inner)}, not a table"])
        table = inner
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except (ValueError, _SyntaxFault):
        value = text
    if problems := list(_unfit({keys[-1]: value}, "", 0)):
        raise InvalidDocument("setting", [f"{setting!r}: {problem}" for problem in problems])
    table[keys[-1]] = value


class _SyntaxFault(Exception):
    """What a parser said, with the line where it is known (else 0)."""

    def __init__(self, text: str, line: int = 0) -> None:
        self.line = line
        super().__init__(text)


def _read_toml(text: str) -> object:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        said = str(error)
        if at := re.search(r" \(at line (\d+), column \d+\)$", said):
            line = int(at[1])
            if said.startswith("Cannot overwrite a value"):
                key = re.match(r"\s*([\w.\"'-]+)\s*=", text.split("\n")[line - 1])
                raise _SyntaxFault(f"{key[1] if key else 'a key'} is given twice", line) from None
            raise _SyntaxFault(f"not TOML: {said[: at.start()]}", line) from None
        ends = said.endswith("(at end of document)")
        raise _SyntaxFault(f"not TOML: {said}", text.count("\n") + 1 if ends else 0) from None


def _no_constant(name: str) -> object:
    raise _SyntaxFault(f"{name} is not a number that JSON knows")


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for key, value in pairs:
        if key in table:
            raise _SyntaxFault(f"{key} is given twice")
        table[key] = value
    return table


def _read_json(text: str) -> object:
    try:
        return json.loads(text, parse_constant=_no_constant, object_pairs_hook=_no_repeats)
    except json.JSONDecodeError as error:
        raise _SyntaxFault(f"not JSON: {error.msg}, column {error.colno}", error.lineno) from None


class _Loader(yaml.SafeLoader):
    """Safe YAML that reads ``1e-3`` as a number, as everyone expects, and refuses a key given twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    raise _SyntaxFault(f"{key.value} is given twice", key.start_mark.line + 1)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


def _read_yaml(text: str) -> object:
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise _SyntaxFault(
            f"not YAML: {error.problem or error.context}", mark.line + 1 if mark else 0
        ) from None
    except yaml.YAMLError as error:
        raise _SyntaxFault(f"not YAML: {error}") from None


_Reader = Callable[[str], object]
_READERS: dict[str, _Reader] = {
    ".toml": _read_toml,
    ".yaml": _read_yaml,
    ".yml": _read_yaml,
    ".json": _read_json,
}


def _guess(text: str) -> list[_Reader]:
    if text.lstrip().startswith("{"):
        return [_read_json]
    return [_read_toml, _read_yaml]


def _unfit(value: object, path: str, depth: int) -> Iterable[str]:
    """Values that a file may hold and a message may not."""
    here = path or "document"
    if depth > MAX_DEPTH:
        yield f"{here}: nested more than {MAX_DEPTH} deep"
    elif isinstance(value, dict):
        for key, inner in value.items():
            if isinstance(key, str):
                yield from _unfit(inner, f"{path}.{key}" if path else key, depth + 1)
            else:
                yield f"{here}: key {key!r} is {_kind(key)}; write it in quotes"
    elif isinstance(value, list):
        for at, inner in enumerate(value):
            yield from _unfit(inner, f"{here}[{at}]", depth + 1)
    elif isinstance(value, float):
        if not math.isfinite(value):
            yield f"{here}: {value} is not a finite number"
    elif isinstance(value, int):
        if not -(2**63) <= value < 2**64:
            yield f"{here}: {value} does not fit 64 bits"
    elif not (value is None or isinstance(value, str)):
        yield f"{here}: {_kind(value)} cannot be sent; write it in quotes"


def _kind(value: object) -> str:
    names = {"dict": "a table", "list": "a list", "str": "a text", "NoneType": "nothing"}
    return names.get(type(value).__name__, f"a value of type {type(value).__name__}")
