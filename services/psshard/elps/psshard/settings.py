"""The shard's settings."""

from __future__ import annotations

import os
import secrets
import socket
from typing import Annotated

import msgspec
from msgspec import Meta

from elps.contracts.ids import id_problem


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Read from ``ELPS_SHARD_ID`` and the like."""

    host: Annotated[str, Meta(min_length=1, max_length=253)] = "127.0.0.1"
    """Address on which the data plane listens."""
    advertise: str = ""
    """Address under which trainers and other shards reach it; `host` when empty."""
    data_port: Annotated[int, Meta(ge=0, le=65535)] = 0
    """0 takes any free port."""
    shard_id: str = ""
    """Drawn when empty."""
    shard_slots: Annotated[int, Meta(ge=1, le=4096)] = 4
    """Jobs it takes part in at once."""
    beat_s: Annotated[float, Meta(gt=0, le=60)] = 1.0
    leave_s: Annotated[float, Meta(ge=0, le=3600)] = 45.0
    """How long a shard that is asked to end waits for its jobs to be checkpointed and taken away."""

    def __post_init__(self) -> None:
        if self.shard_id and (problem := id_problem(self.shard_id)):
            raise ValueError(f"ELPS_SHARD_ID: {problem}")


def drawn_id() -> str:
    """An id for a shard that was given none."""
    name = "".join(c if c.isalnum() and c.isascii() else "-" for c in socket.gethostname())[:24]
    return f"{name.strip('-') or 'shard'}-{os.getpid()}-{secrets.token_hex(3)}"
