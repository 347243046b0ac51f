"""Who gets what: a pure function of facts. This is what a policy is told and may decide; `policies` has all there are.

A policy proposes only what the facts show to be free; the core applies a decision whole, within the same event.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from elps.contracts.ids import AgentId, JobId, ShardId
from elps.contracts.job import Pool as Size


@dataclass(frozen=True)
class ShardFact:
    """A shard process that may be given jobs."""

    shard: ShardId
    slots: int
    free: int
    clearing: int
    """Slots whose job is over but not yet seen to be gone."""


@dataclass(frozen=True)
class AgentFact:
    """An agent that may be given trainers."""

    agent: AgentId
    slots: int
    free: int
    clearing: int


@dataclass(frozen=True)
class QueuedFact:
    """A job that holds nothing."""

    job: JobId
    shards: Size
    workers: Size
    fed: bool = False
    """It has given its early feedback before."""
    group: str = ""


@dataclass(frozen=True)
class HeldFact:
    """A job that holds a place, and how it could be made smaller or larger."""

    job: JobId
    workers: int
    """That it shall have, those included that it lacks."""
    bounds: Size
    """Of its workers; a job that is pinned has just one size."""
    shards: int
    shard_bounds: Size
    fed: bool
    """It has given its early feedback."""
    weight: float = 1.0
    group: str = ""
    rates: tuple[tuple[int, float], ...] = ()
    """Iterations per second as measured, by number of workers, ascending."""
    room: int = 0
    """Shards with a free slot that it can be given."""
    gives: tuple[ShardId, ...] = ()
    """Shards that it can give up, the one that goes first at the front; the leader is not among them."""
    avoid: tuple[AgentId, ...] = ()
    """Agents on which its trainers do not start."""
    calm_s: float = 0.0
    """Since its size was last changed."""
    movable: bool = True
    """It trains, and can give something up now."""
    growable: bool = True
    """It trains or is starting, and can be given more."""


@dataclass(frozen=True)
class RunningFact:
    """A job that holds something but lacks workers or shards of the number it was given."""

    job: JobId
    missing: int
    """Workers."""
    agents: tuple[AgentId, ...]
    """Where its workers are, once for each."""
    avoid: tuple[AgentId, ...]
    """Agents on which its trainers do not start."""
    missing_shards: int = 0
    barred: tuple[ShardId, ...] = ()
    """Shards that it cannot be given: its own, and those that may still have something of it."""


@dataclass(frozen=True)
class Facts:
    """All that a policy knows. Jobs are in their order of arrival, members in that of their ids."""

    shards: tuple[ShardFact, ...]
    agents: tuple[AgentFact, ...]
    queued: tuple[QueuedFact, ...]
    running: tuple[RunningFact, ...]
    held: tuple[HeldFact, ...] = ()
    """All jobs with a place, and those whose place is kept for them; told only to a policy that wants to know."""
    retiring: int = 0
    """Workers that end what they compute, or give it back, and leave their slots."""
    shards_moving: int = 0
    """Slots of shards that are to be left once the partitions have moved."""
    settling: bool = False
    """The scheduler started just now and members are still being discovered."""


@dataclass(frozen=True)
class Start:
    """Give a queued job its place."""

    job: JobId
    shards: tuple[ShardId, ...]
    """Different ones, the leader first."""
    agents: tuple[AgentId, ...]
    """Where its workers go, an agent once for each of its slots taken."""
    reason: str


@dataclass(frozen=True)
class Refill:
    """Give a running job workers and shards that it lacks."""

    job: JobId
    agents: tuple[AgentId, ...]
    reason: str
    shards: tuple[ShardId, ...] = ()


@dataclass(frozen=True)
class Resize:
    """Change what a job shall have; what it lacks then is given by a `Refill`, when it is free."""

    job: JobId
    workers: int
    shards: int
    reason: str


@dataclass(frozen=True)
class Decision:
    """What to do now, and why the others wait."""

    starts: tuple[Start, ...] = ()
    refills: tuple[Refill, ...] = ()
    resizes: tuple[Resize, ...] = ()
    waits: tuple[tuple[JobId, str], ...] = ()
    """Queued jobs that get nothing now, each with its reason."""


class Policy(Protocol):
    """Decides for all jobs. Equal facts give equal decisions."""

    @property
    def name(self) -> str:
        """As in ``ELPS_POLICY``."""

    @property
    def resizes(self) -> bool:
        """Whether it changes the size of jobs that run, so that it is to be asked also when none wants anything."""

    @property
    def told_held(self) -> bool:
        """Whether it is to be told of the jobs with a place."""

    def decide(self, facts: Facts) -> Decision:
        """What to do now."""
