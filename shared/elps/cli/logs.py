"""`elps logs`: what a job's trainers printed."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from elps.cli.output import JobArgument, JsonOption, console_err, harmless, plain, print_json
from elps.cli.stack import Reach, reach, run_async
from elps.client.control import Client
from elps.client.reading import job_of, lines_of
from elps.contracts.answers import LogLine
from elps.contracts.errors import RetryLater
from elps.contracts.messages import JobEvent
from elps.contracts.requests import Query
from elps.contracts.telemetry import LogLines

PAGE = 1000
"""Lines asked for at once."""
ASK_EVERY_S = 5.0
"""While following: how often to ask whether the job ended, since its event may be lost."""
LAST_WORDS_S = 0.5
"""What a trainer printed at its end may come after the job's end."""


def logs(
    ctx: typer.Context,
    job: JobArgument,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with new lines until the job ends.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Print what a job's trainers printed.

    The worker stands before each line.
    """
    way = reach(ctx)
    if follow:
        run_async(lambda: _follow(way, job, as_json))
        return
    monitor = way.monitor()
    since = 0
    while lines := lines_of(monitor.logs(job, since, PAGE)):
        for line in lines:
            _print(job, line.worker, line.at, line.text, as_json)
        since = lines[-1].n + 1


async def _follow(way: Reach, job: str, as_json: bool) -> None:
    async with way.bus() as bus:
        client = Client(bus)
        async with client.follow(job, logs=True) as stream:
            ended = job_of(await client.query(Query(what="job", job=job))).state.ended
            told: set[tuple[str, float, str]] = (
                set()
            )  # printed already and perhaps in the stream as well
            for line in await _held(client, job):
                _print(job, line.worker, line.at, line.text, as_json)
                told.add((line.worker, line.at, line.text))
            loop = asyncio.get_running_loop()
            asked_at = loop.time()
            while not ended:
                item = await stream.next(max(0.0, asked_at + ASK_EVERY_S - loop.time()))
                if isinstance(item, JobEvent):
                    ended = item.state is not None and item.state.ended
                elif isinstance(item, LogLines):
                    _print_new(job, item, told, as_json)
                elif item is None:
                    asked_at = loop.time()
                    ended = await _ended(client, job)
            while (last := await stream.next(LAST_WORDS_S)) is not None:
                if isinstance(last, LogLines):
                    _print_new(job, last, told, as_json)


async def _held(client: Client, job: str) -> list[LogLine]:
    lines: list[LogLine] = []
    since = 0
    while page := lines_of(
        await client.query(Query(what="logs", job=job, since=since, limit=PAGE))
    ):
        lines += page
        since = page[-1].n + 1
    return lines


async def _ended(client: Client, job: str) -> bool:
    try:
        return job_of(await client.query(Query(what="job", job=job))).state.ended
    except RetryLater as error:
        console_err().print(f"[yellow]no news:[/] {plain(error)}")
        return False


def _print_new(job: str, lines: LogLines, told: set[tuple[str, float, str]], as_json: bool) -> None:
    for text in lines.lines:
        if (lines.worker, lines.at, text) not in told:
            _print(job, lines.worker, lines.at, text, as_json)


def _print(job: str, worker: str, at: float, text: str, as_json: bool) -> None:
    if as_json:
        print_json({"job": job, "worker": worker, "at": at, "text": text})
    else:
        print(f"{worker} | {harmless(text)}", flush=True)
