"""What is read of the stack and of this machine, before anything is thought of it. Everything may be missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class QueueReading:
    """One queue at one moment."""

    messages: int
    """Ready to be delivered; of a quorum queue the broker tells it some seconds late."""
    consumers: int


@dataclass(frozen=True)
class BrokerReading:
    """The broker as one connection sees it."""

    shown: str
    """Its address, without the password."""
    error: str = ""
    """Why there is no connection; nothing else is known then."""
    refused: bool = False
    """It answers, but lets this user or this virtual host not in."""
    product: str = ""
    version: str = ""
    blocked: bool = False
    """It takes no messages."""
    denied: Mapping[str, str] = field(default_factory=dict)
    """What this user may not do, and in which words that was said."""
    queues: Mapping[str, tuple[QueueReading, QueueReading] | None] = field(default_factory=dict)
    """The durable queues, each twice a little apart; None: it is not there."""
    answered: bool | None = None
    """Whether a scheduler that takes messages has answered one; None: it was not asked."""
    stuck: Mapping[str, str] = field(default_factory=dict)
    """Queues that are there and cannot be looked at, with the broker's words."""


@dataclass(frozen=True)
class StoreReading:
    """The store as one connection sees it."""

    shown: str
    error: str = ""
    refused: bool = False
    info: Mapping[str, str] = field(default_factory=dict)
    """Its facts, by their names in INFO; those that it does not tell are missing."""
    denied: Mapping[str, str] = field(default_factory=dict)
    refuses: str = ""
    """Why it takes no values at present."""
    clock_off_s: float | None = None
    """Its clock less ours."""
    clock_within_s: float = 0.0
    """How exact that is: half of the round trip."""
    strays: tuple[str, ...] | None = None
    """Jobs of which there are keys and no record; None: it was not looked to the end."""


@dataclass(frozen=True)
class MonitorReading:
    """The monitor over HTTP."""

    url: str
    """Empty where it is not known."""
    error: str = ""
    version: str = ""
    parts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Of its health report: ``status`` and ``detail`` of each part. Empty without the token."""
    clock_off_s: float | None = None
    clock_within_s: float = 0.0


@dataclass(frozen=True)
class FolderReading:
    """A folder on this machine."""

    path: str
    what: str
    """What it is for, and the setting that names it."""
    written: bool
    """It is to be written to, not only read."""
    there: bool = True
    usable: bool = True
    """It may be read, and written to if that is needed."""
    free_bytes: int | None = None
    total_bytes: int | None = None
    open_to_others: bool = False
    """Whoever has an account here may read what is secret in it."""


@dataclass(frozen=True)
class MachineReading:
    """The machine and the program that ask."""

    version: str
    """Of the elps that asks."""
    open_files: int | None = None
    """How many files and connections one process may have open."""
    folders: tuple[FolderReading, ...] = ()


@dataclass(frozen=True)
class Readings:
    """All of it."""

    machine: MachineReading
    stack: str
    """Where the stack was found, or why none was."""
    found: bool
    broker: BrokerReading | None = None
    store: StoreReading | None = None
    monitor: MonitorReading | None = None
