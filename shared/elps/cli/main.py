"""The program `elps`: its commands, its exit codes and how it speaks of errors.

Exit codes: 0 done; 1 refused, or the job did not finish; 2 wrong usage; 3 the stack is not reachable; 130 interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Annotated

import typer

from elps.cli import (
    alone,
    controlling,
    doctor,
    explaining,
    exporting,
    listing,
    logs,
    scaling,
    schema,
    showing,
    simulating,
    submitting,
    watching,
)
from elps.cli.output import complain
from elps.cli.stack import Reach
from elps.contracts.errors import ElpsError, InvalidDocument, RetryLater, SetupError
from elps.runtime.logs import configure

REFUSED, USAGE, UNREACHABLE = 1, 2, 3

app = typer.Typer(
    name="elps",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="rich",
    epilog="Exit codes: 0 done · 1 refused or not finished · 2 wrong usage · 3 no stack",
)

LOCAL, STACK, LOOK = "Without a stack", "On the running stack", "Look"

app.command("run", rich_help_panel=LOCAL)(alone.run)
app.command("check", rich_help_panel=LOCAL)(alone.check)
app.command("simulate", rich_help_panel=LOCAL)(simulating.simulate)
app.command("schema", rich_help_panel=LOCAL)(schema.schema)
app.command("submit", rich_help_panel=STACK)(submitting.submit)
app.command("kill", rich_help_panel=STACK)(controlling.kill)
app.command("pause", rich_help_panel=STACK)(controlling.pause)
app.command("resume", rich_help_panel=STACK)(controlling.resume)
app.command("delete", rich_help_panel=STACK)(controlling.delete)
app.command("scale", rich_help_panel=STACK)(scaling.scale)
app.command("policy", rich_help_panel=STACK)(explaining.policy)
app.command("export", rich_help_panel=STACK)(exporting.export)
app.command("jobs", rich_help_panel=LOOK)(listing.jobs)
app.command("show", rich_help_panel=LOOK)(showing.show)
app.command("explain", rich_help_panel=LOOK)(explaining.explain)
app.command("watch", rich_help_panel=LOOK)(watching.watch)
app.command("doctor", rich_help_panel=LOOK)(doctor.doctor)
app.command("logs", rich_help_panel=LOOK)(logs.logs)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"elps {metadata.version('elps')}")
        raise typer.Exit


@app.callback()
def elps(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Show the version and end."
        ),
    ] = False,
) -> None:
    """Train models on an elastic parameter server.

    A job is a TOML, YAML or JSON file. [bold]elps check[/] tries it, [bold]elps run[/] trains it here.

    [bold]elps submit[/] hands it to the stack that [bold]make up[/] starts.
    """


def main(argv: Sequence[str] | None = None, *, reach: Reach | None = None) -> int:
    """Run one command line; returns the exit code. Errors meant for people come as one or two lines on stderr."""
    if reach is None:
        configure("elps", "ERROR")  # what a command does not say itself is for no one
    try:
        app(args=list(argv) if argv is not None else None, prog_name="elps", obj=reach)
    except ElpsError as error:
        complain(error)
        return exit_code(error)
    except MemoryError as error:
        what = str(error) or "the model does not fit into this machine"
        complain(ElpsError(f"out of memory: {what}"))
        return REFUSED
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0 if end.code is None else REFUSED
    return 0


def exit_code(error: ElpsError) -> int:
    """What the shell is told about an error."""
    if isinstance(error, RetryLater | SetupError):
        return UNREACHABLE
    if isinstance(error, InvalidDocument) and error.what in ("setting", "job id"):
        return USAGE
    return REFUSED


if __name__ == "__main__":
    sys.exit(main())
