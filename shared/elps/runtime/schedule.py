"""Work that repeats: heartbeats, look-ups, timers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from elps.contracts.errors import RetryLater

log = structlog.get_logger(__name__)


async def every(
    interval_s: float,
    act: Callable[[], Awaitable[None]],
    stop: asyncio.Event,
    *,
    nudge: asyncio.Event | None = None,
    timeout_s: float | None = None,
    wait_first: bool = False,
) -> None:
    """Call `act` now, then each `interval_s` seconds and at once whenever `nudge` is set, until `stop` is set.

    With `wait_first` the first call comes like a later one.

    Calls never overlap. `RetryLater` and the time-out (default: ten intervals) are logged, and the next call comes as
    usual; any other error ends the loop and is raised.
    """
    bound_s = 10 * interval_s if timeout_s is None else timeout_s
    if wait_first:
        await _first_of(interval_s, stop, nudge)
    while not stop.is_set():
        if nudge is not None:
            nudge.clear()  # before the call: a change during it is told by the next one
        try:
            async with asyncio.timeout(bound_s):
                await act()
        except RetryLater as error:
            log.warning(
                "repeated_work_failed",
                act=getattr(act, "__qualname__", repr(act)),
                error=str(error),
            )
        except TimeoutError:
            log.warning(
                "repeated_work_late", act=getattr(act, "__qualname__", repr(act)), timeout_s=bound_s
            )
        await _first_of(interval_s, stop, nudge)


async def _first_of(timeout_s: float, *events: asyncio.Event | None) -> None:
    """Wait until one of the events is set, for `timeout_s` at most."""
    waits = [asyncio.ensure_future(event.wait()) for event in events if event is not None]
    try:
        await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
