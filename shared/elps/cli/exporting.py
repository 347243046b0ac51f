"""`elps export`: a job's newest checkpoint as a safetensors file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from elps.cli import figures
from elps.cli.output import JobArgument, JsonOption, console, console_err, plain, print_json
from elps.cli.stack import reach, run_async
from elps.contracts.errors import ElpsError
from elps.contracts.ids import parse_job_id
from elps.storage.port import Store

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from elps.client.checkpoints import Trained


class NotWritten(ElpsError):
    """The file was not written; the text says why and what to do."""


@dataclass(frozen=True)
class Saved:
    """What was written."""

    path: Path
    trained: Trained
    size_bytes: int

    def sentence(self) -> str:
        """For people."""
        values = sum(array.size for array in self.trained.values.values())
        return (
            f"saved {self.path}: {len(self.trained.values)} arrays, {figures.count(values)} parameters, "
            f"{figures.size(self.size_bytes)}, {self.trained.job} at iteration {self.trained.iteration}"
        )


def export(
    ctx: typer.Context,
    job: JobArgument,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="File to write; JOB.safetensors by default."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Save a job's trained parameters as a safetensors file.

    They are those of its newest checkpoint. The file's metadata name job, task and iteration.
    Read it with safetensors.numpy.load_file.
    """
    target = output if output is not None else Path(f"{parse_job_id(job)}.safetensors")
    check_target(target, force=force)

    async def work() -> Saved:
        async with reach(ctx).store() as store:
            return await export_checkpoint(store, job, target, force=force)

    saved = run_async(work)
    if as_json:
        print_json(
            {
                "path": str(saved.path),
                "job": saved.trained.job,
                "task": saved.trained.task,
                "iteration": saved.trained.iteration,
                "arrays": {name: list(array.shape) for name, array in saved.trained.values.items()},
                "size_bytes": saved.size_bytes,
            }
        )
    else:
        console().print(plain(saved.sentence()))


def check_target(path: Path, *, force: bool) -> None:
    """Raise `NotWritten` when the file could not be written in the end: better said before hours of training."""
    if path.is_dir():
        raise NotWritten(f"{path} is a folder: give the name of a file")
    if path.exists() and not force:
        raise NotWritten(f"{path} exists: choose another name, or give --force to overwrite it")
    if not path.parent.is_dir():
        raise NotWritten(f"there is no folder {path.parent}: make it first")
    if not os.access(path.parent, os.W_OK):
        raise NotWritten(f"no permission to write into {path.parent}")


async def export_checkpoint(store: Store, job: str, path: Path, *, force: bool) -> Saved:
    """Write a job's newest checkpoint to `path`, whole or not at all."""
    from elps.client.checkpoints import read_newest

    trained = await read_newest(store, job)
    for problem in trained.damaged:
        console_err().print(f"[yellow]an older checkpoint is taken:[/] {plain(problem)}")
    metadata = {
        "job": trained.job,
        "task": trained.task,
        "iteration": str(trained.iteration),
        "format": "np",
    }
    return Saved(path, trained, write_safetensors(path, trained.values, metadata, force=force))


def write_safetensors(
    path: Path, values: Mapping[str, NDArray[Any]], metadata: Mapping[str, str], *, force: bool
) -> int:
    """Write the arrays under their names; returns the size of the file in bytes. A reader never sees half a file."""
    from safetensors.numpy import save_file

    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    claimed = False
    try:
        if not force:
            path.touch(
                exist_ok=False
            )  # takes the name, so that no file that came meanwhile is lost
            claimed = True
        save_file(dict(values), partial, metadata=dict(metadata))
        size_bytes = partial.stat().st_size
        partial.replace(path)
        claimed = False
        return size_bytes
    except FileExistsError:
        raise NotWritten(
            f"{path} exists: choose another name, or give --force to overwrite it"
        ) from None
    except OSError as error:
        raise NotWritten(f"{path} cannot be written: {error.strerror or error}") from None
    finally:
        partial.unlink(missing_ok=True)
        if claimed:
            path.unlink(missing_ok=True)
