"""`elps jobs`: a table of all jobs."""

from __future__ import annotations

import time
from typing import Annotated

import typer
from rich.table import Table

from elps.cli import figures
from elps.cli.output import JsonOption, console, plain, print_json, state_text
from elps.cli.stack import reach
from elps.client.reading import JobSummary, jobs_of

REASON_CHARACTERS = 60


def jobs(
    ctx: typer.Context,
    all_jobs: Annotated[
        bool, typer.Option("--all", "-a", help="Those that ended long ago, too.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """List the jobs: state, progress, loss, speed.

    Those that ended are listed for a day.
    """
    answer = reach(ctx).monitor().jobs()
    if as_json:
        print_json(answer)
        return
    now = time.time()
    listed = [job for job in jobs_of(answer) if all_jobs or recent(job, now)]
    if not listed:
        console().print("no jobs; `elps submit FILE` hands one in")
        return
    console().print(jobs_table(listed, now))


def recent(job: JobSummary, now: float) -> bool:
    """Whether a job is alive or ended within a day."""
    return not job.state.ended or now - (job.ended_at or job.changed_at or now) < 86400


def jobs_table(listed: list[JobSummary], now: float) -> Table:
    """One row a job."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("JOB", no_wrap=True)
    table.add_column("STATE")
    table.add_column("TASK")
    for name in ("ITERATION", "LOSS"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("METRICS")
    for name in ("W×S", "SPEED", "LEFT", "AGE"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("WHY", max_width=REASON_CHARACTERS, overflow="ellipsis", no_wrap=True)
    for job in listed:
        held = f"{len(job.workers)}×{len(job.shards)}" if job.workers or job.shards else "–"
        table.add_row(
            plain(job.id),
            state_text(job.state.value),
            plain(job.task),
            iterations_text(job),
            figures.value(job.loss),
            plain(metrics_text(job.metrics)),
            held,
            figures.rate(job.samples_per_s),
            figures.seconds(job.time_left_s),
            figures.seconds(now - job.submitted_at) if job.submitted_at is not None else "–",
            plain(first_line(job.reason)),
        )
    return table


def iterations_text(job: JobSummary) -> str:
    """How far it is: ``120/400``."""
    return f"{job.iteration}/{job.iterations}" if job.iterations else str(job.iteration)


def metrics_text(metrics: dict[str, float | None]) -> str:
    """Newest evaluation in a few words."""
    return " ".join(f"{name} {figures.value(x)}" for name, x in metrics.items()) or "–"


def first_line(text: str) -> str:
    """The first line of a text that may be a traceback; of such a one, the last, which says what it was."""
    lines = [line for line in text.strip().splitlines() if line.strip()]
    if not lines:
        return ""
    return (
        lines[0]
        if len(lines) == 1 or not any("Traceback" in line for line in lines)
        else f"{lines[0]} … {lines[-1]}"
    )
