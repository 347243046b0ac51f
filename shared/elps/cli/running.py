"""`elps run`: train a job in one process tree, without broker, store or stack."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, TypeVar

from elps.cli.composing import Composition, composed, installed_services, members
from elps.cli.exporting import check_target, export_checkpoint
from elps.cli.output import console_err, plain
from elps.cli.progress import JobProgress
from elps.cli.render import renderer_for
from elps.cli.stack import run_async
from elps.cli.submitting import local_env, read_job
from elps.cli.watching import follow_to_end
from elps.client.control import Client
from elps.client.reading import job_of_record
from elps.contracts import topology
from elps.contracts.answers import JobDetail
from elps.contracts.codec import decode
from elps.contracts.errors import ElpsError, InvalidDocument, RetryLater, SetupError
from elps.contracts.job import JobDocument
from elps.contracts.requests import Reply
from elps.contracts.state import JobRecord, JobState
from elps.runtime.logs import configure
from elps.storage.port import Store

T = TypeVar("T")

SUBMIT_TRIES = 10
"""The scheduler may begin to listen a moment after the job is handed in."""
ANSWER_S = 30.0
"""The machine may be busy starting everything at once."""
KILLED_S = 5.0
"""After ctrl-C: how long to wait for the job's orderly end."""
TWICE_S = 0.5
"""Some programs signal a process and its whole group, which makes one wish look like two."""
INTERRUPTED = 130
SHOW_CURSOR = "\x1b[?25h"
"""The live bar hides it."""


class RunFailed(ElpsError):
    """The process tree could not do its work; the text says what to do."""


def run_job(
    file: str,
    settings: list[str] | None,
    *,
    workers: int | None,
    shards: int | None,
    export: Path | None,
    force: bool,
    monitor: bool,
    verbose: bool,
    as_json: bool,
) -> int:
    """Train the job in a file; returns the exit code."""
    document, plain_document = read_job(file, settings)
    workers, shards = workers or document.workers.max, shards or document.shards.max
    check_sizes(document, workers, shards)
    if export is not None:
        check_target(export, force=force)
    configure("elps", "INFO" if verbose else "CRITICAL", stream=_Stderr())  # type: ignore[arg-type]  # what a handler needs
    env = local_env(os.environ, file)
    port = _free_port(env.get("ELPS_HOST", "127.0.0.1")) if monitor else None
    if port is not None:
        console_err().print(f"monitor: http://127.0.0.1:{port}/")
    taking_part = members(workers, shards, monitor_port=port)

    async def work() -> int:
        services = installed_services({member.service for member in taking_part})
        async with composed(taking_part, services, env) as tree:
            return await _train(tree, plain_document, as_json=as_json, export=export, force=force)

    try:
        return run_async(work)
    except (SetupError, RetryLater) as error:  # there is no stack here that could be unreachable
        raise RunFailed(str(error)) from error


def check_sizes(document: JobDocument, workers: int, shards: int) -> None:
    """Raise `InvalidDocument` when the job could never start with so many."""
    problems = [
        f"--{name} {given}: the job's {name}.min is {pool.min}"
        for name, given, pool in (
            ("workers", workers, document.workers),
            ("shards", shards, document.shards),
        )
        if given < pool.min
    ]
    if problems:
        raise InvalidDocument("setting", problems)


def _free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


async def _train(
    tree: Composition, document: dict[str, Any], *, as_json: bool, export: Path | None, force: bool
) -> int:
    client = Client(tree.bus, timeout_s=ANSWER_S)
    interrupted = _interrupts()
    document = {**document, "id": document.get("id") or "run"}
    job = str(document["id"])

    async def snapshot() -> JobDetail | None:
        return await _summary(tree.store, job)

    async with client.follow(job, logs=True) as stream:
        reply = await _submit(client, document)
        if not reply.ok:
            raise InvalidDocument("refused", reply.problems or [reply.reason])
        watching = asyncio.create_task(
            follow_to_end(job, stream, snapshot, renderer_for(job, as_json=as_json))
        )
        try:
            progress = await _unless(interrupted, watching)
            if progress is None:
                console_err().print(
                    "[yellow]interrupted:[/] the job is being ended (ctrl-C again: at once)"
                )
                await _end(client, job, watching)
                return INTERRUPTED
        finally:
            watching.cancel()
    return await _result(tree.store, job, progress, export=export, force=force)


async def _result(
    store: Store, job: str, progress: JobProgress, *, export: Path | None, force: bool
) -> int:
    if progress.state is not JobState.FINISHED:
        return 1
    if export is not None:
        saved = await export_checkpoint(store, job, export, force=force)
        console_err().print(plain(saved.sentence()))
    return 0


async def _submit(client: Client, document: dict[str, Any]) -> Reply:
    for _ in range(SUBMIT_TRIES - 1):
        try:
            return await client.submit(document)
        except RetryLater:
            await asyncio.sleep(0.05)
    return await client.submit(document)


async def _end(client: Client, job: str, watching: asyncio.Task[JobProgress]) -> None:
    try:
        await client.kill(job, "interrupted")
        await asyncio.wait([watching], timeout=KILLED_S)
    except ElpsError as error:
        console_err().print(f"[yellow]not ended in order:[/] {plain(error)}")


async def _summary(store: Store, job: str) -> JobDetail | None:
    body = await store.hash_get(topology.JOB_INDEX, job)
    return job_of_record(decode(body, JobRecord)) if body is not None else None


async def _unless(stop: asyncio.Event, work: Awaitable[T]) -> T | None:
    """The result of `work`, or None once `stop` is set; `work` goes on."""
    task, stopped = asyncio.ensure_future(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((task, stopped), return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        stopped.cancel()


def _interrupts() -> asyncio.Event:
    """Set by the first SIGINT or SIGTERM; the second, given on purpose, ends the process."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    first_at = 0.0

    def asked(number: signal.Signals) -> None:
        nonlocal first_at
        if stop.is_set() and loop.time() - first_at >= TWICE_S:
            if sys.stdout.isatty():
                sys.stdout.write(SHOW_CURSOR)
                sys.stdout.flush()
            os._exit(128 + number)
        if not stop.is_set():
            first_at = loop.time()
            stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, asked, number)
    return stop


class _Stderr:
    """Standard error as it is at each write: the live bar puts a proxy of its own there."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()

    def isatty(self) -> bool:
        return sys.stderr.isatty()
