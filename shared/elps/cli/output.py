"""Where words go: results to standard output, everything about them to standard error."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console
from rich.markup import escape

from elps.contracts.errors import ElpsError, InvalidDocument

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for a program to read.")]
JobArgument = Annotated[
    str, typer.Argument(help="Id of the job.", metavar="JOB", show_default=False)
]

STATE_STYLES = {
    "queued": "cyan",
    "starting": "cyan",
    "running": "blue",
    "waiting": "yellow",
    "paused": "yellow",
    "finished": "green",
    "failed": "red",
    "killed": "magenta",
}


def console() -> Console:
    """Standard output; plain text and as wide as need be when it is no terminal."""
    width = None if sys.stdout.isatty() else 160
    return Console(file=sys.stdout, highlight=False, soft_wrap=width is not None, width=width)


def console_err() -> Console:
    """Standard error."""
    return Console(file=sys.stderr, highlight=False, soft_wrap=True)


def state_text(state: str) -> str:
    """A job's state in its colour, as rich markup."""
    return f"[{STATE_STYLES.get(state, 'default')}]{state}[/]"


def warn_stale(stale: str) -> None:
    """Say in one line on standard error that what is shown may be old; nothing when it is not."""
    if stale:
        console_err().print(f"[yellow]! old:[/] {plain(stale)}")


def harmless(text: str) -> str:
    """Text from elsewhere without control codes; line breaks and tabs stay."""
    return "".join(
        c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text
    )


def plain(text: object) -> str:
    """Text from elsewhere, so that rich takes no word of it as markup and no byte of it as a control code."""
    return escape(harmless(str(text)))


def print_json(value: Any) -> None:
    """One JSON value on one line."""
    line = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS)
    sys.stdout.write(line.decode() + "\n")
    sys.stdout.flush()


def complain(error: ElpsError) -> None:
    """Say an error on standard error: one line, or one for each problem of a document."""
    out = console_err()
    if isinstance(error, InvalidDocument) and len(error.problems) > 1:
        out.print(f"[red]error:[/] {plain(error.what)}: {len(error.problems)} problems")
        for problem in error.problems:
            out.print(f"  • {plain(problem)}")
    else:
        out.print(f"[red]error:[/] {plain(error)}")
