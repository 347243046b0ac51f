"""Work that repeats."""

from __future__ import annotations

import asyncio

import pytest

from elps.contracts.errors import RetryLater
from elps.runtime.schedule import every

BOUND_S = 5.0
NEVER_S = 3600.0


class Beats:
    """Counts calls; `after` are what the first calls raise."""

    def __init__(self, stop: asyncio.Event, last: int, *after: Exception) -> None:
        self.calls = 0
        self.called = asyncio.Event()
        self._stop, self._last, self._after = stop, last, list(after)

    async def __call__(self) -> None:
        self.calls += 1
        self.called.set()
        if self.calls == self._last:
            self._stop.set()
        if self._after:
            raise self._after.pop(0)


async def test_it_acts_at_once_and_then_each_interval_until_stopped() -> None:
    stop = asyncio.Event()
    beats = Beats(stop, 5)
    async with asyncio.timeout(BOUND_S):
        await every(0.001, beats, stop)
    assert beats.calls == 5


async def test_a_nudge_brings_the_next_call_forward() -> None:
    stop, nudge = asyncio.Event(), asyncio.Event()
    beats = Beats(stop, 3)
    async with asyncio.timeout(BOUND_S):
        task = asyncio.create_task(every(NEVER_S, beats, stop, nudge=nudge))
        for calls in (1, 2):
            await beats.called.wait()
            beats.called.clear()
            assert beats.calls == calls
            nudge.set()
        await task
    assert beats.calls == 3


async def test_stopping_ends_the_wait_between_calls() -> None:
    stop = asyncio.Event()
    beats = Beats(stop, -1)
    task = asyncio.create_task(every(NEVER_S, beats, stop))
    await asyncio.sleep(0)
    stop.set()
    async with asyncio.timeout(BOUND_S):
        await task
    assert beats.calls == 1


async def test_a_peer_that_is_away_does_not_end_it() -> None:
    stop = asyncio.Event()
    beats = Beats(stop, 3, RetryLater("away"), RetryLater("away"))
    async with asyncio.timeout(BOUND_S):
        await every(0.001, beats, stop)
    assert beats.calls == 3


async def test_any_other_error_ends_it() -> None:
    stop = asyncio.Event()
    with pytest.raises(RuntimeError, match="broken"):
        await every(0.001, Beats(stop, 3, RuntimeError("broken")), stop)


async def test_a_call_that_hangs_is_ended_at_its_bound() -> None:
    stop, calls = asyncio.Event(), 0

    async def hangs() -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            stop.set()
        await asyncio.Event().wait()

    async with asyncio.timeout(BOUND_S):
        await every(0.001, hangs, stop, timeout_s=0.01)
    assert calls == 2
