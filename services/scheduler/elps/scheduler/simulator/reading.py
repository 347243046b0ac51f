"""Our own form of a workload: a document, as TOML, YAML or JSON, into what is simulated.

```toml
[cluster]
workers = 8                     # agents of one slot each
shards = 3
slowdown = ["factor:1", "walk:seed={n},step=0.2@5s"]   # dealt out in turns; {n} is the agent's number (docs/balance.md)

[profiles.small]                # seconds of an iteration with n workers and m shards:
shared_s = 0.64                 # shared_s / n + fixed_s + each_s * n + by_shards_s / m
fixed_s = 0.02
# measured = {1 = 0.66, 2 = 0.35, 8 = 0.11}            # instead: seconds by number of workers

[[jobs]]
id = "long"
profile = "small"
iterations = 300
feedback = 10                   # iterations until its early feedback
workers = {min = 1, max = 8}
halved = 40                     # iterations after which its loss is half of what it was; without it none is told

[[jobs]]
id = "short"                    # short-0, short-1, ...
at_s = 4.0
count = 100
every_s = 2.0                   # between two of them; with `random = true` on average, drawn by --seed
keep = 0.5                      # the others are killed at their feedback, drawn by --seed
profile = "small"
iterations = 60
```
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta

from elps.balance import slowdown
from elps.balance.slowdown import Recording, Slowdown
from elps.contracts.errors import InvalidDocument
from elps.contracts.ids import JobId
from elps.contracts.job import Pool as Size
from elps.scheduler.simulator.workload import Cluster, Costs, Job, Line, Measured, Profile

Seconds = Annotated[float, Meta(ge=0, le=1e9)]
Above0 = Annotated[float, Meta(gt=0, le=1e9)]
Members = Annotated[int, Meta(ge=1, le=100_000)]
Iterations = Annotated[int, Meta(ge=1, le=10**12)]
MOST_JOBS = 1_000_000
EVALUATIONS = 100
"""Of a job with a loss."""


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the document."""


class ProfileTable(_Part, frozen=True, kw_only=True):
    """How long an iteration takes."""

    shared_s: Seconds = 0.0
    fixed_s: Seconds = 0.0
    each_s: Seconds = 0.0
    by_shards_s: Seconds = 0.0
    measured: dict[str, Above0] = {}


class JobTable(_Part, frozen=True, kw_only=True):
    """A job, or several alike."""

    id: str
    profile: str
    iterations: Iterations
    feedback: Iterations | None = None
    at_s: Seconds = 0.0
    count: Annotated[int, Meta(ge=1, le=MOST_JOBS)] = 1
    every_s: Seconds = 0.0
    random: bool = False
    keep: Annotated[float, Meta(ge=0, le=1)] = 1.0
    workers: Size = Size()
    shards: Size = Size()
    fixed: Members | None = None
    halved: Iterations | None = None
    weight: Annotated[float, Meta(ge=0.01, le=100)] = 1.0


class ClusterTable(_Part, frozen=True, kw_only=True):
    """What jobs are given places on."""

    workers: Members
    shards: Members = 1
    shard_slots: Members = 4
    slowdown: list[str] = []
    weather_s: Above0 = 5.0
    balanced: bool = True


class CostsTable(_Part, frozen=True, kw_only=True):
    """As `Costs`."""

    start_s: Seconds = Costs.start_s
    ready_s: Seconds = Costs.ready_s
    change_iterations: Seconds = Costs.change_iterations
    change_most_s: Seconds = Costs.change_most_s
    move_s: Seconds = Costs.move_s
    free_s: Seconds = Costs.free_s
    restart_iterations: Seconds = Costs.restart_iterations
    restart_s: Seconds = Costs.restart_s
    stop_s: Seconds = Costs.stop_s

    def costs(self, *, restart: bool) -> Costs:
        """With the way in which changes are made."""
        return Costs(**msgspec.structs.asdict(self), restart=restart)


class Document(_Part, frozen=True, kw_only=True):
    """The whole."""

    cluster: ClusterTable
    profiles: dict[str, ProfileTable]
    jobs: list[JobTable]
    costs: CostsTable = CostsTable()


def document_of(values: dict[str, Any]) -> Document:
    """Check a document; raises `InvalidDocument` with what is wrong."""
    try:
        document = msgspec.convert(values, Document)
    except msgspec.ValidationError as error:
        raise InvalidDocument("workload", [str(error)]) from None
    problems = [
        f"jobs: {job.id}: no profile {job.profile!r}"
        for job in document.jobs
        if job.profile not in document.profiles
    ]
    for job in document.jobs:
        for what, size in (("workers", job.workers), ("shards", job.shards)):
            if size.min > size.max:
                problems.append(f"jobs: {job.id}: {what}: min {size.min} is above max {size.max}")
    for name, profile in document.profiles.items():
        if not (profile.measured or profile.shared_s or profile.fixed_s):
            problems.append(f"profiles: {name}: an iteration takes no time")
        if bad := [n for n in profile.measured if not n.isdecimal() or not int(n)]:
            problems.append(f"profiles: {name}: measured: {bad[0]!r} is no number of workers")
    if not document.jobs:
        problems.append("jobs: there are none")
    if problems:
        raise InvalidDocument("workload", problems)
    return document


def jobs_of(document: Document, seed: int) -> tuple[Job, ...]:
    """The jobs, in the order in which they arrive; raises `InvalidDocument` if two have the same id."""
    chance = np.random.default_rng(seed)
    profiles = {name: _profile(table) for name, table in document.profiles.items()}
    jobs: list[Job] = []
    for table in document.jobs:
        at_s = table.at_s
        feedback = min(table.feedback or table.iterations, table.iterations)
        losses = _losses(table)
        for n in range(table.count):
            keep = chance.random() < table.keep
            jobs.append(
                Job(
                    JobId(table.id if table.count == 1 else f"{table.id}-{n}"),
                    at_s,
                    table.iterations,
                    feedback,
                    profiles[table.profile],
                    table.workers,
                    table.shards,
                    table.weight,
                    table.fixed,
                    None if keep else feedback,
                    losses,
                )
            )
            at_s += float(chance.exponential(table.every_s)) if table.random else table.every_s
    if len({job.id for job in jobs}) < len(jobs):
        raise InvalidDocument("workload", ["jobs: two have the same id"])
    return tuple(sorted(jobs, key=lambda job: job.at_s))


def _losses(table: JobTable) -> tuple[tuple[int, float], ...]:
    """It falls as one over the iterations, from 1."""
    if table.halved is None:
        return ()
    every = max(1, table.iterations // EVALUATIONS)
    return tuple((k, 1 / (1 + k / table.halved)) for k in range(every, table.iterations + 1, every))


def cluster_of(table: ClusterTable, recorded: dict[str, list[dict[str, str | None]]]) -> Cluster:
    """The cluster; `recorded` has the rows of the files that patterns name (`recordings`)."""
    return Cluster(
        table.workers,
        table.shards,
        table.shard_slots,
        patterns(table.slowdown, table.workers, recorded),
        table.weather_s,
        table.balanced,
    )


def recordings(texts: Sequence[str]) -> list[str]:
    """Files that patterns name."""
    found = (_read(text.replace("{n}", "0")) for text in texts)
    return [pattern.file for pattern in found if isinstance(pattern, Recording)]


def patterns(
    texts: Sequence[str], workers: int, recorded: dict[str, list[dict[str, str | None]]]
) -> tuple[Slowdown, ...]:
    """One pattern for each agent, dealt out in turns; ``{n}`` in a text is the agent's number."""
    if not texts:
        return ()
    found: list[Slowdown] = []
    for n in range(workers):
        pattern = _read(texts[n % len(texts)].replace("{n}", str(n)))
        if isinstance(pattern, Recording):
            try:
                pattern = pattern.trace(recorded[pattern.file])
            except ValueError as error:
                raise InvalidDocument("workload", [f"cluster: slowdown: {error}"]) from None
        found.append(pattern)
    return tuple(found)


def _read(text: str) -> Slowdown | Recording:
    try:
        return slowdown.read(text)
    except ValueError as error:
        raise InvalidDocument("workload", [f"cluster: slowdown: {error}"]) from None


def _profile(table: ProfileTable) -> Profile:
    if table.measured:
        known = sorted((int(n), seconds) for n, seconds in table.measured.items())
        return Measured(tuple((n, 0.0, seconds) for n, seconds in known))
    return Line(table.shared_s, table.fixed_s, table.each_s, table.by_shards_s)
