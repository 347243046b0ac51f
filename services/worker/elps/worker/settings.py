"""Settings of the worker agent."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from elps.contracts.errors import SetupError
from elps.contracts.ids import AgentId, id_problem
from elps.runtime.emulating import slowdown_for
from elps.runtime.settings import read

Seconds = Annotated[float, Meta(gt=0, le=3600)]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Read from the variables of the same names in capitals after ``ELPS_``."""

    agent_id: str = ""
    """By default host, process id and a random part."""
    worker_slots: Annotated[int, Meta(ge=1, le=1024)] = 1
    """Trainer processes at a time."""
    agent_kind: Annotated[str, Meta(max_length=200)] = ""
    """Class of its machine: a job's batches begin alike on machines of one class (`docs/balance.md`). By default told
    by its processors, and by how they are slowed."""
    beat_s: Seconds = 1.0
    log_dir: Path | None = None
    """Where the output of trainers is kept; without it, it is only sent on."""
    log_max_bytes: Annotated[int, Meta(ge=4096, le=2**40)] = 8 * 1024 * 1024
    """Size of a trainer's log file; a full one is kept once beside the new one."""
    preload: str = ""
    """Comma-separated modules that trainers shall find imported; none of the user's own, none that starts threads."""
    preload_s: Seconds = 120.0
    """After this an import is taken for hung."""
    stop_grace_s: Seconds = 1.0
    """From SIGTERM to SIGKILL for a trainer that shall be ended."""
    leave_grace_s: Seconds = 10.0
    """The same when the agent leaves: time to finish or give back the interval."""
    worker_slowdown: str = ""
    """How its trainers' computations are slowed, to emulate another machine (`elps.balance.slowdown`)."""

    @property
    def agent(self) -> AgentId:
        """The agent's id."""
        return AgentId(self.agent_id)

    @property
    def preload_modules(self) -> tuple[str, ...]:
        """Modules to preload beside the usual ones."""
        return tuple(name.strip() for name in self.preload.split(",") if name.strip())


def read_settings(env: Mapping[str, str]) -> Settings:
    """Read and check; raises `SetupError`."""
    settings = read(Settings, env)
    if not settings.agent_id:
        settings = msgspec.structs.replace(settings, agent_id=_own_id())
    if problem := id_problem(settings.agent_id):
        raise SetupError(f"settings: ELPS_AGENT_ID: {problem}")
    slowdown = slowdown_for(settings.agent, settings.worker_slowdown)
    return msgspec.structs.replace(settings, worker_slowdown=slowdown)


def _own_id() -> str:
    host = "".join(c if c.isascii() and c.isalnum() else "-" for c in socket.gethostname()).strip(
        "-"
    )[:32]
    return f"{host or 'agent'}-{os.getpid()}-{secrets.token_hex(3)}"
