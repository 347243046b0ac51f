"""Commands to a Redis server: repeated after a lost connection, within a time-out, its errors told as ours.

The library's own retries are off, and ours go on until the time-out. What was given up is not delivered later, over
what was written since: its connection is reset, and the system forgets what it had not sent.

Values are bytes: a client that decodes replies is refused at the start.
"""

from __future__ import annotations

import asyncio
import re
import socket
import struct
from collections.abc import Awaitable, Callable, Sequence
from operator import methodcaller
from typing import Any, TypeVar

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    ClusterDownError,
    MasterDownError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from elps.contracts.errors import RetryLater, SetupError
from elps.contracts.urls import masked

T = TypeVar("T")

CALL_S = 10.0
"""For one command or pipeline, its repeats and the wait for a connection included."""
SOCKET_S = 5.0
"""For one read or write of a socket: a connection cut in silence is found after this."""
AGAIN_S = 0.1
CONNECTIONS = 10

_TEMPORARY_ERRORS = (
    OutOfMemoryError,
    ReadOnlyError,
    ClusterDownError,
    MasterDownError,
    TryAgainError,
)
_TEMPORARY_TEXT = re.compile(r"(?:^|caused error: (?:\('|\(\")?)(?:MISCONF|BUSY|NOREPLICAS)\b")
"""Replies that heal without a change of ours. The library keeps the code of those only that it has no class for."""

_CLOSED_TEXT = "handler is closed"
"""Of the error with which uvloop refuses to write to a connection that was reset while it lay in the pool."""


class Server:
    """What answers the commands of a store."""

    def __init__(self, client: Redis, shown: str) -> None:
        """`client` must not decode replies; `shown` is its address for people."""
        if client.connection_pool.connection_kwargs.get("decode_responses"):
            raise SetupError(f"store at {shown}: decode_responses must be off, values are bytes")
        self.shown = shown
        self._client = client

    async def call(
        self, what: str, act: Callable[[Redis], Awaitable[T]], timeout_s: float | None = None
    ) -> T:
        """Do one thing, again after a lost connection, within the time-out."""
        timeout_s = CALL_S if timeout_s is None else timeout_s
        last: object = "no answer"
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    try:
                        return await self._attempt(act)
                    except (AuthenticationError, AuthorizationError) as error:
                        raise SetupError(f"store at {self.shown}: {error}") from None
                    except (RedisConnectionError, RedisTimeoutError, OSError) as error:
                        last = error
                    except RuntimeError as error:
                        if _CLOSED_TEXT not in str(error):
                            raise
                        last = error
                    except ResponseError as error:
                        text = f"{type(error).__name__}: {error}"
                        if isinstance(error, _TEMPORARY_ERRORS) or _TEMPORARY_TEXT.search(
                            str(error)
                        ):
                            raise RetryLater(
                                f"store at {self.shown}, {what}: {text}{_remedy(error)}"
                            ) from None
                        raise SetupError(f"store at {self.shown}, {what}: {text}") from None
                    except RedisError as error:
                        raise SetupError(f"store at {self.shown}, {what}: {error}") from None
                    await asyncio.sleep(AGAIN_S)
        except TimeoutError:
            raise RetryLater(
                f"store at {self.shown}, {what}: no answer within {timeout_s:g} s; last: {last}"
            ) from None

    async def call_together(self, what: str, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Replies of commands that are sent together, without a transaction."""

        async def act(client: Redis) -> list[Any]:
            async with client.pipeline(transaction=False) as pipe:
                for name, *arguments in commands:
                    methodcaller(name, *arguments)(pipe)
                replies: list[Any] = await pipe.execute()
                return replies

        return await self.call(what, act)

    async def close(self) -> None:
        """Release the connections."""
        await self._client.aclose()
        await self._client.connection_pool.disconnect()

    async def _attempt(self, act: Callable[[Redis], Awaitable[T]]) -> T:
        """Do it once, and let no cancellation be lost meanwhile.

        The library sends with `asyncio.wait_for`, which before Python 3.12 drops one that comes when all is sent.
        Whoever cancelled, or a time-out around this, would wait for ever.
        """
        task = asyncio.current_task()
        assert task is not None
        before = task.cancelling()
        try:
            return await act(self._client)
        finally:
            if task.cancelling() > before:
                raise asyncio.CancelledError


def client_of(url: str) -> Redis:
    """A client as `Server` needs it, which has not connected yet; `SetupError` for a wrong URL."""
    try:
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=CONNECTIONS,
            timeout=CALL_S,
            socket_timeout=SOCKET_S,
            socket_connect_timeout=SOCKET_S,
            retry=Retry(NoBackoff(), 0),
            protocol=2,  # one shape of replies with every server
            decode_responses=False,
            client_name="elps",
        )
    except ValueError as error:
        raise SetupError(f"store URL {masked(url)}: {error}") from None
    pool.connection_class = _resetting(pool.connection_class)
    return Redis.from_pool(pool)


def _resetting(kind: type[AbstractConnection]) -> type[AbstractConnection]:
    """Connections of a kind that end with a reset.

    Closed in order, the system goes on to deliver what was written, for minutes: a record that was given up while the
    network was down would come after the one that was written since.
    """

    class Resetting(kind):  # type: ignore[misc, valid-type]
        async def _connect(self) -> None:
            await super()._connect()
            sock = self._writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

        async def disconnect(self, *arguments: Any, **named: Any) -> None:
            if self._writer is not None:  # closed, it would first send what waits
                self._writer.transport.abort()
            await super().disconnect(*arguments, **named)

    return Resetting


def _remedy(error: ResponseError) -> str:
    """What to do about a reply that heals without a change of ours, for people; empty where it says so itself."""
    if isinstance(error, OutOfMemoryError):
        return " - raise its maxmemory, or free some: elps kill removes a job's checkpoints"
    if "MISCONF" in str(error):
        return " - free space on its disk; it takes writes again by itself"
    return ""
