"""`elps kill`, `elps pause`, `elps resume`, `elps delete`: direct jobs that exist."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated

import typer

from elps.cli.output import JobArgument, JsonOption
from elps.cli.stack import reach, run_async
from elps.cli.submitting import report
from elps.client.control import Client
from elps.contracts.requests import Reply

ReasonOption = Annotated[
    str, typer.Option("--reason", "-r", help="Why; it is kept with the job and shown.")
]


def kill(
    ctx: typer.Context, job: JobArgument, reason: ReasonOption = "", as_json: JsonOption = False
) -> None:
    """End a job at once, for good."""
    direct(ctx, lambda client: client.kill(job, reason), as_json)


def pause(
    ctx: typer.Context, job: JobArgument, reason: ReasonOption = "", as_json: JsonOption = False
) -> None:
    """Checkpoint a job and let go of what it holds.

    It stops at the end of its present iteration.
    """
    direct(ctx, lambda client: client.pause(job, reason), as_json)


def resume(
    ctx: typer.Context, job: JobArgument, reason: ReasonOption = "", as_json: JsonOption = False
) -> None:
    """Let a paused job go on from its checkpoint."""
    direct(ctx, lambda client: client.resume(job, reason), as_json)


def delete(
    ctx: typer.Context, job: JobArgument, reason: ReasonOption = "", as_json: JsonOption = False
) -> None:
    """Remove an ended job for good: its record, its checkpoints, its history, its trainers' logs.

    Refused as long as it has not ended: [bold]elps kill[/] ends it. Ended jobs go by themselves after ELPS_KEEP_JOBS_S.
    """
    direct(ctx, lambda client: client.delete(job, reason), as_json)


def direct(
    ctx: typer.Context, command: Callable[[Client], Awaitable[Reply]], as_json: bool
) -> None:
    """Send one command to the scheduler and report its answer."""

    async def work() -> Reply:
        async with reach(ctx).bus() as bus:
            return await command(Client(bus))

    report(run_async(work), as_json=as_json)
