"""`elps watch`: stay with a job until it ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import typer

from elps.cli.output import JobArgument, JsonOption, console_err, warn_stale
from elps.cli.progress import JobProgress
from elps.cli.render import Renderer, renderer_for
from elps.cli.stack import Reach, reach, run_async
from elps.client.control import Client
from elps.client.following import Following
from elps.client.reading import job_of
from elps.contracts.answers import JobDetail
from elps.contracts.errors import RetryLater
from elps.contracts.messages import JobEvent
from elps.contracts.requests import Query
from elps.contracts.state import JobState
from elps.contracts.telemetry import IterationRow, LogLines

ASK_EVERY_S = 5.0
"""Events may be lost, so the state is asked for this often."""

SAY_AGAIN_S = 30.0
"""What keeps being so is said again this often, with its new age."""

Snapshot = Callable[[], Awaitable[JobDetail | None]]
"""The job's present summary; None when it cannot be had for now."""


def watch(ctx: typer.Context, job: JobArgument, as_json: JsonOption = False) -> None:
    """Show a job's progress until it ends.

    Exit code 0 only if it finished. Ctrl-C ends the watching, not the job.
    """
    watch_job(reach(ctx), job, as_json=as_json)


def watch_job(way: Reach, job: str, *, as_json: bool) -> None:
    """Watch to the end; ends the command with exit code 1 when the job did not finish."""
    try:
        progress = run_async(lambda: _watch_on_stack(way, job, as_json))
    except KeyboardInterrupt:
        console_err().print(
            f"the job goes on: elps watch {job} shows it again, elps kill {job} ends it"
        )
        raise
    if progress.state is not JobState.FINISHED:
        raise typer.Exit(1)


async def _watch_on_stack(way: Reach, job: str, as_json: bool) -> JobProgress:
    async with way.bus() as bus:
        client = Client(bus)
        heard, heard_at = False, time.monotonic()
        doubt = Doubt()

        async def snapshot() -> JobDetail | None:
            nonlocal heard, heard_at
            try:
                summary = job_of(await client.query(Query(what="job", job=job)))
            except RetryLater as error:
                if not heard:  # without a first answer nobody knows whether there is such a job
                    raise
                doubt.say(f"no answer for {time.monotonic() - heard_at:.0f} s: {error}")
                return None
            heard, heard_at = True, time.monotonic()
            doubt.say(summary.stale)
            return summary

        async with client.follow(job) as stream:
            return await follow_to_end(job, stream, snapshot, renderer_for(job, as_json=as_json))


class Doubt:
    """Says on standard error that what is shown may be old, and when that is over."""

    def __init__(self) -> None:
        self._said_at: float | None = None  #: monotonic, s; None while there is no doubt

    def say(self, why: str) -> None:
        """Take the newest doubt; empty when there is none."""
        now = time.monotonic()
        if why and (self._said_at is None or now - self._said_at >= SAY_AGAIN_S):
            self._said_at = now
            warn_stale(why)
        elif not why and self._said_at is not None:
            self._said_at = None
            console_err().print("[green]up to date again[/]")


async def follow_to_end(
    job: str, stream: Following, snapshot: Snapshot, renderer: Renderer
) -> JobProgress:
    """Show all that happens to a job until its life is over.

    The stream was entered before this is called. A summary that tells of the end counts like the event that was lost.
    """
    progress = JobProgress(job)
    loop = asyncio.get_running_loop()
    asked_at = -ASK_EVERY_S
    renderer.start()
    try:
        while not progress.ended:
            if loop.time() - asked_at >= ASK_EVERY_S:
                summary = await snapshot()
                asked_at = loop.time()
                for note in progress.take_summary(summary) if summary is not None else ():
                    renderer.note(note)
                continue
            item = await stream.next(asked_at + ASK_EVERY_S - loop.time())
            if isinstance(item, JobEvent):
                renderer.event(item)
                for note in progress.take_event(item):
                    renderer.note(note)
            elif isinstance(item, LogLines):
                renderer.lines(item)
            elif isinstance(item, IterationRow) and progress.take_row(item):
                renderer.row(item, progress)
    finally:
        renderer.end(progress)
    return progress
