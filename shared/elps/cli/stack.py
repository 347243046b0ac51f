"""How a command reaches the running stack. Commands take a `Reach`, so that tests can hand in buses of their own.

What is heavy to import (the broker's and the store's clients) is imported when it is used: `elps --help` is instant.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import typer

from elps.client.http import MonitorHttp
from elps.contracts.errors import ElpsError, RetryLater, SetupError
from elps.local.find import StackInfo, find_stack
from elps.messaging.port import Bus
from elps.storage.port import Store

T = TypeVar("T")

CONNECT_S = 5.0
"""A person waits for this; a broker or store that is there answers in a fraction of a second."""


class Ask(Protocol):
    """Blocking questions to the monitor; see `MonitorHttp`."""

    def jobs(self) -> Any:
        """All jobs."""

    def job(self, job: str) -> Any:
        """One job."""

    def iterations(self, job: str, since: int = 0, limit: int = 1000) -> Any:
        """Its finished iterations."""

    def logs(self, job: str, since: int = 0, limit: int = 1000) -> Any:
        """What its trainers printed."""

    def recent_events(self, job: str) -> list[Any]:
        """What happened to it lately, oldest first."""


class Reach(Protocol):
    """Ways into the stack; each raises `SetupError` or `RetryLater` when it is not there."""

    def bus(self) -> AbstractAsyncContextManager[Bus]:
        """A connection to the broker."""

    def store(self) -> AbstractAsyncContextManager[Store]:
        """A connection to the store."""

    def monitor(self) -> Ask:
        """The monitor over HTTP."""


@dataclass
class FoundStack:
    """The stack that `find_stack` finds from the working directory and the environment."""

    cwd: Path = field(default_factory=Path.cwd)
    env: Mapping[str, str] = field(default_factory=lambda: os.environ)

    def find(self) -> StackInfo:
        """Addresses of the stack; `SetupError` when there is none."""
        return find_stack(self.cwd, self.env)

    @asynccontextmanager
    async def bus(self) -> AsyncIterator[Bus]:
        """See `Reach`."""
        from elps.messaging.amqp import AmqpBus

        with _advised():
            bus = await AmqpBus.connect(self.find().amqp_url, name="elps", timeout_s=CONNECT_S)
        try:
            yield bus
        finally:
            await bus.close()

    @asynccontextmanager
    async def store(self) -> AsyncIterator[Store]:
        """See `Reach`."""
        from elps.storage.redis import RedisStore

        with _advised():
            store = await RedisStore.connect(self.find().redis_url, timeout_s=CONNECT_S)
        try:
            yield store
        finally:
            await store.close()

    def monitor(self) -> MonitorHttp:
        """See `Reach`."""
        url = self.find().monitor_url
        if not url:
            raise SetupError("the address of the monitor is not known: set ELPS_MONITOR_URL")
        return MonitorHttp(url, token=self.env.get("ELPS_TOKEN"))


@contextmanager
def _advised() -> Iterator[None]:
    """Add to a connection that failed what to do about it."""
    try:
        yield
    except RetryLater as error:
        raise RetryLater(f"{error}. Is the stack running? try `make status`") from error


def reach(ctx: typer.Context) -> Reach:
    """The way into the stack that the program was started with."""
    if ctx.obj is None:
        return FoundStack()
    found: Reach = ctx.obj
    return found


def run_async(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a command's coroutine; of a group of errors raised in tasks, raise the first that is meant for people."""
    try:
        return asyncio.run(work())
    except BaseExceptionGroup as group:
        for error in leaves(group):
            if isinstance(error, ElpsError):
                raise error from None
        raise


def leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    """The errors of a group and of the groups in it, in order."""
    found: list[BaseException] = []
    for error in group.exceptions:
        found += leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found
