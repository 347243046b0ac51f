"""The workloads of Pollux (Qiao and others, OSDI 2021) as it published them: texts of files in, a workload out.

A row of ``workload-N.csv`` is a job that was handed in: name, time in seconds, application, replicas, global batch
size. For each application ``scalability.csv`` and ``placements.csv`` tell the measured time of a step by number of
replicas and samples of each, ``validation-BATCH.csv`` how many iterations there are and when it was evaluated.
"""

from __future__ import annotations

import csv
import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from elps.contracts.errors import InvalidDocument
from elps.contracts.ids import JobId
from elps.contracts.job import Pool as Size
from elps.scheduler.simulator.workload import Job, Measured

Texts = Mapping[str, str]
"""Texts of files by their paths from the folder of the workload, with ``/``."""
Row = dict[str, str]

COLUMNS = ("name", "time", "application", "num_replicas", "batch_size")
"""Of a workload file."""
MOST_REPLICAS = 64
"""Times are worked out for up to so many workers."""


@dataclass(frozen=True)
class Step:
    """One measured step of one replica."""

    samples: int
    whole_s: float
    sync_s: float


def is_workload(text: str) -> bool:
    """Whether a text begins as these files do."""
    return text.split("\n", 1)[0].strip().split(",") == list(COLUMNS)


def files_of(text: str) -> list[str]:
    """Paths of the files that a workload needs beside its own."""
    rows = _rows("workload", text, COLUMNS)
    applications = sorted({row["application"] for row in rows})
    validations = sorted({(row["application"], row["batch_size"]) for row in rows})
    tables = [f"{app}/{what}.csv" for app in applications for what in ("scalability", "placements")]
    return tables + [_validation(app, batch) for app, batch in validations]


def jobs_of(text: str, files: Texts, stretch: float = 1.0) -> tuple[Job, ...]:
    """The jobs, in the order in which they arrive. Early feedback is the first evaluation.

    Where sizes are fixed a job is given the replicas that its user asked for; else at least one worker and at most
    `stretch` times those. Raises `InvalidDocument`.
    """
    steps: dict[str, dict[int, list[Step]]] = {}
    profiles: dict[tuple[str, int, int], Measured] = {}
    jobs = []
    for number, row in enumerate(_rows("workload", text, COLUMNS), 2):
        try:
            name, at_s, app = row["name"], float(row["time"]), row["application"]
            replicas, batch = int(row["num_replicas"]), int(row["batch_size"])
        except ValueError as error:
            raise InvalidDocument("workload", [f"line {number}: {error}"]) from None
        most = max(1, min(MOST_REPLICAS, round(replicas * stretch)))
        if app not in steps:
            steps[app] = _steps(app, files)
        key = app, batch, max(most, replicas)
        if key not in profiles:
            profiles[key] = profile(steps[app], batch, key[2])
        table = _table(files, _validation(app, row["batch_size"]), ("iteration", "metric"))
        evaluated = [int(r["iteration"]) for r in table]
        jobs.append(
            Job(
                JobId(name),
                at_s,
                evaluated[-1],
                evaluated[0],
                profiles[key],
                workers=Size(min=1, max=most),
                fixed=replicas,
                losses=_losses(evaluated, [float(r["metric"]) for r in table]),
            )
        )
    return tuple(sorted(jobs, key=lambda job: job.at_s))


def profile(steps: Mapping[int, Sequence[Step]], batch: int, most: int) -> Measured:
    """Seconds of an iteration of a global batch by number of replicas, from measured steps.

    A replica whose part of the batch is larger than any that was measured takes it in several steps, of which only the
    last is synchronised: the larger ones did not fit into its memory.
    """
    known = [(n, *_parts_s(steps[n], batch / n)) for n in sorted(steps)]
    measured = Measured(tuple(known))
    return Measured(tuple((n, *measured.parts_s(n, 1)) for n in range(1, most + 1)))


def _parts_s(steps: Sequence[Step], samples: float) -> tuple[float, float]:
    """Seconds synchronising and seconds computing for so many samples of one replica."""
    times = max(1, math.ceil(samples / steps[-1].samples))
    each = samples / times
    sizes = [step.samples for step in steps]
    at = min(max(1, bisect_left(sizes, each)), len(steps) - 1)
    if len(steps) == 1 or each <= sizes[0]:
        near, far, part = steps[0], steps[0], 0.0
    else:
        near, far = steps[at - 1], steps[at]
        part = (each - near.samples) / (far.samples - near.samples)
    whole = near.whole_s + part * (far.whole_s - near.whole_s)
    sync = max(0.0, near.sync_s + part * (far.sync_s - near.sync_s))
    return min(sync, whole), times * max(0.0, whole - sync)


def _steps(app: str, files: Texts) -> dict[int, list[Step]]:
    """By number of replicas, samples ascending; on as few nodes as were measured, since those do best."""
    best: dict[int, int] = {}
    found: dict[tuple[int, int], list[tuple[int, float, float]]] = defaultdict(list)
    columns = ("local_bsz", "step_time", "sync_time")
    path = f"{app}/placements.csv"
    for row in _table(files, path, ("placement", *columns)):
        placed = [int(digit) for digit in row["placement"]]
        _note(found, best, sum(placed), len(placed), row)
    path = f"{app}/scalability.csv"
    for row in _table(files, path, ("num_nodes", "num_replicas", *columns)):
        _note(found, best, int(row["num_replicas"]), int(row["num_nodes"]), row)
    steps = {}
    for replicas, nodes in sorted(best.items()):
        by_samples: dict[int, list[tuple[float, float]]] = defaultdict(list)
        for samples, whole, sync in found[replicas, nodes]:
            by_samples[samples].append((whole, sync))
        steps[replicas] = [
            Step(samples, _mean([w for w, _ in times]), _mean([s for _, s in times]))
            for samples, times in sorted(by_samples.items())
        ]
    return steps


def _note(
    found: dict[tuple[int, int], list[tuple[int, float, float]]],
    best: dict[int, int],
    replicas: int,
    nodes: int,
    row: Row,
) -> None:
    best[replicas] = min(nodes, best.get(replicas, nodes))
    measured = int(row["local_bsz"]), float(row["step_time"]), float(row["sync_time"])
    found[replicas, nodes].append(measured)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _losses(iterations: Sequence[int], metrics: Sequence[float]) -> tuple[tuple[int, float], ...]:
    """What was evaluated, so that it falls: metrics that are better the higher they are count as below 0."""
    sign = 1.0 if metrics[-1] <= metrics[0] else -1.0
    return tuple((k, sign * metric) for k, metric in zip(iterations, metrics, strict=True))


def _validation(app: str, batch: str) -> str:
    return f"{app}/validation-{batch}.csv"


def _table(files: Texts, path: str, columns: Sequence[str]) -> list[Row]:
    if path not in files:
        raise InvalidDocument("workload", [f"{path}: missing beside the workload"])
    return _rows(path, files[path], columns)


def _rows(path: str, text: str, columns: Sequence[str]) -> list[Row]:
    rows = list(csv.DictReader(text.splitlines()))
    if not rows:
        raise InvalidDocument("workload", [f"{path}: no rows"])
    if lacking := [name for name in columns if name not in rows[0]]:
        raise InvalidDocument("workload", [f"{path}: no column {', '.join(lacking)}"])
    return rows
