"""What the command `elps simulate` calls: a workload's text in, figures of every policy out, as plain values.

Files are read by a function that the caller gives, so nothing here has input or output.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from elps.contracts.errors import InvalidDocument
from elps.scheduler.core.policies import POLICIES
from elps.scheduler.simulator import pollux, reading
from elps.scheduler.simulator.outcome import Outcome, figures, quantile
from elps.scheduler.simulator.plotting import drawn
from elps.scheduler.simulator.simulation import Simulation
from elps.scheduler.simulator.workload import Cluster, Costs, Job, Workload

Read = Callable[[str], str]
"""Text of a file by its path from the folder of the workload."""

POLLUX_WORKERS = 64
"""Replicas of the cluster for which those workloads were made: 16 nodes of 4 GPUs."""
QUANTILES = 100


@dataclass(frozen=True)
class Wishes:
    """What the command line says beside the workload."""

    policies: Sequence[str] = ()
    """Empty: all there are."""
    workers: int | None = None
    """None: as the workload says."""
    shards: int | None = None
    seed: int = 0
    restart: bool = False
    slowdown: Sequence[str] = ()
    stretch: float = 1.0
    """Of Pollux workloads: a job can have so many times the replicas that its user asked for."""


def simulate(
    name: str,
    content: str | Mapping[str, Any],
    read: Read,
    tell: Callable[[str], None] = lambda _: None,
    **wishes: Any,
) -> dict[str, Any]:
    """Simulate a workload under each policy; `content` is the text of a Pollux workload, or a document of our own.

    `tell` is given the name of each policy as its turn comes. Returns what `--json` prints. Raises `InvalidDocument`.
    """
    wanted = Wishes(**wishes)
    names = list(wanted.policies) or list(POLICIES)
    if unknown := [each for each in names if each not in POLICIES]:
        raise InvalidDocument(
            "setting", [f"--policy {each}: not one of {', '.join(POLICIES)}" for each in unknown]
        )
    workload = workload_of(name, content, read, wanted)
    results = {}
    for each in dict.fromkeys(names):
        tell(each)
        results[each] = told(Simulation(workload, POLICIES[each]).run())
    cluster = workload.cluster
    return {
        "workload": name,
        "jobs": len(workload.jobs),
        "workers": cluster.workers,
        "shards": cluster.shards,
        "uneven": bool(cluster.slowdowns),
        "seed": wanted.seed,
        "costs": asdict(workload.costs),
        "policies": results,
    }


def plot(report: Mapping[str, Any]) -> str:
    """A report of `simulate` as an SVG picture."""
    return drawn(report)


def workload_of(
    name: str, content: str | Mapping[str, Any], read: Read, wishes: Wishes
) -> Workload:
    """The workload; raises `InvalidDocument`."""
    if isinstance(content, str):
        if not pollux.is_workload(content):
            columns = ",".join(pollux.COLUMNS)
            raise InvalidDocument("workload", [f"{name}: expected a first line {columns}"])
        files = {path: read(path) for path in pollux.files_of(content)}
        jobs = pollux.jobs_of(content, files, wishes.stretch)
        workers = wishes.workers or POLLUX_WORKERS
        slowdowns = reading.patterns(wishes.slowdown, workers, recorded(wishes.slowdown, read))
        cluster = Cluster(workers, wishes.shards or workers, slowdowns=slowdowns, weather_s=60.0)
        workload = Workload(name, jobs, cluster, Costs(restart=wishes.restart))
    else:
        document = reading.document_of(dict(content))
        texts = list(wishes.slowdown) or document.cluster.slowdown
        table = reading.ClusterTable(
            workers=wishes.workers or document.cluster.workers,
            shards=wishes.shards or document.cluster.shards,
            shard_slots=document.cluster.shard_slots,
            slowdown=texts,
            weather_s=document.cluster.weather_s,
            balanced=document.cluster.balanced,
        )
        cluster = reading.cluster_of(table, recorded(texts, read))
        costs = document.costs.costs(restart=wishes.restart)
        workload = Workload(name, reading.jobs_of(document, wishes.seed), cluster, costs)
    return replace(workload, jobs=tuple(_fitting(job, workload.cluster) for job in workload.jobs))


def recorded(texts: Sequence[str], read: Read) -> dict[str, list[dict[str, str | None]]]:
    """Rows of the files that slow-downs name."""
    return {
        file: list(csv.DictReader(read(file).splitlines())) for file in reading.recordings(texts)
    }


def told(outcome: Outcome) -> dict[str, Any]:
    """Figures, and where the hundredths of the jobs lie."""
    feedback = [j.fed_at - j.job.at_s for j in outcome.jobs if j.fed_at is not None]
    completion = [j.ended_at - j.job.at_s for j in outcome.jobs]
    parts = [n / QUANTILES for n in range(QUANTILES + 1)]
    return {
        **figures(outcome),
        "feedback_quantiles_s": [quantile(feedback, part) for part in parts] if feedback else [],
        "completion_quantiles_s": [quantile(completion, part) for part in parts],
    }


def _fitting(job: Job, cluster: Cluster) -> Job:
    """As it is; a job that asks for more than there is would wait for ever, which is a fault of the workload."""
    least = max(job.workers.min, job.fixed or 0)
    if least > cluster.workers or job.shards.min > cluster.shards:
        needs = f"job {job.id} needs {least} workers and {job.shards.min} shards"
        has = f"the cluster has {cluster.workers} and {cluster.shards}"
        raise InvalidDocument("workload", [f"{needs}; {has}"])
    return job
