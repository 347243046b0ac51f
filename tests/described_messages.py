"""Messages held against docs/asyncapi.json, as far as it says something of them."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import jsonschema
import orjson

from elps.messaging.described import CHANNELS, Channel, schemas

COMPONENTS = "#/components/schemas/"


def channels_of(exchange: str, key: str) -> list[Channel]:
    """Channels whose address a message has."""
    return [c for c in CHANNELS if c.exchange == exchange and _pattern(c.key).fullmatch(key)]


def faults(exchange: str, key: str, body: bytes) -> list[str]:
    """What the description does not allow of a message."""
    found = channels_of(exchange, key)
    if len(found) != 1:
        return [f"{exchange} {key}: described by {[channel.name for channel in found]}"]
    kinds = [kind.__name__ for kind in found[0].kinds]
    if not kinds:
        return []
    value = orjson.loads(body)
    told = [f"{exchange} {key}: {fault}" for name in kinds if (fault := fault_of(name, value))]
    return told if len(told) == len(kinds) else []


def fault_of(name: str, value: Any) -> str:
    """What is wrong with a value of this type; empty when nothing is."""
    error = next(iter(_validator(name).iter_errors(value)), None)
    return f"{name}: {error.message[:300]}" if error is not None else ""


@cache
def _pattern(address: str) -> re.Pattern[str]:
    parts = re.split(r"\{\w+\}", address)
    return re.compile("[^.]+".join(map(re.escape, parts)))


@cache
def _validator(name: str) -> Any:
    return jsonschema.Draft202012Validator(
        {"$ref": f"{COMPONENTS}{name}", "components": {"schemas": _all()}}
    )


@cache
def _all() -> dict[str, Any]:
    kinds = {k for c in CHANNELS for k in (*c.kinds, *([c.reply] if c.reply else []))}
    return schemas(tuple(sorted(kinds, key=lambda kind: kind.__name__)))
