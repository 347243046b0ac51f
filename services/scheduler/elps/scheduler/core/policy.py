"""Who gets what: a pure function of facts. This is what a policy is told and may decide; `policies` has all there are.

A policy proposes only what the facts show to be free; the core applies a decision whole, within the same event.

Facts never change, so they remember what was computed of them: whoever tells of what has not changed by the same
objects as before has the next decision sooner.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from elps.contracts.ids import AgentId, JobId, ShardId
from elps.contracts.job import Pool as Size
from elps.scheduler.core.costs import ASSUMED_S, HORIZON_S, rests_s, settles_s
from elps.scheduler.core.gain import fitted, gain, time_s
from elps.scheduler.core.machines import power, worthwhile


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
    speed: float = 1.0
    """Of its machine, beside a usual one."""


@dataclass(frozen=True)
class QueuedFact:
    """A job that holds nothing."""

    job: JobId
    shards: Size
    workers: Size
    fed: bool = False
    """It has given its early feedback before."""
    group: str = ""
    weight: float = 1.0
    rates: tuple[tuple[float, float], ...] = ()
    """As of `HeldFact`, if it had a place before."""
    left: float | None = None
    """Iterations that it has to go; None: nobody knows yet."""
    since: float = 0.0
    """When it came to wait, on the clock of `Facts.at`."""
    held_up: bool = False
    """As of `HeldFact`."""

    @cached_property
    def parts_s(self) -> tuple[float, float]:
        """As of `HeldFact`."""
        return fitted(self.rates)

    @cached_property
    def work(self) -> float | None:
        """Seconds that it has to go, had it one worker; None: not known."""
        return work_of(self.left, self.rates, self.parts_s)


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
    rates: tuple[tuple[float, float], ...] = ()
    """Iterations per second as measured, by power of its workers, ascending."""
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
    starting: bool = False
    """Its place is kept until its term is there; then it may want more."""
    left: float | None = None
    """Iterations that it has to go; None: nobody knows yet."""
    speeds: tuple[float, ...] = ()
    """Of the machines of its workers, beside a usual one; empty: all are usual ones."""
    held_up: bool = False
    """Its workers have equal batches and wait for the slowest."""
    cost_s: float = ASSUMED_S
    """Of its training, for a change of its size."""
    trend: int = 0
    """Whether its size was last changed to more workers (1) or to fewer (-1); 0: not yet."""
    promise: float = 1.0
    """How much better it is expected to become, over the median job; 1 also where that is not known."""

    @cached_property
    def parts_s(self) -> tuple[float, float]:
        """Of an iteration's time, as fitted: what workers do not shorten, and what they share."""
        return fitted(self.rates)

    @cached_property
    def work(self) -> float | None:
        """Seconds that it has to go, had it one worker; None: not known."""
        return work_of(self.left, self.rates, self.parts_s)

    @cached_property
    def least(self) -> int:
        """Workers that it keeps whatever is decided now."""
        return min(self.bounds.min, self.workers) if self.movable else self.workers

    @cached_property
    def most(self) -> int:
        """Workers that it can be given now; not below what it keeps."""
        return max(self.bounds.max, self.least) if self.growable else self.workers

    @cached_property
    def _fastest(self) -> tuple[float, ...]:
        """Speeds of its workers, the fastest first: those that go first are at the end."""
        return tuple(sorted(self.speeds, reverse=True))

    def power(self, workers: int) -> float:
        """What so many of its workers are worth: the fastest that it has, and usual ones beyond those."""
        if not self.speeds:
            return float(workers)
        return power(self._speeds_of(workers), held_up=self.held_up)

    def _speeds_of(self, workers: int) -> tuple[float, ...]:
        if workers <= len(self.speeds):
            return self._fastest[:workers]
        return tuple(sorted((*self.speeds, *(1.0,) * (workers - len(self.speeds))), reverse=True))

    @cached_property
    def slowest(self) -> float:
        """Speed of the worker that it would give up."""
        return min(self._speeds_of(self.workers)) if self.speeds else 1.0

    @cached_property
    def fastest(self) -> float:
        """Of the fastest one."""
        return max(self._speeds_of(self.workers)) if self.speeds else 1.0

    def gain_by(self, speed: float, workers: int) -> float:
        """By one worker more of such a speed, beside so many, as `gain`; below 0 where it would hold the others up."""
        if speed == 1.0 and not self.speeds:
            return gain(self.rates, workers, workers + 1)
        now = self._speeds_of(workers) if self.speeds else (1.0,) * workers
        then = power((*now, speed), held_up=self.held_up)
        return gain(self.rates, power(now, held_up=self.held_up), then)

    def loss_of(self, workers: int) -> float:
        """By one worker fewer than so many; below 0 where it is one of those that hold the others up."""
        if (best := self.best(workers)) < workers:
            return gain(self.rates, self.power(best), self.power(workers)) / (workers - best)
        return gain(self.rates, self.power(workers - 1), self.power(workers))

    def best(self, workers: int) -> int:
        """How many of so many it is fastest with, the slowest ones left out; not below its least."""
        if not (self.held_up and self.speeds):
            return workers
        return worthwhile(self._speeds_of(workers), 0, math.inf, min(self.bounds.min, workers))

    @cached_property
    def gained(self) -> float:
        """By a usual worker more, as `gain`."""
        return self.gain_by(1.0, self.workers)

    @cached_property
    def lost(self) -> float:
        """By a worker fewer."""
        return self.loss_of(self.workers)

    @cached_property
    def lost_fastest(self) -> float:
        """By its fastest worker fewer, where they differ."""
        there = self._speeds_of(self.workers)
        now, then = power(there, held_up=self.held_up), power(there[1:], held_up=self.held_up)
        return gain(self.rates, then, now)

    @cached_property
    def worth(self) -> float:
        """What its speed counts for: its weight, and what it promises. Only of jobs that have given their feedback."""
        return self.weight * self.promise

    @cached_property
    def price(self) -> tuple[bool, float, JobId]:
        """What a worker fewer costs, to compare: those without feedback last, then by worth times what is lost."""
        return not self.fed, (self.worth if self.fed else self.weight) * self.lost, self.job

    @cached_property
    def rests_s(self) -> float:
        """The cost horizon of its changes (`costs`)."""
        return rests_s(self.cost_s)

    @cached_property
    def settles_s(self) -> float:
        """How long after a change it is given nothing that is free."""
        return settles_s(self.cost_s)

    @cached_property
    def horizon_s(self) -> float:
        """So far ahead gains are counted: no farther than to its end."""
        if self.left is None or not self.rates:
            return HORIZON_S
        return min(HORIZON_S, self.left * time_s(self.rates, self.power(self.workers)))


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
    held_up: bool = False
    """As of `HeldFact`."""
    slowest: float = 1.0
    """Speed of the slowest of its workers."""
    least: int = 0
    """Workers that it has to have."""


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
    at: float = 0.0
    """The time, in seconds; only differences of it mean anything."""
    quiet_s: float = 0.0
    """Since a job last came, gave its feedback or went, or a member did: since there was reason to change anything."""
    all_slots: int | None = None
    """Worker slots of the whole pool, where `agents` are only those with something free or clearing; None: all are."""

    @cached_property
    def worker_slots(self) -> int:
        """Of the whole pool."""
        if self.all_slots is not None:
            return self.all_slots
        return sum(fact.slots for fact in self.agents)

    @cached_property
    def shard_processes(self) -> int:
        """That can be given jobs at all."""
        return sum(fact.slots > 0 for fact in self.shards)


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
    fastest: bool = False
    """What it gives up are the workers on its fastest machines, which another job can use better; else the slowest."""


@dataclass(frozen=True)
class Decision:
    """What to do now, and why the others wait."""

    starts: tuple[Start, ...] = ()
    refills: tuple[Refill, ...] = ()
    resizes: tuple[Resize, ...] = ()
    waits: tuple[tuple[JobId, str], ...] = ()
    """Queued jobs that get nothing now, each with its reason."""


def work_of(
    left: float | None, rates: tuple[tuple[float, float], ...], parts_s: tuple[float, float]
) -> float | None:
    """Iterations left times the fitted time of one with one worker; None where either is not known."""
    if left is None or not rates:
        return None
    return max(left, 1.0) * (parts_s[0] + parts_s[1])


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
