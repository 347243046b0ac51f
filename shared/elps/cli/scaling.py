"""`elps scale`: change the size of a job while it trains; and sizes in words."""

from __future__ import annotations

from typing import Annotated

import typer

from elps.cli import figures
from elps.cli.controlling import ReasonOption, direct
from elps.cli.output import JobArgument, JsonOption
from elps.contracts.answers import JobSummary


def scale(
    ctx: typer.Context,
    job: JobArgument,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers", "-w", min=1, metavar="N", help="So many trainers.", show_default=False
        ),
    ] = None,
    shards: Annotated[
        int | None,
        typer.Option(
            "--shards",
            "-s",
            min=1,
            metavar="M",
            help="Keep the parameters on so many shards.",
            show_default=False,
        ),
    ] = None,
    auto: Annotated[bool, typer.Option("--auto", help="Free it again; see below.")] = False,
    reason: ReasonOption = "",
    as_json: JsonOption = False,
) -> None:
    """Change a job's number of workers and of shards while it trains.

    The job is pinned at that size, through pauses and restarts too, until [bold]--auto[/]. What you leave out stays
    as it is. Numbers must lie within workers.min and max, shards.min and max of the job's file.

    [bold]--auto[/] leaves the size to the scheduler's policy again, which [bold]elps policy[/] shows. First come first
    served ([bold]fifo[/], the default) resizes no job that trains: it counts when the job starts anew, after a pause or
    a restart of the stack, and gets what is free, up to its file's max. The other policies resize it while it trains.

    It does not stop for it: new workers get ready while the others train, those that leave finish what they compute,
    and parameters move between shards in the background. The result is the same as without. When too little is free
    the job grows as slots become free. [bold]elps watch[/] shows it happen.

    [dim]elps scale digits --workers 4 --shards 2[/]
    """
    if auto and (workers is not None or shards is not None):
        raise typer.BadParameter("--auto frees the size: give it without --workers and --shards")
    if not auto and workers is None and shards is None:
        raise typer.BadParameter("give --workers N, --shards M or both, or --auto")
    direct(
        ctx,
        lambda client: client.scale(job, workers=workers, shards=shards, auto=auto, reason=reason),
        as_json,
    )


def size_text(job: JobSummary) -> str:
    """What it has of what it shall have: ``2/3 workers (pinned), 2 shards``.

    A worker counts when it is ready, a shard when partitions shall lie on it. Of a job that holds nothing: what it is
    pinned at, if it is.
    """
    if not job.shards:
        return _pin_text(job)
    pins = (job.workers_pinned is not None, job.shards_pinned is not None)
    ready = sum(worker in job.ready for worker in job.workers)
    workers = f"{ready}/{figures.of(job.workers_wanted or len(job.workers), 'worker')}"
    has = len(job.targets or job.shards)
    lacking = f"{has}/" if has < job.shards_wanted else ""
    shards = f"{lacking}{figures.of(max(has, job.shards_wanted), 'shard')}"
    after_workers = " (pinned)" if pins == (True, False) else ""
    return f"{workers}{after_workers}, {shards}{' (pinned)' if pins[1] else ''}"


def _pin_text(job: JobSummary) -> str:
    asked = ((job.workers_pinned, "worker"), (job.shards_pinned, "shard"))
    parts = [figures.of(number, what) for number, what in asked if number is not None]
    return f"pinned at {', '.join(parts)}" if parts and not job.state.ended else ""
