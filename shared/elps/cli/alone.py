"""`elps run` and `elps check`: what needs no stack. What they are made of is imported when they are called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from elps.cli.output import JsonOption
from elps.cli.submitting import FileArgument, SetOption


def run(
    file: FileArgument,
    settings: SetOption = None,
    workers: Annotated[
        int | None,
        typer.Option("--workers", "-w", min=1, max=256, help="Workers; the job's max by default."),
    ] = None,
    shards: Annotated[
        int | None,
        typer.Option("--shards", "-s", min=1, max=256, help="Shards; the job's max by default."),
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option(
            "--export", "-o", metavar="FILE", help="Save the trained parameters (safetensors)."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Let --export overwrite a file.")] = False,
    monitor: Annotated[
        bool, typer.Option("--monitor", help="Serve the monitor over HTTP on a free port.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show the services' logs.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Train a job here: one command, no stack, nothing left behind.

    Exit code 0 only if the job finished. Ctrl-C ends it in order, a second one at once.
    """
    from elps.cli.running import run_job

    code = run_job(
        file,
        settings,
        workers=workers,
        shards=shards,
        export=export,
        force=force,
        monitor=monitor,
        verbose=verbose,
        as_json=as_json,
    )
    if code:
        raise typer.Exit(code)


def check(file: FileArgument, settings: SetOption = None, as_json: JsonOption = False) -> None:
    """Try one step of a job here and test what training relies on.

    Opens task and data without any stack. Exit code 1 when something would go wrong, with what to do about it.
    """
    from elps.cli.checking import check_file

    if not check_file(file, settings, as_json=as_json):
        raise typer.Exit(1)
