"""The start and the orderly end of a service process.

def main() -> None:
    run("scheduler", create)
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Annotated, NoReturn, TypeVar

import msgspec
import structlog

from elps.contracts.errors import ElpsError, SetupError
from elps.messaging.amqp import AmqpBus
from elps.messaging.port import Bus
from elps.runtime.alive import keep_alive
from elps.runtime.logs import LEVELS, configure
from elps.runtime.service import Context, Service
from elps.runtime.settings import Secret, read
from elps.storage.port import Store
from elps.storage.redis import RedisStore

log = structlog.get_logger(__name__)
T = TypeVar("T")

Create = Callable[[Context], Service]

EXIT_FAILED, EXIT_SETUP = 1, 2
ANNOUNCE_S = 3.0
"""How often a start that waits says for whom."""


class Connections(msgspec.Struct, frozen=True, kw_only=True):
    """What every service process reads first."""

    amqp_url: Secret = Secret("amqp://guest:guest@127.0.0.1:5672/")
    redis_url: Secret = Secret("redis://127.0.0.1:6379/0")
    start_s: Annotated[float, msgspec.Meta(gt=0, le=86_400)] = 60.0
    """How long to wait for the broker and the store at the start, s."""
    log_level: str = "INFO"
    alive_file: Path | None = None
    """Touched every few seconds while the process works, for a supervisor's health check."""

    def __post_init__(self) -> None:
        if self.log_level.upper() not in LEVELS:
            raise ValueError(
                f"ELPS_LOG_LEVEL: {self.log_level!r} is not one of {', '.join(LEVELS)}"
            )


def run(name: str, create: Create, env: Mapping[str, str] | None = None) -> NoReturn:
    """Run a service as this process and exit: 0 after an orderly end, 2 for a fault of the set-up, 1 for any other.

    SIGTERM and SIGINT ask for the orderly end; a second one ends the process at once.
    """
    configure(name)
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_serve(name, create, os.environ if env is None else env))
    except SetupError as error:
        _end(name, str(error), EXIT_SETUP)
    except ElpsError as error:
        _end(name, str(error), EXIT_FAILED)
    except BaseException as error:
        log.exception("service_failed", service=name)
        _end(name, f"{type(error).__name__}: {error}", EXIT_FAILED)
    sys.exit(0)


async def serve(context: Context, create: Create, stop: asyncio.Event) -> None:
    """Make a service and run it until `stop`; what `elps run` does with each of them in one process."""
    await create(context).run(stop)


async def _serve(name: str, create: Create, env: Mapping[str, str]) -> None:
    stop = asyncio.Event()
    _obey_signals(stop)
    settings = read(Connections, env)
    configure(name, settings.log_level)
    log.info("service_starting", service=name, pid=os.getpid())
    bus: Bus | None = None
    store: Store | None = None
    alive = asyncio.ensure_future(keep_alive(file)) if (file := settings.alive_file) else None
    try:
        store = await _unless_stopped(
            stop,
            _announced(
                "store",
                settings.redis_url,
                RedisStore.connect(settings.redis_url.reveal(), timeout_s=settings.start_s),
            ),
        )
        if store is None:
            return
        if problems := await store.check():
            raise SetupError(f"store at {settings.redis_url}: " + "; ".join(problems))
        bus = await _unless_stopped(
            stop,
            _announced(
                "broker",
                settings.amqp_url,
                AmqpBus.connect(settings.amqp_url.reveal(), name=name, timeout_s=settings.start_s),
            ),
        )
        if bus is None:
            return
        service = create(Context(bus=bus, store=store, env=env))
        log.info("service_started", service=name)
        await service.run(stop)
        log.info("service_stopped", service=name)
    finally:
        if alive is not None:
            alive.cancel()
        if bus is not None:
            await bus.close()
        if store is not None:
            await store.close()


async def _announced(what: str, url: Secret, connecting: Awaitable[T]) -> T:
    """Await a connection and say every few seconds whom one waits for."""
    task = asyncio.ensure_future(connecting)
    try:
        while True:
            done, _ = await asyncio.wait((task,), timeout=ANNOUNCE_S)
            if done:
                return task.result()
            log.warning("waiting_for", what=what, url=str(url))
    finally:
        task.cancel()


async def _unless_stopped(stop: asyncio.Event, work: Awaitable[T]) -> T | None:
    """The result of `work`, or None when `stop` was set first."""
    task, stopped = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((task, stopped), return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        stopped.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait((task,))


def _obey_signals(stop: asyncio.Event) -> None:
    def asked(number: signal.Signals) -> None:
        if stop.is_set():
            os._exit(128 + number)
        log.info("stopping", signal=number.name)
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked, number)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Uvloop where it is installed, else asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def _end(name: str, text: str, code: int) -> NoReturn:
    sys.stderr.write(f"elps {name}: {text}\n")
    sys.stderr.flush()
    sys.exit(code)
