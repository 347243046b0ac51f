"""The service processes of a stack: their names, how they are started and what they are told."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from elps.local.paths import DATA_PATH, TASK_PATH, paths_in_force
from elps.local.processes import PART_VARIABLE, STACK_VARIABLE
from elps.local.record import StackRecord

SHARD, AGENT, SCHEDULER = "shard", "agent", "scheduler"


def _script(name: str) -> tuple[str, ...]:
    """A console script of the environment that runs this."""
    return (str(Path(sys.executable).parent / name),)


@dataclass(frozen=True)
class Programs:
    """What is run for each kind of service; tests put in their own."""

    scheduler: tuple[str, ...] = field(default_factory=lambda: _script("elps-scheduler"))
    monitor: tuple[str, ...] = field(default_factory=lambda: _script("elps-monitor"))
    shard: tuple[str, ...] = field(default_factory=lambda: _script("elps-shard"))
    agent: tuple[str, ...] = field(default_factory=lambda: _script("elps-worker"))

    def of(self, name: str) -> tuple[str, ...]:
        """The program behind a service's name."""
        match kind_of(name):
            case "scheduler":
                return self.scheduler
            case "monitor":
                return self.monitor
            case "shard":
                return self.shard
            case "agent":
                return self.agent
            case other:
                raise ValueError(f"no service of kind {other!r}")


def kind_of(name: str) -> str:
    """``shard-2`` is a ``shard``."""
    return name.partition("-")[0]


def number_of(name: str) -> int:
    """``shard-2`` is number 2; services of which there is one are number 0."""
    return int(name.partition("-")[2] or 0)


def names(workers: int, shards: int, schedulers: int = 1) -> list[str]:
    """All services of a stack of this size, in the order in which they start."""
    standbys = [f"{SCHEDULER}-{n}" for n in range(2, schedulers + 1)]
    members = [f"{SHARD}-{n}" for n in range(1, shards + 1)]
    members += [f"{AGENT}-{n}" for n in range(1, workers + 1)]
    return [SCHEDULER, *standbys, "monitor", *members]


def environment(
    name: str, home: Path, record: StackRecord, env: Mapping[str, str]
) -> dict[str, str]:
    """The environment of a service: ours, with what the stack decides."""
    told = dict(env) | {
        STACK_VARIABLE: record.stack_id,
        PART_VARIABLE: "service",
        "ELPS_HOME": str(home),
        "ELPS_AMQP_URL": record.amqp_url,
        "ELPS_REDIS_URL": record.redis_url,
        "ELPS_MONITOR_PORT": str(record.monitor_port),
        "ELPS_MONITOR_URL": record.monitor_url,
        "ELPS_LOG_DIR": str(home / "logs"),
        "PYTHONUNBUFFERED": "1",
    }
    told.setdefault("ELPS_HOST", "127.0.0.1")
    for variable in (TASK_PATH, DATA_PATH):
        told.pop(variable, None)
    told |= paths_in_force(record, home)
    if kind_of(name) == SHARD:
        told["ELPS_SHARD_ID"] = name
    if kind_of(name) == AGENT:
        told["ELPS_AGENT_ID"] = name
    scripts = str(Path(sys.executable).parent)
    told["PATH"] = os.pathsep.join([scripts, env.get("PATH", os.defpath)])
    return told
