"""Broken messages for every queue, drawn from a seed: golden messages with something wrong, and bytes that are none.

A shot goes to one exchange under one key, and `readers` says by which contract those who take it read it, so that a
test can tell what they must have refused.
"""

from __future__ import annotations

import copy
import json
import pickle
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elps.contracts import topology
from elps.contracts.codec import MAX_MESSAGE_BYTES, decode, parse_job
from elps.contracts.errors import InvalidDocument
from elps.contracts.ids import AgentId, ShardId
from elps.contracts.messages import AgentCommand, JobEvent, MemberMessage, ShardCommand
from elps.contracts.requests import JobCommand, PolicyCommand, Query, ScaleCommand, SuspendCommand
from elps.contracts.telemetry import IterationTimings, TelemetryMessage

GOLDEN = Path(__file__).parent / "contract" / "golden"
JOB = "job"
"""As the golden messages name it, without what makes it no identifier."""
SHARD, AGENT = ShardId("shard-0"), AgentId("agent-0")
"""To whom orders go; those that golden heartbeats tell of have other names, and are nowhere."""


@dataclass(frozen=True)
class Aim:
    """One kind of message on its way."""

    exchange: str
    key: str
    golden: str
    """Whose golden bytes are broken."""
    contract: Any
    """By which they are read; None: as a document from a user."""
    readers: tuple[str, ...]
    """What the names of the queues begin with that take it."""


JOBS_QUEUE = (topology.SCHEDULER_JOBS_QUEUE,)
MEMBERS_QUEUES = ("elps.scheduler.members.", "elps.monitor.members.")
ROWS_QUEUE = ("elps.monitor.telemetry.",)
SHARD_QUEUE = (topology.command_queue(SHARD),)
AGENT_QUEUE = (topology.command_queue(AGENT),)
AIMS = (
    Aim(topology.JOBS, topology.SUBMIT, "JobDocument", None, JOBS_QUEUE),
    Aim(topology.JOBS, topology.KILL, "JobCommand", JobCommand, JOBS_QUEUE),
    Aim(topology.JOBS, topology.EXPLAIN, "JobCommand", JobCommand, JOBS_QUEUE),
    Aim(topology.JOBS, topology.SCALE, "ScaleCommand", ScaleCommand, JOBS_QUEUE),
    Aim(topology.JOBS, topology.POLICY, "PolicyCommand", PolicyCommand, JOBS_QUEUE),
    Aim(topology.JOBS, topology.SUSPEND, "SuspendCommand", SuspendCommand, JOBS_QUEUE),
    Aim(topology.MEMBERS, topology.SHARD_BEAT, "ShardBeat", MemberMessage, MEMBERS_QUEUES),
    Aim(topology.MEMBERS, topology.AGENT_BEAT, "AgentBeat", MemberMessage, MEMBERS_QUEUES),
    Aim(topology.MEMBERS, topology.SCHEDULER_BEAT, "SchedulerBeat", MemberMessage, MEMBERS_QUEUES),
    Aim(topology.COMMANDS, SHARD, "HostJob", ShardCommand, SHARD_QUEUE),
    Aim(topology.COMMANDS, SHARD, "DropJob", ShardCommand, SHARD_QUEUE),
    Aim(topology.COMMANDS, SHARD, "DirectJob", ShardCommand, SHARD_QUEUE),
    Aim(topology.COMMANDS, SHARD, "BatchPlan", ShardCommand, SHARD_QUEUE),
    Aim(topology.COMMANDS, AGENT, "StartTrainer", AgentCommand, AGENT_QUEUE),
    Aim(topology.COMMANDS, AGENT, "StopTrainer", AgentCommand, AGENT_QUEUE),
    Aim(topology.EVENTS, f"job.{JOB}.running", "JobEvent", JobEvent, ("elps.monitor.events.",)),
    Aim(topology.TELEMETRY, f"job.{JOB}", "IterationRows", TelemetryMessage, ROWS_QUEUE),
    Aim(topology.TELEMETRY, f"log.{JOB}", "LogLines", TelemetryMessage, ROWS_QUEUE),
    Aim(
        topology.TELEMETRY,
        f"timings.{JOB}",
        "IterationTimings",
        IterationTimings,
        ("elps.scheduler.timings.",),
    ),
    Aim(topology.QUERY, "jobs", "Query", Query, (topology.QUERY,)),
)


class Trap:
    """Its pickle leaves a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


@dataclass(frozen=True)
class Shot:
    """One message."""

    aim: Aim
    body: bytes
    how: str
    """What is wrong with it, for people."""

    @property
    def unreadable(self) -> bool:
        """Whether no reader can have taken it: the contract does not."""
        try:
            if len(self.body) > MAX_MESSAGE_BYTES:
                return True
            if self.aim.contract is None:
                parse_job(json.loads(self.body))
            else:
                decode(self.body, self.aim.contract)
        except (InvalidDocument, ValueError, RecursionError):
            return True
        return False


class Raw(str):
    """A piece of JSON, or of what is none, written as it is."""


VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 0.5, -0.0, 1e300, 2**31, 2**53 + 1, 2**63, 2**64 - 1, 2**64, -(2**63) - 1,
    Raw("1" + "0" * 29), Raw("-" + "9" * 30), Raw("9" * 400), Raw("NaN"), Raw("-Infinity"), Raw("1e999"), Raw("01"),
    "", " ", "0", "nan", "../../etc/passwd", "a.#.*", "job:1", "x" * 300, "\x00", "\ud800", "☃" * 200, "os:system",
    [], [None], [[]], {}, {"": None}, {"number": 7}, {"number": "7", "nonce": []}, {"__class__": "os.system"},
)  # fmt: skip
"""What is put in the place of something else."""
DEEP = 1500
LARGE = 300_000


def hostile(rng: random.Random) -> Any:
    """A value that hardly fits anywhere."""
    drawn = rng.random()
    if drawn < 0.9:
        return copy.deepcopy(rng.choice(VALUES))  # it may be changed further
    if drawn < 0.96:
        depth = rng.choice([10, 100, 500, 900, 1000, 1020, DEEP])
        opening, closing = rng.choice([("[", "]"), ('{"a":', "}")])
        return Raw(opening * depth + "1" + closing * depth)
    return "x" * rng.choice([1000, 5000, LARGE])


def another(rng: random.Random, value: Any) -> Any:
    """A value of the same type, so that what it is put in may be taken: what is wrong with it is what it says."""
    alike = [known for known in VALUES if type(known) is type(value)]
    return copy.deepcopy(rng.choice(alike)) if alike else hostile(rng)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container with each of its keys, from the outside in."""
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from places(value[key])


def written(value: Any) -> bytes:
    """As JSON, what is raw in it as it is."""
    if isinstance(value, Raw):
        return value.encode(errors="surrogatepass")
    if isinstance(value, dict):
        pairs = (written(str(key)) + b":" + written(part) for key, part in value.items())
        return b"{" + b",".join(pairs) + b"}"
    if isinstance(value, list):
        return b"[" + b",".join(map(written, value)) + b"]"
    return json.dumps(value).encode()


class Armoury:
    """Shots from one seed: the same number of them is the same shots."""

    def __init__(self, seed: int, trap: Path, without: frozenset[str] = frozenset()) -> None:
        """`trap` is a file that appears if a pickle is loaded; fields named in `without` are in no message."""
        self._rng = random.Random(seed)
        self._golden = {aim.golden: _sound(aim.golden, without) for aim in AIMS}
        self._bodies = (
            (b"", "nothing"),
            (b"not JSON", "not JSON"),
            (b"\xff\xfe\x00{}", "not UTF-8"),
            (pickle.dumps(Trap(trap)), "a pickle"),
            (pickle.dumps(Trap(trap), protocol=0), "a pickle of text"),
            (b"[" * 3000 + b"]" * 3000, "deep"),
            (b'{"type":' * 3000 + b"1" + b"}" * 3000, "deep"),
            (b'{"a":' + b"1" * LARGE + b"}", "a number of many digits"),
            (b"null", "null"), (b"[]", "a list"), (b"42", "a number"), (b'"text"', "a text"), (b"NaN", "NaN"),
            (b"{}", "an empty table"), (b'{"type":"no such type"}', "no such type"), (b'{"type":["shard"]}', "types"),
        )  # fmt: skip

    def shot(self) -> Shot:
        """The next one."""
        rng = self._rng
        aim = rng.choice(AIMS)
        drawn = rng.random()
        if drawn < 0.2:
            return Shot(aim, *rng.choice(self._bodies))
        if drawn < 0.25:
            return Shot(aim, rng.randbytes(rng.randrange(1, 300)), "random bytes")
        body, how = self._changed(aim)
        if drawn < 0.35:
            return Shot(aim, body[: rng.randrange(len(body))], f"{how}, cut off")
        if drawn < 0.45:
            bits = bytearray(body)
            for _ in range(rng.randint(1, 4)):
                bits[rng.randrange(len(bits))] ^= 1 << rng.randrange(8)
            return Shot(aim, bytes(bits), f"{how}, with other bits")
        return Shot(aim, body, how)

    def huge(self, aim: Aim) -> Shot:
        """One that is larger than any message may be."""
        return Shot(aim, b'{"a":"' + b"x" * MAX_MESSAGE_BYTES + b'"}', "huge")

    def _changed(self, aim: Aim) -> tuple[bytes, str]:
        rng = self._rng
        value = json.loads(self._golden[aim.golden])
        how = []
        for _ in range(rng.randint(1, 3)):
            holder, key = rng.choice(list(places(value)) or [(value, "a")])
            drawn = rng.random()
            if drawn < 0.35:
                holder[key] = hostile(rng)
                how.append(f"{key} other")
            elif drawn < 0.7:
                holder[key] = another(
                    rng, holder.get(key) if isinstance(holder, dict) else holder[key]
                )
                how.append(f"{key} of its type")
            elif drawn < 0.85 and isinstance(holder, dict):
                holder.pop(key, None)
                how.append(f"no {key}")
            elif isinstance(holder, dict):
                holder[rng.choice(["unknown", "__proto__", "", "type "])] = hostile(rng)
                how.append("an unknown key")
            else:
                holder.extend(hostile(rng) for _ in range(rng.choice([1, 100])))
                how.append("more of it")
        return written(value), f"{aim.golden}: {', '.join(how)}"


def _sound(name: str, without: frozenset[str]) -> bytes:
    """The newest golden bytes with identifiers that are some."""
    newest = max(GOLDEN.glob(f"{name}.*.json"), key=lambda path: int(path.suffixes[0][1:]))
    value = json.loads(newest.read_text().replace(" ☃", "").replace('"id":"id"', f'"id":"{JOB}"'))
    return json.dumps({key: part for key, part in value.items() if key not in without}).encode()
