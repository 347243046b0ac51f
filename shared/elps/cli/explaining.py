"""`elps explain`: why a job has what it has; and `elps policy`, by which that is decided."""

from __future__ import annotations

from typing import Annotated

import typer

from elps.cli.controlling import direct
from elps.cli.output import JobArgument, JsonOption, console, plain
from elps.cli.stack import reach, run_async
from elps.cli.submitting import report
from elps.client.control import Client
from elps.contracts.requests import Reply


def explain(ctx: typer.Context, job: JobArgument, as_json: JsonOption = False) -> None:
    """Say why a job has the workers and shards that it has, and what would have to happen for it to get more.

    For the second the scheduler's policy is asked what it would decide if a slot were free, or another job over.
    """

    async def work() -> Reply:
        async with reach(ctx).bus() as bus:
            return await Client(bus).explain(job)

    reply = run_async(work)
    if as_json or not reply.ok:
        report(reply, as_json=as_json)
        return
    for line in reply.lines:
        console().print(plain(line))


def policy(
    ctx: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="fifo, eps, ...; see docs/scheduling.md. Left out: the one in force is shown.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the policy by which the scheduler decides, or have it decide by another one from now on.

    Jobs that train go on as they are. It holds through restarts, until ELPS_POLICY is set to something else.
    """
    direct(
        ctx,
        lambda client: client.policy() if name is None else client.choose_policy(name),
        as_json,
    )
