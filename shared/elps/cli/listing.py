"""`elps jobs`: a table of all jobs."""

from __future__ import annotations

import time
from typing import Annotated

import typer
from rich.cells import cell_len, set_cell_size
from rich.table import Table

from elps.cli import figures
from elps.cli.output import (
    JsonOption,
    console,
    harmless,
    plain,
    print_json,
    state_text,
    warn_stale,
)
from elps.cli.stack import reach
from elps.client.reading import jobs_of, stale_of
from elps.contracts.answers import JobSummary

REASON_CHARACTERS = 60
LEAST_REASON = 24
"""A reason that is cut shorter says nothing."""
SHORTEST_REASON = 8
"""Where even less is left there is no reason."""
GAP = 2
"""Blanks between two columns."""
DISPENSABLE = ("TASK", "AGE", "W×S", "SAMPLES/S", "METRICS", "LEFT", "LOSS", "ITERATION")
"""Columns that a narrow terminal does without, the first first; `elps show` has them all."""


def jobs(
    ctx: typer.Context,
    all_jobs: Annotated[
        bool, typer.Option("--all", "-a", help="Those that ended long ago, too.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """List the jobs: state, progress, loss, speed.

    Those that ended are listed for a day. W×S: workers and shards; with a star at a size set by [bold]elps scale[/].
    """
    answer = reach(ctx).monitor().jobs()
    warn_stale(stale_of(answer))
    if as_json:
        print_json(answer)
        return
    now = time.time()
    listed = [job for job in jobs_of(answer) if all_jobs or recent(job, now)]
    if not listed:
        console().print("no jobs; `elps submit FILE` hands one in")
        return
    out = console()
    out.print(jobs_table(listed, now, out.width))


def recent(job: JobSummary, now: float) -> bool:
    """Whether a job is alive or ended within a day."""
    return not job.state.ended or now - (job.ended_at or job.changed_at or now) < 86400


def jobs_table(listed: list[JobSummary], now: float, width: int) -> Table:
    """One row a job, in at most `width` columns of text: what matters least is left out first."""
    columns = _columns(listed, now)
    chosen = _fitting(columns, width)
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for name in chosen:
        right = name in ("ITERATION", "LOSS", "W×S", "SAMPLES/S", "LEFT", "AGE")
        table.add_column(
            name, justify="right" if right else "left", no_wrap=True, overflow="ellipsis"
        )
    for at, job in enumerate(listed):
        table.add_row(
            *(
                state_text(job.state.value) if name == "STATE" else plain(texts[at])
                for name, texts in chosen.items()
            )
        )
    return table


def _columns(listed: list[JobSummary], now: float) -> dict[str, list[str]]:
    """All that could be shown, in the order from left to right."""
    ages = (now - job.submitted_at if job.submitted_at is not None else None for job in listed)
    return {
        "JOB": [harmless(job.id) for job in listed],
        "STATE": [job.state.value for job in listed],
        "TASK": [harmless(job.task) for job in listed],
        "ITERATION": [iterations_text(job) for job in listed],
        "LOSS": [figures.loss(job.loss, job.samples) for job in listed],
        "METRICS": [
            harmless(metrics_text({n: x for n, x in job.metrics.items() if n != "loss"}))
            for job in listed
        ],
        "W×S": [_size(job) for job in listed],
        "SAMPLES/S": [
            "–" if job.samples_per_s is None else figures.scaled(job.samples_per_s)
            for job in listed
        ],
        "LEFT": [figures.seconds(job.time_left_s) for job in listed],
        "AGE": [figures.seconds(age) for age in ages],
        "WHY": [harmless(first_line(job.reason)) for job in listed],
    }


def _size(job: JobSummary) -> str:
    """Workers and shards: ``3×2``; what is missing with what is wanted, ``2/3×2``; a star when a user has pinned it."""
    if not job.workers and not job.shards:
        return "–"
    targets = len(job.targets or job.shards)
    of_workers = f"/{job.workers_wanted}" if len(job.workers) < job.workers_wanted else ""
    of_shards = f"/{job.shards_wanted}" if targets < job.shards_wanted else ""
    pinned = job.workers_pinned is not None or job.shards_pinned is not None
    return f"{len(job.workers)}{of_workers}×{targets}{of_shards}{'*' if pinned else ''}"


def _fitting(columns: dict[str, list[str]], width: int) -> dict[str, list[str]]:
    """The columns that fit: WHY takes what the others leave, and those of `DISPENSABLE` go one by one.

    Of these, one without a word in it goes anyway.
    """
    chosen = {
        name: texts
        for name, texts in columns.items()
        if name not in DISPENSABLE or any(text not in ("", "–") for text in texts)
    }
    why = chosen.pop("WHY")
    least = min(LEAST_REASON, _width("WHY", why))
    left = width - sum(_width(name, texts) + GAP for name, texts in chosen.items())
    for name in DISPENSABLE:
        if left < least and name in chosen:
            left += _width(name, chosen.pop(name)) + GAP
    length = min(left, REASON_CHARACTERS)
    return (
        {**chosen, "WHY": [_cut(text, length) for text in why]}
        if length >= SHORTEST_REASON
        else chosen
    )


def _width(name: str, texts: list[str]) -> int:
    return max(cell_len(text) for text in (name, *texts))


def _cut(text: str, length: int) -> str:
    return text if cell_len(text) <= length else set_cell_size(text, length - 1).rstrip() + "…"


def iterations_text(job: JobSummary) -> str:
    """How far it is: ``120/400``."""
    return f"{job.iteration}/{job.iterations}" if job.iterations else str(job.iteration)


def metrics_text(metrics: dict[str, float | None]) -> str:
    """Newest evaluation in a few words."""
    return figures.values(metrics, " ") or "–"


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
