"""What a service is to the process that runs it, and what it is given."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from elps.messaging.port import Bus
from elps.storage.port import Store


class Clock(Protocol):
    """Time as the shell reads it; tests hand in their own."""

    def monotonic(self) -> float:
        """Seconds that never go back, for durations and deadlines."""

    def time(self) -> float:
        """Unix time in seconds, for people."""


class SystemClock:
    """The machine's clock."""

    monotonic = staticmethod(time.monotonic)
    time = staticmethod(time.time)


@dataclass(frozen=True)
class Context:
    """Everything a service takes from outside. In one process tree several services share one bus and store."""

    bus: Bus
    store: Store
    env: Mapping[str, str]
    """The environment; a service reads its own settings from it, once."""
    clock: Clock = field(default_factory=SystemClock)


class Service(Protocol):
    """A service, made by the `create(context)` of its `app` module."""

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop` is set, then leave in order. An exception means that the service cannot go on."""
