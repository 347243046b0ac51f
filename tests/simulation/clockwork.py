"""Virtual time: an event loop that never waits, and processes that exist only in it.

When nothing is ready the clock jumps to the next timer. Everything that happens in a run, whatever process it belongs
to, is a callback of this one loop, in an order that follows from the seed alone.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simulation.threads import Thread

START_S = 1_000.0
"""Of the virtual clock, so that nobody takes a time for a duration."""
UNIX_S = 1_700_000_000.0
JITTER_S = 1e-3
"""Timers are late by up to this."""


class Standstill(Exception):
    """Nothing is ready and no timer is set: whoever waits would wait for ever."""


class Ordered(asyncio.Task[Any]):
    """A task that sets keep in the order of its number: their order must not depend on addresses in memory."""

    number = 0

    def __hash__(self) -> int:
        return self.number


class _NoSelector:
    """In place of a selector: there are no descriptors, and nobody waits."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise Standstill("nothing is ready and no timer is set")
        self._loop.now += timeout
        return []

    def close(self) -> None:
        """As a selector."""


class VirtualLoop(asyncio.BaseEventLoop):
    """`now` is monotonic virtual time in seconds."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.rng = rng
        self.now = START_S
        self._selector = _NoSelector(self)
        self._clock_resolution = 1e-9
        self._made = 0
        self.set_task_factory(self._make_task)
        self.connect: Callable[[str, int], Coroutine[Any, Any, bool]] | None = None

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any], **named: Any
    ) -> Ordered:
        task = Ordered(coro, loop=loop, **named)
        self._made += 1
        task.number = self._made
        process = PROCESS.get()
        if process is not None:
            process.tasks[task] = None
            task.add_done_callback(lambda task: process.tasks.pop(task, None))
        return task

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> Any:
        late = self.rng.random() * JITTER_S
        return super().call_at(when + late, callback, *args, context=context)

    def call_exactly_at(self, when: float, callback: Any, *args: Any) -> Any:
        """Of two for the same time the first comes first, which jitter would not keep to."""
        return super().call_at(when, callback, *args)

    def _process_events(self, event_list: list[Any]) -> None:
        assert not event_list

    def _write_to_self(self) -> None:
        """Nobody sleeps who would have to be woken."""

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:
        """At once: what services do in executors is quick and waits for nobody."""
        future = self.create_future()
        future.set_result(func(*args))
        return future

    async def create_connection(self, factory: Any, host: Any = None, port: Any = None) -> Any:  # type: ignore[override]
        """For probes only: whether somebody listens."""
        assert self.connect is not None
        if not await self.connect(host, port):
            raise ConnectionRefusedError(f"nobody listens at {host}:{port}")
        return _Hollow(), factory()


class _Hollow(asyncio.Transport):
    """A connection over which nothing is said."""

    def close(self) -> None:
        """As a transport."""

    def is_closing(self) -> bool:
        return True


class Process:
    """What dies together. `host` is the address of its machine, `place` the name of what is cut off with it."""

    def __init__(self, name: str, host: str, place: str = "") -> None:
        self.name, self.host, self.place = name, host, place or name
        self.dead = False
        self.tasks: dict[asyncio.Task[Any], None] = {}
        self.threads: list[Thread] = []
        self.main: Thread | None = None  #: of a trainer
        self.handlers: dict[int, Callable[..., object]] = {}  #: of its signals
        self.at_death: list[Callable[[], None]] = []  #: its sockets and its connection to the bus

    def run_in(self, call: Callable[..., Any], *args: Any) -> Any:
        """Call it as a part of this process, and all that comes of it."""
        context = contextvars.Context()
        context.run(PROCESS.set, self)
        return context.run(call, *args)

    def kill(self) -> None:
        """As kill -9: nobody outside hears of it but by its connections."""
        if self.dead:
            return
        self.dead = True
        for act in list(self.at_death):
            act()
        for thread in list(self.threads):
            thread.kill()
        for task in list(self.tasks):
            task.cancel()


PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)
"""The one that runs now."""


def current() -> Process:
    """The process that runs now."""
    process = PROCESS.get()
    assert process is not None, "this belongs to no process"
    return process
