"""What the monitor answers besides jobs, as typed values. See `elps.client.reading` for how versions differ.

Times of day are Unix seconds; everything else in seconds is a duration.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from elps.client.reading import LogLine
from elps.contracts.messages import JobEvent
from elps.contracts.telemetry import IterationRow, WorkerTiming

Liveness = Literal["alive", "leaving", "lost"]


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """One evaluation on held-out samples."""

    iteration: int
    """Iterations that the evaluated parameters have behind them."""
    at: float
    metrics: dict[str, float | None]
    """Means; None for one that is not finite."""
    term: int = 0


class Iterations(msgspec.Struct, frozen=True, kw_only=True):
    """Finished iterations, oldest first; the newest are whole, older ones are thinned with age."""

    job: str
    rows: list[IterationRow]
    evaluations: list[Evaluation] = []
    """Those within the range of the rows."""
    next: int
    """What to give as `since` to go on."""
    more: bool
    """Whether rows from there on exist already."""


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """Lines of a job's trainers, in the order of their arrival at the monitor."""

    job: str
    lines: list[LogLine]
    next: int
    more: bool
    oldest: int = 0
    """Number of the oldest line kept; a higher one than was asked for means that lines are gone."""


class Events(msgspec.Struct, frozen=True, kw_only=True):
    """Events, in the order in which the monitor heard of them."""

    events: list[JobEvent]
    """Without their records."""
    next: str
    """What to give as `after` to go on."""
    more: bool
    missed: bool
    """Some may be lost before these: ask for the jobs anew."""


class Trainer(msgspec.Struct, frozen=True, kw_only=True):
    """A trainer process."""

    worker: str
    job: str
    state: Literal["starting", "running", "exited"]
    pid: int = 0
    exit: str = ""
    rss_bytes: int = 0
    timing: WorkerTiming | None = None
    """Its part of the job's newest iteration."""


class Agent(msgspec.Struct, frozen=True, kw_only=True):
    """A worker agent with its trainers."""

    agent: str
    liveness: Liveness
    heard_s: float
    """Since its newest beat."""
    host: str
    pid: int
    slots: int
    used: int
    rss_bytes: int = 0
    version: str = ""
    trainers: list[Trainer] = []


class Hosted(msgspec.Struct, frozen=True, kw_only=True):
    """A job on a shard."""

    job: str
    leads: bool
    phase: str | None = None
    """The leader's; None on the others."""
    term: int = 0
    bytes_held: int = 0


class Shard(msgspec.Struct, frozen=True, kw_only=True):
    """A shard with the jobs that it takes part in."""

    shard: str
    liveness: Liveness
    heard_s: float
    host: str
    pid: int
    data_host: str
    data_port: int
    slots: int
    used: int
    rss_bytes: int = 0
    version: str = ""
    jobs: list[Hosted] = []


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One part of the stack."""

    status: Literal["ok", "degraded"]
    detail: str = ""
    """For people."""
    count: int = 0
    """Live ones, where the part has several."""


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the whole stack is there."""

    status: Literal["ok", "degraded"]
    parts: dict[str, Part]
    version: str
    """Of the monitor."""


class Workers(msgspec.Struct, frozen=True):
    """The answer to ``workers``."""

    workers: list[Agent]


class Shards(msgspec.Struct, frozen=True):
    """The answer to ``shards``."""

    shards: list[Shard]
