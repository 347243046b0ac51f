"""The AsyncAPI description of the control plane: every exchange, routing key and message, made from the code.

``python -m elps.messaging.described`` prints it, ``--write FILE`` keeps it, ``--check FILE`` fails if FILE is not it.
Names of exchanges and keys are those of `topology`, payloads are the JSON Schemas of the types that the code reads and
writes. An operation is told from the side of the part that its name begins with.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

import msgspec
import orjson

from elps.contracts import epoch, job, messages, requests, state, telemetry, topology
from elps.contracts.ids import JobId
from elps.contracts.job import JobDocument
from elps.contracts.schema import component_schemas, job_schema, keep_file
from elps.messaging.port import (
    EXCHANGE_HEADER,
    EXCHANGES,
    QUEUE_HEADER,
    REASON_HEADER,
)

VERSION = "1"
"""Of the description. Messages only gain fields with defaults, so it rises when that is not enough."""

_MODULES = (epoch, job, messages, requests, state, telemetry)
_ANSWER = msgspec.defstruct(
    "Answer",
    [("ok", bool), ("result", Any, None), ("reason", str, ""), ("later", bool, False)],
    frozen=True,
    kw_only=True,
)
"""`Answer` as it can be described: its result is JSON made by others."""
_JOB, _MEMBER, _WHAT = JobId("{job}"), "{member}", "{what}"
_PARAMETERS = {
    "job": "Id of the job",
    "member": "Id of the shard or agent",
    "what": "What has happened, or what is asked for; one word",
}


@dataclass(frozen=True)
class Channel:
    """Messages with one kind of routing key on one exchange."""

    name: str
    exchange: str
    key: str
    """With parameters in braces."""
    kinds: tuple[type, ...]
    """Of its messages; none: any bytes."""
    about: str
    senders: tuple[str, ...]
    takers: tuple[str, ...]
    reply: type | None = None
    """What comes back to whoever names a `reply_to`."""
    headers: Mapping[str, str] = field(default_factory=dict)


def _of_users(key: str, kind: type, about: str, *others: str) -> Channel:
    return Channel(
        key, topology.JOBS, key, (kind,), about, ("user", *others), ("scheduler",), requests.Reply
    )


def _of_members(key: str, kind: type, sender: str, *others: str) -> Channel:
    about = f"Heartbeats: all that a {sender} knows of itself"
    takers = ("monitor", *others)
    return Channel(f"{sender}_beats", topology.MEMBERS, key, (kind,), about, (sender,), takers)


CHANNELS = (
    _of_users(topology.SUBMIT, JobDocument, "Hands a job in; one with an id may be sent again"),
    _of_users(topology.KILL, requests.JobCommand, "Ends a job at once, for good"),
    _of_users(topology.PAUSE, requests.JobCommand, "Checkpoints a job and lets go of what it has"),
    _of_users(topology.RESUME, requests.JobCommand, "Queues a paused job again"),
    _of_users(topology.SCALE, requests.ScaleCommand, "Pins a job at a size, or frees it"),
    _of_users(topology.EXPLAIN, requests.JobCommand, "Asks why a job has what it has", "monitor"),
    _of_users(topology.POLICY, requests.PolicyCommand, "Chooses the policy of the scheduler"),
    _of_users(topology.SUSPEND, requests.SuspendCommand, "Has every job wait: the stack goes down"),
    _of_members(topology.AGENT_BEAT, messages.AgentBeat, "agent", "scheduler"),
    _of_members(topology.SHARD_BEAT, messages.ShardBeat, "shard", "scheduler"),
    _of_members(topology.SCHEDULER_BEAT, messages.SchedulerBeat, "scheduler"),
    Channel(
        "commands",
        topology.COMMANDS,
        _MEMBER,
        (*get_args(messages.ShardCommand), *get_args(messages.AgentCommand)),
        "What a member shall have running, repeated until its beats show it",
        ("scheduler",),
        ("shard", "agent"),
    ),
    Channel(
        "events",
        topology.EVENTS,
        topology.event_key(_JOB, _WHAT),
        (messages.JobEvent,),
        "What has happened to a job",
        ("scheduler", "shard"),
        ("monitor", "user"),
    ),
    Channel(
        "rows",
        topology.TELEMETRY,
        topology.telemetry_key(_JOB),
        (telemetry.IterationRows,),
        "Finished iterations, told by the shard that leads the job",
        ("shard",),
        ("monitor", "user"),
    ),
    Channel(
        "logs",
        topology.TELEMETRY,
        topology.log_key(_JOB),
        (telemetry.LogLines,),
        "What trainers print",
        ("agent",),
        ("monitor", "user"),
    ),
    Channel(
        "timings",
        topology.TELEMETRY,
        topology.timings_key(_JOB),
        (telemetry.IterationTimings,),
        "What is needed of the rows to balance a job's batches",
        ("monitor",),
        ("scheduler",),
    ),
    Channel(
        "probe",
        topology.TELEMETRY,
        topology.PROBE_KEY,
        (),
        "Nothing; whoever sends it learns whether the broker takes messages",
        ("monitor",),
        (),
    ),
    Channel(
        "queries",
        topology.QUERY,
        _WHAT,
        (requests.Query,),
        "Questions; the answer is the JSON that the monitor gives over HTTP (its /openapi.json)",
        ("user",),
        ("monitor",),
        requests.Answer,
    ),
    Channel(
        "dead_letters",
        topology.DEAD,
        "{key}",
        (),
        "Messages that could not be read or handled, as they were, with the key they had",
        ("scheduler", "monitor", "shard", "agent"),
        ("operator",),
        headers={
            REASON_HEADER: "Why, for people",
            QUEUE_HEADER: "The queue from which it was taken",
            EXCHANGE_HEADER: "Where it had been published",
        },
    ),
)


def description() -> dict[str, Any]:
    """AsyncAPI 3.0 of the control plane."""
    kinds = {kind.__name__: kind for channel in CHANNELS for kind in _kinds(channel)}
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "elps control plane",
            "version": VERSION,
            "description": "Jobs, heartbeats, commands, events, telemetry and queries over RabbitMQ. All messages are "
            "JSON and state what is or what shall be: they may come twice, late or not at all.",
        },
        "defaultContentType": "application/json",
        "channels": {channel.name: _channel(channel) for channel in CHANNELS}
        | {"replies": _replies()},
        "operations": dict(_operations()),
        "components": {
            "messages": {name: _message(kind) for name, kind in sorted(kinds.items())}
            | {channel.name: _bytes(channel) for channel in CHANNELS if not channel.kinds},
            "schemas": schemas(tuple(kinds.values())),
        },
    }


def description_text() -> str:
    """The description as a file: the same bytes for the same code."""
    return orjson.dumps(description(), option=orjson.OPT_INDENT_2).decode() + "\n"


def schemas(kinds: tuple[type, ...]) -> dict[str, Any]:
    """JSON Schemas of types and all that they consist of, by name."""
    described = [_ANSWER if kind is requests.Answer else kind for kind in kinds]
    found = component_schemas(described, _MODULES)
    # as docs/job.schema.json has it: that passes and iterations exclude each other is not in the types
    found["JobDocument"]["oneOf"] = job_schema()["$defs"]["JobDocument"]["oneOf"]
    return dict(sorted(found.items()))


def _kinds(channel: Channel) -> tuple[type, ...]:
    return channel.kinds if channel.reply is None else (*channel.kinds, channel.reply)


def _channel(channel: Channel) -> dict[str, Any]:
    names = [kind.__name__ for kind in channel.kinds] or [channel.name]
    exchange = {
        "name": channel.exchange,
        "type": EXCHANGES[channel.exchange],
        "durable": True,
        "autoDelete": False,
    }
    parameters = {
        name: {"description": text}
        for name, text in (_PARAMETERS | {"key": "The key it was published with"}).items()
        if f"{{{name}}}" in channel.key
    }
    found: dict[str, Any] = {
        "address": channel.key,
        "description": channel.about,
        "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in names},
        "bindings": {"amqp": {"is": "routingKey", "exchange": exchange, "bindingVersion": "0.3.0"}},
    }
    if parameters:
        found["parameters"] = parameters
    return found


def _replies() -> dict[str, Any]:
    """Where answers go: the queue that the question names."""
    names = sorted({c.reply.__name__ for c in CHANNELS if c.reply is not None})
    return {
        "address": None,
        "description": "The queue named in `reply_to`, over the default exchange, with the same `correlation_id`",
        "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in names},
    }


def _operations() -> list[tuple[str, dict[str, Any]]]:
    found = []
    for channel in CHANNELS:
        for action, parts in (("send", channel.senders), ("receive", channel.takers)):
            for part in parts:
                operation: dict[str, Any] = {
                    "action": action,
                    "channel": {"$ref": f"#/channels/{channel.name}"},
                    "summary": channel.about,
                }
                if channel.reply is not None:
                    operation["reply"] = {
                        "address": {"location": "$message.header#/reply_to"},
                        "channel": {"$ref": "#/channels/replies"},
                        "messages": [
                            {"$ref": f"#/channels/replies/messages/{channel.reply.__name__}"}
                        ],
                    }
                found.append((f"{part}_{action}s_{channel.name}", operation))
    return found


def _message(kind: type) -> dict[str, Any]:
    return {
        "name": kind.__name__,
        "summary": (inspect.getdoc(kind) or "").split("\n\n")[0].replace("\n", " "),
        "payload": {"$ref": f"#/components/schemas/{kind.__name__}"},
    }


def _bytes(channel: Channel) -> dict[str, Any]:
    """A message of which nothing is said but its headers."""
    headers = {name: {"type": "string", "description": t} for name, t in channel.headers.items()}
    return {
        "name": channel.name,
        "summary": channel.about,
        "contentType": "application/octet-stream",
        "headers": {"type": "object", "properties": headers},
        "payload": {},
    }


def main(arguments: list[str] | None = None) -> int:
    """Print, write or check the description."""
    text = description_text()
    return keep_file("elps.messaging.described", main.__doc__ or "", text, arguments)


if __name__ == "__main__":
    sys.exit(main())
