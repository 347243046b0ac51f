"""One connection to RabbitMQ that is made anew, whole, whenever anything of it is lost.

aio-pika's robust objects restore themselves one by one and wait without a limit meanwhile. Here a lost connection, a
channel that the broker closed (a delivery held too long, say) and a consumer that it cancelled are all treated alike:
everything is closed, connected again and declared again. What is declared is the caller's `prepare`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import structlog
from aio_pika.abc import AbstractChannel
from aio_pika.connection import Connection, make_url
from aio_pika.exceptions import CONNECTION_EXCEPTIONS

from elps.contracts.errors import SetupError
from elps.contracts.urls import masked
from elps.messaging.port import EXCHANGES

if TYPE_CHECKING:
    from yarl import URL

log = structlog.get_logger(__name__)

HEARTBEAT_S = 10
"""The broker drops a silent client after two of them. Below 5 s a busy machine loses live connections."""
RECONNECT_S = 0.5
LONGEST_RECONNECT_S = 2.0
CONNECT_S = 5.0
"""For one attempt to connect."""
PREPARE_S = 15.0
"""For the declarations: after a restart of the broker its quorum queues elect their leaders first."""
HANG_UP_S = 2.0
"""For an orderly goodbye to a broker that may be gone."""
ALARM = "a memory or disk alarm: rabbitmq-diagnostics alarms names it; give its host memory or disk, or raise the limit"
ANNOUNCE_S = 10.0
"""How often a broker that stays away is logged."""
LOOK_S = 0.5
"""How often one looks whether the broker takes messages. Having to wait for so long means that it does not."""


class Link:
    """Keeps one connection. `up` is set while it stands and `prepare` is done."""

    def __init__(
        self, url: str, name: str, prepare: Callable[[Connection], Awaitable[None]]
    ) -> None:
        self.shown = masked(url)
        self.name = name
        self.up = asyncio.Event()
        self.last_error = "not connected yet"
        self.times_up = 0
        self.blocked_at: float | None = None
        """Since when the broker has taken nothing from this connection (loop time, s); None while it takes messages."""
        self._url = _checked(url)
        self._prepare = prepare
        self._lost = asyncio.Event()  #: set when the present connection must be given up
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to connect."""
        self._task = asyncio.create_task(self._keep(), name=f"link {self.name}")

    async def close(self) -> None:
        """Disconnect for good."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,), timeout=2 * HANG_UP_S)

    def breaker(self) -> Callable[[], None]:
        """What gives up the present connection, and no later one."""
        return self._lost.set

    def watch(self, channel: AbstractChannel) -> Callable[[], None]:
        """Give the present connection up when this channel closes; call the result before closing it on purpose."""
        lost = self._lost

        def closed(*_: object) -> None:
            lost.set()

        channel.close_callbacks.add(closed)
        return lambda: channel.close_callbacks.discard(closed)

    async def _keep(self) -> None:
        failures = 0
        announced = -ANNOUNCE_S
        while True:
            try:
                await self._stand()
                failures, announced = 0, -ANNOUNCE_S
                self.last_error = "the connection was lost"
            except (*CONNECTION_EXCEPTIONS, TimeoutError) as error:
                failures += 1
                self.last_error = f"{type(error).__name__}: {error}".rstrip(": ")
            now = asyncio.get_running_loop().time()
            if now - announced >= ANNOUNCE_S:
                announced = now
                log.warning("broker_away", link=self.name, url=self.shown, error=self.last_error)
            await asyncio.sleep(min(RECONNECT_S * 2 ** min(failures, 4), LONGEST_RECONNECT_S))

    async def _stand(self) -> None:
        """Connect, prepare, and return once the connection is lost."""
        lost = self._lost = asyncio.Event()
        connection = Connection(self._url, client_properties={"connection_name": self.name})
        connection.close_callbacks.add(lambda *_: lost.set())
        try:
            async with asyncio.timeout(CONNECT_S):
                await connection.connect(timeout=CONNECT_S)
            async with asyncio.timeout(PREPARE_S):
                await declare_exchanges(connection)
                await self._prepare(connection)
            self.times_up += 1
            self.up.set()
            log.info("broker_connected", link=self.name, url=self.shown, times=self.times_up)
            async with asyncio.TaskGroup() as tasks:
                looking = tasks.create_task(self._look_for_alarms(connection))
                await lost.wait()
                looking.cancel()
        finally:
            self.up.clear()
            self.blocked_at = None
            await _hang_up(connection)

    async def _look_for_alarms(self, connection: Connection) -> None:
        """Keep `blocked_at`. A broker short of memory or disk says so to those who publish, and reads no further."""
        transport = connection.transport
        if transport is None:
            return  # it was closed already, which is noticed by others
        clock = asyncio.get_running_loop().time
        with contextlib.suppress(*CONNECTION_EXCEPTIONS):  # it is lost, and noticed by others
            while True:
                try:
                    async with asyncio.timeout(LOOK_S):
                        await transport.ready()
                except TimeoutError:
                    since = self.blocked_at = clock()
                    log.warning("broker_blocks", link=self.name, url=self.shown, hint=ALARM)
                    await transport.ready()
                    self.blocked_at = None
                    after_s = round(clock() - since, 1)
                    log.info("broker_takes_again", link=self.name, after_s=after_s)
                await asyncio.sleep(LOOK_S)


async def declare_exchanges(connection: Connection) -> None:
    """Declare every exchange of the control plane, durable."""
    async with connection.channel(publisher_confirms=False) as channel:
        for name, kind in EXCHANGES.items():
            await channel.declare_exchange(name, kind, durable=True)


async def _hang_up(connection: Connection) -> None:
    with contextlib.suppress(
        Exception
    ):  # it is being thrown away; why it does not close matters to nobody
        async with asyncio.timeout(HANG_UP_S):
            await connection.close()


def _checked(url: str) -> URL:
    try:
        parsed = make_url(url)
    except ValueError as error:
        raise SetupError(f"broker URL {masked(url)}: {error}") from None
    if parsed.scheme not in ("amqp", "amqps") or not parsed.host:
        raise SetupError(f"broker URL {masked(url)}: expected amqp://user:password@host:port/")
    return parsed if "heartbeat" in parsed.query else make_url(url, heartbeat=HEARTBEAT_S)
