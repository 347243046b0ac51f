"""docs/asyncapi.json says what the code says: exchanges, keys, and messages with their types."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import orjson
import pytest
from described_messages import channels_of, fault_of, faults

from elps.contracts import messages, requests, telemetry, topology
from elps.contracts.ids import JobId
from elps.contracts.job import JobDocument
from elps.contracts.messages import Message, Order
from elps.contracts.requests import Answer
from elps.messaging.described import CHANNELS, description, description_text, main
from elps.messaging.port import EXCHANGES

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "contract" / "golden"
JOB = JobId("digits")
BODIES = {c.reply.__name__ for c in CHANNELS if c.reply} | {
    kind.__name__ for c in CHANNELS for kind in c.kinds
}


def test_the_file_in_docs_is_up_to_date() -> None:
    assert main(["--check", str(ROOT / "docs" / "asyncapi.json")]) == 0


def test_a_file_that_is_not_up_to_date_is_found(tmp_path: Path) -> None:
    old = tmp_path / "asyncapi.json"
    old.write_text(description_text().replace("elps.events", "events"), encoding="utf-8")
    assert main(["--check", str(old)]) == 1


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(ref := value.get("$ref"), str):
            yield ref
        for inner in value.values():
            yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


def test_every_reference_leads_somewhere_and_every_schema_is_one() -> None:
    described = description()
    for ref in set(references(described)):
        at = described
        for part in ref.removeprefix("#/").split("/"):
            assert part in at, ref
            at = at[part]
    for schema in described["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    parts = {name.partition("_")[0] for name in described["operations"]}
    assert parts == {"user", "operator", "scheduler", "monitor", "shard", "agent"}


def test_every_exchange_and_every_message_is_described() -> None:
    assert {channel.exchange for channel in CHANNELS} == set(EXCHANGES)
    tagged = {
        name
        for module in (messages, requests, telemetry)
        for name, kind in vars(module).items()
        if isinstance(kind, type) and issubclass(kind, Message) and kind not in (Message, Order)
    }
    assert tagged <= BODIES
    assert BODIES - tagged == {
        "JobDocument",
        "JobCommand",
        "ScaleCommand",
        "SuspendCommand",
        "PolicyCommand",
        "Query",
        "Answer",
    }


@pytest.mark.parametrize(
    ("exchange", "key", "kinds"),
    [
        (topology.JOBS, topology.SUBMIT, [JobDocument]),
        (topology.JOBS, topology.SCALE, [requests.ScaleCommand]),
        (topology.MEMBERS, topology.AGENT_BEAT, [messages.AgentBeat]),
        (topology.EVENTS, topology.event_key(JOB, "running"), [messages.JobEvent]),
        (topology.TELEMETRY, topology.telemetry_key(JOB), [telemetry.IterationRows]),
        (topology.TELEMETRY, topology.log_key(JOB), [telemetry.LogLines]),
        (topology.TELEMETRY, topology.timings_key(JOB), [telemetry.IterationTimings]),
        (topology.TELEMETRY, topology.PROBE_KEY, []),
        (topology.QUERY, "jobs", [requests.Query]),
    ],
)
def test_a_key_as_the_code_makes_it_belongs_to_one_channel(
    exchange: str, key: str, kinds: list[type]
) -> None:
    (channel,) = channels_of(exchange, key)
    assert list(channel.kinds) == kinds


def test_users_keys_are_all_there() -> None:
    keys = {channel.key for channel in CHANNELS if channel.exchange == topology.JOBS}
    named = {
        topology.SUBMIT,
        topology.KILL,
        topology.PAUSE,
        topology.RESUME,
        topology.SCALE,
        topology.SUSPEND,
        topology.EXPLAIN,
        topology.POLICY,
    }
    assert keys == named


@pytest.mark.parametrize("name", sorted(BODIES))
def test_golden_bytes_are_as_described(name: str) -> None:
    files = sorted(GOLDEN.glob(f"{name}.*.json"), key=lambda path: int(path.suffixes[0][1:]))
    for path in {files[0], files[-1]}:
        body = path.read_text("utf-8").replace('"policy ☃"', '"fixed"')  # one of a list in truth
        assert fault_of(name, orjson.loads(body)) == "", path.name


def test_a_message_that_is_not_as_described_is_found() -> None:
    key = topology.event_key(JOB, "running")
    good = orjson.dumps({"type": "event", "job": "digits", "what": "running", "at": 1.0})
    assert faults(topology.EVENTS, key, good) == []
    bad = orjson.dumps({"type": "event", "job": "digits", "what": "running", "at": "noon"})
    assert faults(topology.EVENTS, "jobs.digits", good)
    (fault,) = faults(topology.EVENTS, key, bad)
    assert "'noon' is not of type 'number'" in fault


def test_an_answer_is_described_with_all_that_it_has() -> None:
    fields = {field.name for field in msgspec.structs.fields(Answer)}
    assert set(description()["components"]["schemas"]["Answer"]["properties"]) == fields
