"""`elps show`: all that is known of one job."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import msgspec
import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from elps.cli import figures
from elps.cli.listing import iterations_text, metrics_text
from elps.cli.output import (
    JobArgument,
    JsonOption,
    console,
    plain,
    print_json,
    state_text,
    warn_stale,
)
from elps.cli.recent import Told, lately, since
from elps.cli.scaling import size_text
from elps.cli.stack import reach
from elps.client.reading import events_of, job_of, rows_of
from elps.contracts.answers import Event, JobDetail
from elps.contracts.job import JobDocument
from elps.contracts.telemetry import IterationRow

NEWEST_ROWS = 50
"""Rows asked for: the newest is shown."""


def show(ctx: typer.Context, job: JobArgument, as_json: JsonOption = False) -> None:
    """Show all that is known of one job.

    State and reason, what it holds, how far it is, its workers' times, its file.
    """
    monitor = reach(ctx).monitor()
    answer = monitor.job(job)
    summary = job_of(answer)
    warn_stale(summary.stale)
    rows = monitor.iterations(job, max(0, summary.iteration - NEWEST_ROWS), 2 * NEWEST_ROWS)
    events = since(summary.submitted_at, monitor.recent_events(job))
    if as_json:
        print_json({**answer, "newest_iterations": rows.get("rows", []), "recent_events": events})
        return
    newest = rows_of(rows)
    row = newest[-1] if newest else None
    console().print(job_page(summary, row, events_of(events), time.time()))


def job_page(
    job: JobDetail, row: IterationRow | None, events: list[Event], now: float
) -> RenderableType:
    """The page about one job."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    for name, text in _facts(job, now):
        table.add_row(name, text)
    parts: list[RenderableType] = [
        f"[bold]{plain(job.id)}[/]  {state_text(job.state.value)}",
        table,
    ]
    if row is not None and row.workers:
        parts += [Text(), f"[bold]Iteration {row.iteration}[/]  {_row_text(row)}", _workers(row)]
    if told := lately(job.changes, events):
        parts += [Text(), "[bold]Lately[/]", _lately(told, now)]
    if job.document:
        parts += [Text(), "[bold]Job file[/]", _document(job.document)]
    return Group(*parts)


def _facts(job: JobDetail, now: float) -> Iterator[tuple[str, str]]:
    if job.reason:
        yield "why", plain(job.reason.strip())
    yield "task", plain(job.task)
    if job.group:
        yield "group", plain(job.group)
    yield from _training(job)
    yield from _holdings(job)
    for name, at in (
        ("submitted", job.submitted_at),
        ("started", job.started_at),
        ("ended", job.ended_at),
    ):
        if at is not None:
            yield name, figures.ago(at, now)


def _training(job: JobDetail) -> Iterator[tuple[str, str]]:
    samples = figures.count(job.samples)
    yield "iteration", f"{iterations_text(job)}, {job.passes:.4g} passes, {samples} samples"
    yield "loss", figures.loss(job.loss, job.samples)
    if job.metrics:
        known = job.metrics_iteration is not None
        at = f" at iteration {job.metrics_iteration}" if known else ""
        yield "evaluated", plain(metrics_text(job.metrics)) + at
    if job.samples_per_s is not None:
        yield "speed", f"{figures.rate(job.samples_per_s)}, {figures.seconds(job.time_left_s)} left"
    if job.fed_at is not None and job.submitted_at is not None:
        yield "feedback", f"{figures.seconds(job.fed_at - job.submitted_at)} after it was submitted"
    if job.training_s:
        yield "trained for", figures.seconds(job.training_s)
    yield "checkpoint", f"iteration {job.checkpoint}" if job.checkpoint is not None else "none yet"
    if job.skipped_samples:
        yield "skipped", f"{figures.count(job.skipped_samples)} samples, gradient not finite"
    if job.redone_iterations:
        yield "redone", f"{job.redone_iterations} iterations"


def _holdings(job: JobDetail) -> Iterator[tuple[str, str]]:
    if size := size_text(job):
        yield "size", size
    if job.moving:
        yield "moving", plain(job.moving)
    if job.replicas:
        yield "replicas", plain(job.replicas)
    if job.shards:
        leads = " (the first leads)" if len(job.shards) > 1 else ""
        out = [shard for shard in job.shards if job.targets and shard not in job.targets]
        leaving = f"; on the way out: {', '.join(out)}" if out else ""
        yield "shards", plain(", ".join(job.shards)) + leads + plain(leaving)
    if job.workers:
        missing = ", ".join(worker for worker in job.workers if worker not in job.ready)
        yield (
            "workers",
            plain(", ".join(job.workers) + (f"; not ready: {missing}" if missing else "")),
        )
    if job.shares:
        shares = ", ".join(f"{worker} {size}" for worker, size in sorted(job.shares.items()))
        yield "batches", plain(f"{shares} (plan {job.batches}: {job.shares_reason})")
    for worker, reason in job.dismissed.items():
        yield "dismissed", plain(f"{worker}: {reason}")


def _row_text(row: IterationRow) -> str:
    skipped = f", {row.skipped} skipped" if row.skipped else ""
    return (
        f"[dim]{row.samples} samples{skipped} in {figures.seconds(row.duration_s)}, "
        f"loss {figures.loss(row.loss, row.samples)}, rate {figures.value(row.lr)}[/]"
    )


def _workers(row: IterationRow) -> Table:
    """Times, then what its machine had left, if that is known: cores that a worker can have, and idle ones."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("worker")
    for name in ("samples", "compute", "pull", "push", "wait", "lease"):
        table.add_column(name, justify="right")
    noticed = any(timing.cpu_process is not None for timing in row.workers)
    for name in ("cores", "idle") if noticed else ():
        table.add_column(name, justify="right")
    for timing in row.workers:
        spent = (timing.compute_s, timing.pull_s, timing.push_s, timing.wait_s, timing.lease_s)
        left = (timing.cpu_process, timing.cpu_host) if noticed else ()
        table.add_row(
            plain(timing.worker),
            str(timing.samples),
            *map(figures.seconds, spent),
            *map(figures.value, left),
        )
    return table


def _lately(told: list[Told], now: float) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim", justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    for entry in told:
        table.add_row(figures.ago(entry.at, now) if entry.at else "", plain(entry.text))
    return table


def _document(document: dict[str, Any]) -> Table:
    """The fields that are not as they would be anyway."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    usual = dict(_flat(msgspec.to_builtins(JobDocument(task="")), ""))
    for path, value in _flat(document, ""):
        if usual.get(path) != value:
            table.add_row(plain(path), plain(value))
    return table


def _flat(value: dict[str, Any], path: str) -> Iterator[tuple[str, str]]:
    for key, inner in value.items():
        if isinstance(inner, dict) and inner:
            yield from _flat(inner, f"{path}{key}.")
        elif inner not in (None, "", {}, []):
            yield path + str(key), str(inner)
