"""`elps submit`: hand a job to the running stack."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from elps.cli.output import JsonOption, console, plain, print_json, state_text
from elps.cli.stack import reach, run_async
from elps.client import documents
from elps.client.control import Client
from elps.contracts.codec import parse_job
from elps.contracts.errors import InvalidDocument
from elps.contracts.job import JobDocument
from elps.contracts.requests import Reply

FileArgument = Annotated[
    str,
    typer.Argument(
        help="Job file: .toml, .yaml or .json; - for standard input.",
        metavar="FILE",
        show_default=False,
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY.PATH=VALUE",
        help="Change one field, such as optimizer.lr=0.1; repeatable.",
    ),
]


def read_job(file: str, settings: list[str] | None) -> tuple[JobDocument, dict[str, Any]]:
    """The job in a file with the settings applied: checked, and as plain values.

    Raises `InvalidDocument` with all faults.
    """
    document = documents.load(file)
    for setting in settings or []:
        documents.assign(document, setting)
    try:
        return parse_job(document), document
    except InvalidDocument as error:
        name = "standard input" if file == documents.STDIN else file
        raise InvalidDocument(name, error.problems) from None


def local_env(env: Mapping[str, str], file: str) -> dict[str, str]:
    """The environment for services in this process: whoever runs the job may name the code and data beside its file."""
    folder = str(Path.cwd() if file == "-" else Path(file).resolve().parent)
    return {"ELPS_TASK_PATH": folder, "ELPS_DATA_PATH": folder, "ELPS_LEAVE_GRACE_S": "2", **env}


def submit(
    ctx: typer.Context,
    file: FileArgument,
    settings: SetOption = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Stay and show its progress until it ends.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Hand a job to the stack; print its id, or every problem."""
    _, document = read_job(file, settings)
    way = reach(ctx)

    async def work() -> Reply:
        async with way.bus() as bus:
            return await Client(bus).submit(document)

    reply = run_async(work)
    report(reply, as_json=as_json)
    if watch and reply.job is not None:
        from elps.cli.watching import watch_job

        watch_job(way, reply.job, as_json=as_json)


def report(reply: Reply, *, as_json: bool) -> None:
    """Print the scheduler's answer; a refusal ends the command with exit code 1."""
    if as_json:
        print_json(msgspec.to_builtins(reply))
        if not reply.ok:
            raise typer.Exit(1)
        return
    if not reply.ok:
        raise InvalidDocument(
            "refused", reply.problems or [reply.reason or "the scheduler gave no reason"]
        )
    parts = [plain(reply.job)] if reply.job else []
    if reply.state is not None:
        parts.append(state_text(reply.state.value))
    if reply.reason:
        parts.append(plain(reply.reason))
    console().print("  ".join(parts))
