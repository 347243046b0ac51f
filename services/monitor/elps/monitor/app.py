"""The monitor as a service: its queues, its timers and its HTTP server in one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import secrets
import socket
from collections.abc import Iterator
from importlib.metadata import version

import structlog
import uvicorn

from elps.contracts import topology
from elps.contracts.errors import RetryLater, SetupError
from elps.messaging.port import Handler, Queue, Subscription
from elps.monitor.connections import BoundedProtocol
from elps.monitor.core.state import State
from elps.monitor.desk import Desk
from elps.monitor.http import build
from elps.monitor.settings import Settings
from elps.monitor.streaming import Readers
from elps.runtime.schedule import every
from elps.runtime.service import Context
from elps.runtime.settings import read

log = structlog.get_logger(__name__)

CHECK_S = 2.0
"""Between checks of the store, and of members and of the broker's return."""
INDEX_S = 10.0
"""Between readings of all records: they tell why a job waits, and put right what lost events left wrong."""
KEEP_S = 5.0
"""Between writings of what has changed in histories: so much of them is lost when the monitor is killed."""
LAST_KEEP_S = 5.0
"""For the last one, when the monitor is told to end."""
RETRY_S = 2.0
REST_S = 0.2
"""Between readings of missing records: a job without one must not make each message of it a question to the store."""
STOP_S = 2.0
"""For requests that are being answered when the monitor stops."""
MAX_CONNECTIONS = 256


class Monitor:
    """See `elps.runtime.service.Service`. `ready` is set once `port` is known and HTTP answers."""

    def __init__(self, context: Context) -> None:
        self.settings = read(Settings, context.env)
        self._bus, self._clock = context.bus, context.clock
        self._run = secrets.token_hex(4)
        state = State(lost_s=self.settings.lost_s, run=self._run)
        self.desk = Desk(state, context.bus, context.store, context.clock, version("elps"))
        self.ready = asyncio.Event()
        self.taking = asyncio.Event()
        """Set once all queues are declared and read."""
        self.port = 0
        """Port that is listened on, once `ready`."""
        self._stop = asyncio.Event()  #: that of `run`
        self._reread = asyncio.Event()  #: set when all records should be read at once
        self._reconnects = context.bus.stats.reconnects  #: at the last check
        self._index_read = False  #: all records were read once
        self._indexed = asyncio.Event()  #: set when that has come about
        self._doubtful = 0  #: checks that will still have all records read
        self._connected = False  #: whether the broker was there at the last save
        self.readers = Readers(self.desk)

    @property
    def url(self) -> str:
        """Where the dashboard and the API are, for this machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.settings.host, self.settings.host)
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop`. Raises `SetupError` when the port cannot be had."""
        self._stop = stop
        listening = listen(self.settings.host, self.settings.monitor_port)
        self.port = listening.getsockname()[1]
        server = _Server(
            uvicorn.Config(
                build(self.desk, self.settings, self.readers),
                log_config=None,
                access_log=False,
                lifespan="off",
                ws="none",
                server_header=False,
                http=BoundedProtocol,
                limit_concurrency=MAX_CONNECTIONS,
                timeout_graceful_shutdown=int(STOP_S),
            ),
            self.ready,
        )
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._subscriptions(stop))
                tasks.create_task(
                    every(INDEX_S, self._read_index, stop, nudge=self._reread, timeout_s=30.0)
                )
                tasks.create_task(every(CHECK_S, self._check, stop))
                tasks.create_task(
                    every(INDEX_S, self._read_missing, stop, nudge=self.desk.missed, timeout_s=30.0)
                )
                tasks.create_task(
                    every(KEEP_S, self._keep, stop, nudge=self._indexed, timeout_s=60.0)
                )
                serving = tasks.create_task(server.serve(sockets=[listening]))
                tasks.create_task(self._announce())
                stopped = tasks.create_task(stop.wait())
                await asyncio.wait((serving, stopped), return_when=asyncio.FIRST_COMPLETED)
                self.readers.close()
                server.should_exit = True
                stop.set()
            await self._keep_at_the_end()
        finally:
            listening.close()

    async def _announce(self) -> None:
        await self.ready.wait()
        log.info("monitor_listening", url=self.url)

    async def _subscriptions(self, stop: asyncio.Event) -> None:
        """Take from all queues until `stop`. While another monitor holds the queue of queries, wait for it."""
        run = self._run
        wanted: list[tuple[Queue, Handler]] = [
            (
                Queue(f"elps.monitor.members.{run}", ((topology.MEMBERS, "#"),), max_length=5_000),
                self.desk.on_members,
            ),
            (
                Queue(
                    f"elps.monitor.events.{run}", ((topology.EVENTS, "job.#"),), max_length=10_000
                ),
                self.desk.on_event,
            ),
            (
                Queue(
                    f"elps.monitor.telemetry.{run}",
                    ((topology.TELEMETRY, "job.#"), (topology.TELEMETRY, "log.#")),
                    max_length=10_000,
                    prefetch=256,
                ),
                self.desk.on_telemetry,
            ),
            (Queue(topology.QUERY, ((topology.QUERY, "#"),), max_length=1_000), self.desk.on_query),
        ]
        held: list[Subscription] = []
        try:
            while wanted and not stop.is_set():
                queue, handler = wanted[0]
                try:
                    held.append(await self._bus.subscribe(queue, handler))
                    wanted.pop(0)
                except RetryLater as error:
                    log.warning("queue_not_there", queue=queue.name, error=str(error))
                    await self._rest(RETRY_S)
            self.taking.set()
            await stop.wait()
        finally:
            for subscription in held:
                with contextlib.suppress(RetryLater):
                    await subscription.cancel()

    async def _read_index(self) -> None:
        await self.desk.read_index()
        if not self._index_read:
            self._index_read = True
            self._indexed.set()

    async def _keep(self) -> None:
        """Nothing is kept or removed before it is known which jobs there are.

        Without the broker another monitor may have the queries, and be in charge; what was heard until then is kept.
        """
        connected = self._bus.connected
        if self._index_read:
            in_charge = self.taking.is_set() and (connected or self._connected)
            await self.desk.histories.keep(in_charge=in_charge)
        self._connected = connected

    async def _keep_at_the_end(self) -> None:
        try:
            async with asyncio.timeout(LAST_KEEP_S):
                await self._keep()
        except (RetryLater, TimeoutError) as error:
            log.warning("history_not_kept", error=str(error) or "not in time")

    async def _read_missing(self) -> None:
        try:
            await self.desk.read_missing()
        except RetryLater:
            await self._rest(RETRY_S)
            raise
        await self._rest(REST_S)

    async def _rest(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stop.wait()

    async def _check(self) -> None:
        """Look after what goes silently: the store, the broker's return, members that left."""
        self.desk.state.members.forget(self._clock.monotonic())
        had_problem = self.desk.store_problem is not None
        await self.desk.check_broker()
        await self.desk.check_store()
        reconnects, self._reconnects = self._reconnects, self._bus.stats.reconnects
        if reconnects != self._reconnects or (had_problem and self.desk.store_problem is None):
            self._doubtful = 2
        if (
            self._doubtful
        ):  # events may have been lost, also after this until the queues are there again
            self._doubtful -= 1
            self._reread.set()


class _Server(uvicorn.Server):
    """Leaves signals to the runtime, and says when it answers."""

    def __init__(self, config: uvicorn.Config, ready: asyncio.Event) -> None:
        super().__init__(config)
        self._ready = ready

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Nothing: the runtime handles them."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As in uvicorn, then say so."""
        await super().startup(sockets)
        self._ready.set()


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; `SetupError` says what to do when it cannot be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise SetupError(
            f"ELPS_HOST {host!r} is no address of this machine ({error.strerror or error})"
        ) from None
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(128)
        listening.setblocking(False)
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRINUSE:
            raise SetupError(
                f"port {port} on {host} is taken by another program: end it, or set ELPS_MONITOR_PORT to another port "
                "(0 takes any free one)"
            ) from None
        what = {
            errno.EACCES: f"port {port} is not open to this user: set ELPS_MONITOR_PORT to one above 1023",
            errno.EADDRNOTAVAIL: f"ELPS_HOST {host!r} is no address of this machine",
        }.get(error.errno or 0, f"cannot listen on {host} port {port}: {error.strerror}")
        raise SetupError(what) from None
    return listening


def create(context: Context) -> Monitor:
    """The monitor; its settings are read here. Raises `SetupError`."""
    return Monitor(context)
