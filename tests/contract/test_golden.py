"""What was once written can always be read: golden bytes of everything that travels or is stored.

`golden/<Name>.<n>.json` are bytes as some version wrote them; they are never changed. The newest of a struct has all of
its fields and comes out of a decode and an encode byte for byte; older ones keep every value they hold. After a field
was added, `ELPS_WRITE_GOLDEN=1 pytest tests/contract/test_golden.py` adds the next file.
"""

from __future__ import annotations

import os
import types
import typing
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import msgspec
import pytest

from elps.contracts import codec, epoch, job, messages, requests, state, telemetry

FOLDER = Path(__file__).parent / "golden"
WRITE = bool(os.environ.get("ELPS_WRITE_GOLDEN"))


def structs() -> dict[str, type[msgspec.Struct]]:
    """Every struct of the contracts that is not only a base of others."""
    found = {}
    for module in (epoch, job, messages, requests, state, telemetry):
        for name, value in vars(module).items():
            is_struct = isinstance(value, type) and issubclass(value, msgspec.Struct)
            if is_struct and value.__module__ == module.__name__ and not name.startswith("_"):
                found[name] = value
    del found["Message"]
    return found


STRUCTS = structs()


def encode(value: msgspec.Struct) -> bytes:
    """As the code does it: an answer carries JSON made by others as it is, everything else goes through the codec."""
    return msgspec.json.encode(value) if isinstance(value, requests.Answer) else codec.encode(value)


def decode(body: bytes, kind: type[msgspec.Struct]) -> msgspec.Struct:
    return (
        msgspec.json.decode(body, type=kind)
        if kind is requests.Answer
        else codec.decode(body, kind)
    )


def sample(kind: Any, name: str) -> Any:
    """A value of a type that differs from the usual defaults; the same for the same arguments."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is typing.Annotated:
        return _within(sample(arguments[0], name), kind)
    if origin in (Union, types.UnionType):
        return sample(next(a for a in arguments if a is not type(None)), name)
    if origin is Literal:
        return arguments[-1]
    if origin is list:
        return [sample(arguments[0], name)]
    if origin is dict:
        return {name: sample(arguments[1], name)}
    if isinstance(kind, typing.NewType):
        return sample(kind.__supertype__, name)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return list(kind)[-1]
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return full(kind)
    plain: dict[Any, Any] = {
        str: f"{name} ☃",
        bool: True,
        int: 7,
        float: 0.125,
        Any: [1, "two", None, 0.5],
        msgspec.Raw: msgspec.Raw(b'{"three":3}'),
    }
    return plain[kind]


def _within(value: Any, kind: Any) -> Any:
    for candidate in (value, 0.125, 2.5, 7, "x"):
        try:
            return msgspec.convert(candidate, kind)
        except msgspec.ValidationError:
            continue
    raise AssertionError(f"no sample of {kind}")


def full(kind: type[msgspec.Struct]) -> msgspec.Struct:
    """A struct with every field given."""
    values = {field.name: sample(field.type, field.name) for field in msgspec.structs.fields(kind)}
    if kind is job.JobDocument:
        values["passes"] = None  # a document gives one of the two
    return kind(**values)


def goldens(name: str) -> list[Path]:
    """Files of a struct, oldest first."""
    return sorted(FOLDER.glob(f"{name}.*.json"), key=lambda path: int(path.suffixes[0][1:]))


def keeps(new: Any, old: Any) -> bool:
    """Whether `new` has everything that `old` has; only tables may have gained fields."""
    if isinstance(old, dict) and isinstance(new, dict):
        return all(key in new and keeps(new[key], value) for key, value in old.items())
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(map(keeps, new, old))
    return type(old) is type(new) and bool(old == new)


@pytest.mark.parametrize("name", STRUCTS)
def test_the_newest_golden_bytes_have_every_field_and_come_back_byte_for_byte(name: str) -> None:
    kind, body = STRUCTS[name], encode(full(STRUCTS[name]))
    files = goldens(name)
    newest = files[-1].read_bytes() if files else b""
    if newest != body and WRITE:
        (FOLDER / f"{name}.{len(files) + 1}.json").write_bytes(body)
        newest = body
    assert newest == body, (
        f"{name} changed, or has no golden bytes; add them with ELPS_WRITE_GOLDEN=1"
    )
    assert encode(decode(newest, kind)) == newest


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.json")), ids=lambda path: path.name)
def test_golden_bytes_of_any_version_keep_every_value(path: Path) -> None:
    body = path.read_bytes()
    again = encode(decode(body, STRUCTS[path.name.split(".")[0]]))
    assert keeps(msgspec.json.decode(again), msgspec.json.decode(body))


@pytest.mark.parametrize("name", STRUCTS)
def test_a_field_that_an_older_sender_does_not_know_is_not_needed(name: str) -> None:
    kind = STRUCTS[name]
    tag = (
        {kind.__struct_config__.tag_field: kind.__struct_config__.tag}
        if kind.__struct_config__.tag_field
        else {}
    )
    whole = msgspec.json.decode(encode(full(kind)))
    required = {
        f.encode_name: whole[f.encode_name] for f in msgspec.structs.fields(kind) if f.required
    }
    decode(msgspec.json.encode(tag | required), kind)


UNIONS: dict[str, Any] = {
    "members": messages.MemberMessage,
    "shard commands": messages.ShardCommand,
    "agent commands": messages.AgentCommand,
    "telemetry": telemetry.TelemetryMessage,
}


@pytest.mark.parametrize("queue", UNIONS)
def test_each_message_of_a_queue_is_told_apart_by_its_tag(queue: str) -> None:
    for kind in get_args(UNIONS[queue]):
        assert codec.decode(codec.encode(full(kind)), UNIONS[queue]) == full(kind)


def test_a_message_from_a_newer_sender_is_read_without_what_is_unknown() -> None:
    beat = full(messages.ShardBeat)
    newer = msgspec.json.decode(codec.encode(beat)) | {"a_later_field": [1]}
    assert codec.decode(msgspec.json.encode(newer), messages.ShardBeat) == beat


def test_a_document_of_a_user_with_an_unknown_field_is_not() -> None:
    document = msgspec.json.decode(codec.encode(full(job.JobDocument))) | {"optimiser": {}}
    with pytest.raises(codec.InvalidDocument, match="optimiser: unknown; did you mean optimizer"):
        codec.parse_job(document)
