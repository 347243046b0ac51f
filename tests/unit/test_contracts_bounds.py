"""What is read can be written again: numbers, depths and names are bounded where messages are read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fuzzing import AIMS, GOLDEN

from elps.contracts.beats import MAX_WORD_CHARACTERS, read_beat
from elps.contracts.codec import decode, encode, parse_job
from elps.contracts.errors import InvalidDocument
from elps.contracts.job import DEEPEST
from elps.contracts.messages import AgentCommand, MemberMessage, ShardCommand
from elps.contracts.numbers import LARGEST

BEATS = ("ShardBeat", "AgentBeat", "SchedulerBeat")


def newest(name: str) -> dict[str, Any]:
    """The newest golden message of a kind, with identifiers that are some."""
    path = max(GOLDEN.glob(f"{name}.*.json"), key=lambda path: int(path.suffixes[0][1:]))
    found: dict[str, Any] = json.loads(path.read_text().replace(" ☃", ""))
    return found


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every container that holds a whole number, with its key."""
    found = []
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, part in items:
        if isinstance(part, dict | list):
            found += places(part)
        elif type(part) is int:
            found.append((value, key))
    return found


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


@pytest.mark.parametrize("aim", [a for a in AIMS if a.contract], ids=lambda aim: aim.golden)
@pytest.mark.parametrize("number", [10**29, 2**64 - 1, LARGEST + 1, -LARGEST - 1, -(2**63)])
def test_a_number_that_is_too_large_is_refused_or_can_be_written(aim: Any, number: int) -> None:
    """It is taken as a seed, of which all 63 bits count, and among what a user hands on to a task."""
    for n in range(len(places(newest(aim.golden)))):
        value = newest(aim.golden)
        holder, key = places(value)[n]
        holder[key] = number
        try:
            message = decode(json.dumps(value).encode(), aim.contract)
        except InvalidDocument:
            continue
        encode(message)
        assert key in ("seed", "split_seed", 0), f"{aim.golden}: {key} may be {number}"


@pytest.mark.parametrize("where", ["task_args", "data"])
def test_what_a_user_hands_on_may_be_so_deep_and_no_deeper(where: str) -> None:
    def document(levels: int) -> dict[str, Any]:
        args = {"x": nested(levels - 1)}
        return {"task": "linear", "iterations": 1} | (
            {"task_args": args} if where == "task_args" else {"data": {"source": "s", "args": args}}
        )

    assert parse_job(json.loads(encode(parse_job(document(DEEPEST))))) is not None
    for levels in (DEEPEST + 1, 500):
        with pytest.raises(InvalidDocument, match=f"nested deeper than {DEEPEST} levels"):
            parse_job(document(levels))


@pytest.mark.parametrize(
    ("name", "contract"), [("HostJob", ShardCommand), ("StartTrainer", AgentCommand)]
)
def test_an_order_with_a_document_that_is_too_deep_is_refused(name: str, contract: Any) -> None:
    order = newest(name)
    order["document"]["task_args"] = {"x": nested(DEEPEST)}
    with pytest.raises(InvalidDocument, match="nested deeper"):
        decode(json.dumps(order).encode(), contract)


# --- heartbeats -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BEATS)
def test_a_sound_heartbeat_is_read(name: str) -> None:
    body = json.dumps(newest(name)).encode()
    assert read_beat(body) == decode(body, MemberMessage)  # type: ignore[arg-type]


BAD_IDS = ["", "a/b", "../x", "a.b.#", "*", "job:1", "x" * 300, "größe", "a b"]


def set_in(value: Any, path: str, to: Any) -> None:
    *holders, last = path.split(".")
    for key in holders:
        value = value[int(key) if key.isdigit() else key]
    value[last] = to


@pytest.mark.parametrize("bad", BAD_IDS)
@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("ShardBeat", "shard"),
        ("ShardBeat", "jobs.0.job"),
        ("AgentBeat", "agent"),
        ("AgentBeat", "trainers.0.job"),
        ("AgentBeat", "trainers.0.worker"),
    ],
)
def test_names_that_are_none_are_refused_before_they_become_routing_keys(
    name: str, path: str, bad: str
) -> None:
    beat = newest(name)
    set_in(beat, path, bad)
    with pytest.raises(InvalidDocument, match=f"{path.split('.')[-1]}: .*is not an identifier"):
        read_beat(json.dumps(beat).encode())


@pytest.mark.parametrize("name", BEATS)
@pytest.mark.parametrize("field", ["host", "version", "incarnation"])
def test_what_is_kept_of_every_member_is_short(name: str, field: str) -> None:
    read_beat(json.dumps(newest(name) | {field: "x" * MAX_WORD_CHARACTERS}).encode())
    with pytest.raises(InvalidDocument, match=f"{field}: 1000000 characters"):
        read_beat(json.dumps(newest(name) | {field: "x" * 1_000_000}).encode())
