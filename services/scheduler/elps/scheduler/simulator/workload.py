"""What is simulated: jobs as they arrive, how fast they are on so many workers, a cluster, and what changes cost."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

from elps.balance.slowdown import Slowdown
from elps.contracts.ids import JobId
from elps.contracts.job import Pool as Size


class Profile(Protocol):
    """How long an iteration takes, by number of workers."""

    def parts_s(self, workers: int, shards: int) -> tuple[float, float]:
        """Seconds of an iteration that no slow worker draws out, and seconds that each of equal workers computes."""
        ...


@dataclass(frozen=True)
class Line:
    """``fixed_s + shared_s / workers + each_s * workers + by_shards_s / shards``."""

    shared_s: float
    fixed_s: float = 0.0
    each_s: float = 0.0
    by_shards_s: float = 0.0

    def parts_s(self, workers: int, shards: int) -> tuple[float, float]:
        """See `Profile`."""
        apart = self.fixed_s + self.each_s * workers + self.by_shards_s / shards
        return apart, self.shared_s / workers


@dataclass(frozen=True)
class Measured:
    """Times as measured with each number of workers; in between by a straight line in the parts, beyond as the last."""

    by_workers: tuple[tuple[int, float, float], ...]
    """Workers, ascending; seconds apart; seconds of computing."""

    def parts_s(self, workers: int, shards: int) -> tuple[float, float]:  # noqa: ARG002  # not measured
        """See `Profile`."""
        known = self.by_workers
        if workers <= known[0][0]:
            n, apart, computing = known[0]
            return apart, computing * n / workers
        for (n, a0, c0), (m, a1, c1) in pairwise(known):
            if workers <= m:
                part = (workers - n) / (m - n)
                return a0 + part * (a1 - a0), c0 + part * (c1 - c0)
        n, apart, computing = known[-1]
        return apart * workers / n, computing


@dataclass(frozen=True)
class Job:
    """A job as it is handed in. Iterations count whole batches, whoever computes them."""

    id: JobId
    at_s: float
    iterations: int
    feedback: int
    """Iterations until its early feedback; at most `iterations`."""
    profile: Profile
    workers: Size = field(default_factory=Size)
    shards: Size = field(default_factory=Size)
    weight: float = 1.0
    fixed: int | None = None
    """Workers that its user asks for where sizes do not change; None: as many as are free, within the bounds."""
    killed: int | None = None
    """Iterations after which its user kills it; nobody knows that before."""
    losses: tuple[tuple[int, float], ...] = ()
    """Iterations, ascending, and its loss there, or anything else that falls as it learns; empty: none is told."""


@dataclass(frozen=True)
class Cluster:
    """What jobs are given places on."""

    workers: int
    """Agents, of one slot each."""
    shards: int
    shard_slots: int = 4
    slowdowns: tuple[Slowdown, ...] = ()
    """Patterns of the agents, dealt out in turns; none: all are alike."""
    weather_s: float = 1.0
    """How often the slow-downs are looked at."""
    balanced: bool = True
    """Batches follow the workers' speeds; else the slowest of a job holds the others up."""


@dataclass(frozen=True)
class Costs:
    """What it takes to start a job and to change its size; measured on a local stack (`tests/bench`)."""

    start_s: float = 1.0
    """From a place to the first iteration: trainers start, import, open their data."""
    ready_s: float = 0.5
    """Until a worker that is added is ready, while the others train."""
    change_iterations: float = 1.0
    """Training lost by a worker or a shard more or fewer, in iterations, but not more than the next one says."""
    change_most_s: float = 0.1
    move_s: float = 0.2
    """Until the partitions have left a shard, while the job trains."""
    free_s: float = 0.1
    """Until the slots of workers that have ended are free: processes end, and the scheduler hears of each. One worker's
    is so after this time, those of several are so one after the other, the last after this time."""
    restart: bool = False
    """Changes are made by stopping the job at a checkpoint and starting it again, as elsewhere."""
    restart_iterations: float = 3.0
    restart_s: float = 2.0
    stop_s: float = 0.5
    """Of that, until the job has come to rest and written its checkpoint: then what it gives up may become free."""


@dataclass(frozen=True)
class Workload:
    """All of it."""

    name: str
    jobs: tuple[Job, ...]
    """In the order in which they arrive."""
    cluster: Cluster
    costs: Costs = field(default_factory=Costs)
