"""JSON in and out: orjson reads and writes, msgspec checks. Nothing here trusts its input."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec
import orjson

from elps.contracts.checking import convert_all
from elps.contracts.errors import InvalidDocument
from elps.contracts.ids import id_problem
from elps.contracts.job import JobDocument, semantic_problems

T = TypeVar("T")

MAX_MESSAGE_BYTES = 4 * 1024 * 1024
"""No message of the control plane is larger; 16 MiB is the limit of current brokers."""


def encode(message: object) -> bytes:
    """Write a contract struct as JSON. NaN and infinities become null: fields that may hold them are optional."""
    return orjson.dumps(msgspec.to_builtins(message, str_keys=True, enc_hook=_plain))


def _plain(value: Any) -> Any:
    """Numbers and arrays of numpy as Python's own; this package does not import numpy for it."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise NotImplementedError(f"{type(value).__name__} is nothing that JSON can hold")


def decode(body: bytes | bytearray | memoryview, kind: type[T]) -> T:
    """Read JSON as `kind`; raise `InvalidDocument` naming what is wrong."""
    try:
        return msgspec.convert(loads(body), kind)
    except msgspec.ValidationError as error:
        raise InvalidDocument(getattr(kind, "__name__", "message"), [str(error)]) from None


def loads(body: bytes | bytearray | memoryview | str) -> Any:
    """Read JSON of bounded size; raise `InvalidDocument` when it is none."""
    if len(body) > MAX_MESSAGE_BYTES:
        raise InvalidDocument(
            "message", [f"{len(body)} bytes, at most {MAX_MESSAGE_BYTES} are read"]
        )
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidDocument("message", [f"not JSON: {error}"]) from None


class _Pairs(list[tuple[str, Any]]):
    """A JSON object as it was written, its repeated keys included."""


def loads_document(body: bytes | bytearray | memoryview) -> Any:
    """Read JSON that a person wrote: as `loads`, and refuse a key given twice, of which only one could count."""
    value = loads(body)
    try:
        written = json.loads(
            bytes(body), object_pairs_hook=_Pairs, parse_int=_no_number, parse_float=_no_number
        )
        problems = list(_repeated_keys(written, ""))
    except RecursionError:
        raise InvalidDocument("job document", ["document: nested too deeply"]) from None
    if problems:
        raise InvalidDocument("job document", problems)
    return value


def _no_number(_text: str) -> None:
    """Numbers are not looked at, and one of a million digits takes a while."""


def _repeated_keys(value: object, path: str) -> Iterator[str]:
    if isinstance(value, _Pairs):
        counts: dict[str, int] = {}
        for key, inner in value:
            here = f"{path}.{key[:64]}" if path else key[:64]
            counts[key] = counts.get(key, 0) + 1
            if counts[key] == 2:
                yield f"{here}: given twice"
            yield from _repeated_keys(inner, here)
    elif isinstance(value, list):
        for at, inner in enumerate(value):
            yield from _repeated_keys(inner, f"{path}[{at}]")


def parse_job(value: object) -> JobDocument:
    """Check a job document given as plain values; raise `InvalidDocument` with every fault found."""
    job, problems = convert_all(value, JobDocument)
    if (
        isinstance(value, dict)
        and isinstance(value.get("id"), str)
        and (problem := id_problem(value["id"]))
    ):
        problems.append(f"id: {problem}")
    problems += (
        semantic_problems(job) if job is not None else _semantic_problems_of_rest(value, problems)
    )
    if job is None or problems:
        raise InvalidDocument("job document", problems)
    return job


def _semantic_problems_of_rest(value: object, problems: list[str]) -> list[str]:
    """Faults between fields that are each right by themselves, in a document where others are not."""
    if not isinstance(value, dict):
        return []
    faulty = {re.split(r"[.:]", problem, maxsplit=1)[0] for problem in problems}
    rest = {key: part for key, part in value.items() if key not in faulty}
    job, more = convert_all({"task": "unknown", **rest}, JobDocument)
    if job is None or more:
        return []
    return [
        problem
        for problem in semantic_problems(job)
        if faulty.isdisjoint(problem.split(":", 1)[0].split(", "))
    ]
