"""One job as a test sees it: what was told of it so far, and bounded waits for what is to come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elps.client.following import Following
from elps.contracts import topology
from elps.contracts.codec import decode
from elps.contracts.ids import JobId
from elps.contracts.job import JobDocument
from elps.contracts.messages import JobEvent
from elps.contracts.state import JobRecord, JobState
from elps.contracts.telemetry import IterationRow, LogLines
from elps.storage import checkpoints
from elps.storage.checkpoints import Manifest
from elps.storage.port import Store

LONG_S = 40.0
"""Nothing that a test waits for takes a tenth of it on an idle machine."""


class Job:
    """Made by `Cluster.submit`."""

    def __init__(self, document: JobDocument, store: Store, following: Following) -> None:
        assert document.id is not None
        self.document, self.id = document, JobId(document.id)
        self.events: list[JobEvent] = []
        self.rows: list[IterationRow] = []
        self.lines: list[str] = []
        self._store, self._following = store, following
        self._told = asyncio.Condition()
        self._reader: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._following.__aenter__()
        self._reader = asyncio.create_task(self._read())

    async def close(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.wait([self._reader])
        await self._following.__aexit__(None, None, None)

    async def _read(self) -> None:
        async for item in self._following:
            async with self._told:
                if isinstance(item, JobEvent):
                    self.events.append(item)
                elif isinstance(item, LogLines):
                    self.lines += item.lines
                else:
                    self.rows.append(item)
                self._told.notify_all()

    # --- waiting ------------------------------------------------------------------------------------------------------

    async def until(
        self, condition: Callable[[], bool], what: str, timeout_s: float = LONG_S
    ) -> None:
        """Wait until what was told fulfils a condition."""
        try:
            async with asyncio.timeout(timeout_s):
                async with self._told:
                    await self._told.wait_for(condition)
        except TimeoutError:
            raise AssertionError(f"{self.id}: no {what} in {timeout_s:g} s; {self}") from None

    async def event(self, what: str, count: int = 1, timeout_s: float = LONG_S) -> JobEvent:
        """Wait for the `count`-th event of a kind."""
        await self.until(
            lambda: len(self.told(what)) >= count, f"{what} event ({count})", timeout_s
        )
        return self.told(what)[count - 1]

    async def iteration(self, number: int, timeout_s: float = LONG_S) -> None:
        """Wait until so many iterations are done."""
        await self.until(
            lambda: any(r.iteration + 1 >= number for r in self.rows),
            f"iteration {number}",
            timeout_s,
        )

    async def paused(self, count: int = 1) -> None:
        """Wait until it has been paused so many times."""
        await self.until(lambda: self.states.count(JobState.PAUSED) >= count, f"pause {count}")

    async def ended(self, state: JobState, timeout_s: float = LONG_S) -> JobRecord:
        """Wait for the end, which must be this one."""
        await self.until(lambda: self.states[-1:] != [] and self.states[-1].ended, "end", timeout_s)
        record = await self.record()
        assert record.state is state, self
        return record

    async def finished(self, timeout_s: float = LONG_S) -> JobRecord:
        """Wait for success, and for the rows and events, which may come a moment later."""
        record = await self.ended(JobState.FINISHED, timeout_s)
        await self.iteration(record.progress.iteration)
        return record

    async def failed(self, timeout_s: float = LONG_S) -> str:
        """Wait for failure; returns the reason."""
        return (await self.ended(JobState.FAILED, timeout_s)).reason

    # --- looking ------------------------------------------------------------------------------------------------------

    def told(self, what: str) -> list[JobEvent]:
        """Events of a kind."""
        return [event for event in self.events if event.what == what]

    @property
    def states(self) -> list[JobState]:
        """The states that it went through."""
        return [event.state for event in self.events if event.state is not None]

    async def record(self) -> JobRecord:
        body = await self._store.hash_get(topology.JOB_INDEX, self.id)
        assert body is not None
        return decode(body, JobRecord)

    async def manifest(self) -> Manifest:
        """The newest checkpoint."""
        manifest = await checkpoints.newest(self._store, self.id)
        assert manifest is not None, f"{self.id} has no checkpoint"
        return manifest

    async def values(self) -> dict[str, NDArray[Any]]:
        """The parameters in the newest checkpoint."""
        return await checkpoints.load_values(self._store, await self.manifest())

    async def flat(self) -> NDArray[Any]:
        """The same as one vector."""
        return np.concatenate([v.ravel() for v in (await self.values()).values()])

    def losses(self) -> list[float | None]:
        """Loss of each iteration, of the last time that it was done."""
        return [row.loss for _, row in sorted({r.iteration: r for r in self.rows}.items())]

    def __str__(self) -> str:
        told = "; ".join(
            f"{e.what}@{e.iteration} {e.worker or ''} {e.reason[:160]}" for e in self.events[-12:]
        )
        rows = f"{len(self.rows)} rows, the last of {self.rows[-1].iteration if self.rows else '-'}"
        return f"job {self.id}: {told}; {rows}; printed: {self.lines[-5:]}"
