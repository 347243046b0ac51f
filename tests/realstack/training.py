"""Jobs on a real stack as their user sees them, and what they must come to in the end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import reference
from realstack.site import TASKS, Site

from elps.client.control import Client
from elps.client.following import Following
from elps.contracts import topology
from elps.contracts.codec import decode, parse_job
from elps.contracts.errors import ElpsError, RetryLater
from elps.contracts.ids import JobId
from elps.contracts.job import JobDocument
from elps.contracts.messages import JobEvent
from elps.contracts.requests import Reply
from elps.contracts.state import JobRecord, JobState
from elps.contracts.telemetry import IterationRow
from elps.messaging.amqp import AmqpBus
from elps.storage import checkpoints
from elps.storage.checkpoints import Manifest
from elps.storage.port import Store
from elps.storage.redis import RedisStore
from elps.stream.geometry import Geometry

TOLERANCE = {"float32": 1e-5, "float64": 1e-12}
LONG_S = 60.0
"""Nothing that a test waits for takes a tenth of it on an idle machine."""
ANSWER_S = 20.0
LOOK_S = 0.2
"""The record in the store is looked at so often: events can be lost."""
SOON_S = 0.01
PLAIN = {"pace_s": 0.0, "hold": ""}
"""Arguments of the task that change how long it takes and not what it gives."""


class Training:
    """One job; made by `Operator.submit`."""

    def __init__(self, document: JobDocument, store: Store, following: Following) -> None:
        assert document.id is not None
        self.document, self.id = document, JobId(document.id)
        self.events: list[JobEvent] = []
        self.rows: list[IterationRow] = []
        self._store, self._following = store, following
        self._told = asyncio.Event()
        self._reader: asyncio.Task[None] | None = None

    async def follow(self) -> None:
        await self._following.__aenter__()
        self._reader = asyncio.create_task(self._read())

    async def close(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.wait([self._reader])
        await self._following.__aexit__(None, None, None)

    async def _read(self) -> None:
        async for item in self._following:
            if isinstance(item, JobEvent):
                self.events.append(item)
            elif isinstance(item, IterationRow):
                self.rows.append(item)
            self._told.set()

    # --- waiting ------------------------------------------------------------------------------------------------------

    async def until(
        self, condition: Callable[[], bool], what: str, timeout_s: float = LONG_S
    ) -> None:
        """Wait until what was told fulfils a condition."""
        try:
            async with asyncio.timeout(timeout_s):
                while not condition():
                    self._told.clear()
                    await self._told.wait()
        except TimeoutError:
            raise AssertionError(
                f"no {what} within {timeout_s:g} s; {await self.story()}"
            ) from None

    async def until_stored(
        self, condition: Callable[[JobRecord], bool], what: str, timeout_s: float = LONG_S
    ) -> JobRecord:
        """Wait until the job's record is there and fulfils a condition; the store may be away meanwhile."""
        record: JobRecord | None = None
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    try:
                        record = await self.find()
                        if record is not None and condition(record):
                            return record
                    except RetryLater:
                        pass
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            raise AssertionError(
                f"no {what} within {timeout_s:g} s; {await self.story()}"
            ) from None

    async def event(self, what: str, count: int = 1, timeout_s: float = LONG_S) -> JobEvent:
        """Wait for the `count`-th event of a kind."""
        await self.until(
            lambda: len(self.told(what)) >= count, f"{what} event ({count})", timeout_s
        )
        return self.told(what)[count - 1]

    async def rises(self, iterations: int, timeout_s: float = LONG_S) -> None:
        """Wait for so many more finished iterations."""
        seen = len(self.rows)
        await self.until(
            lambda: len(self.rows) >= seen + iterations,
            f"progress by {iterations} iterations",
            timeout_s,
        )

    async def reaches(self, iteration: int, timeout_s: float = LONG_S) -> None:
        """Wait until so many iterations are done."""
        await self.until(
            lambda: any(row.iteration + 1 >= iteration for row in self.rows),
            f"iteration {iteration}",
            timeout_s,
        )

    async def in_state(self, state: JobState, timeout_s: float = LONG_S) -> JobRecord:
        """Wait until the record shows a state; a job that ends otherwise is told at once."""
        record = await self.until_stored(
            lambda r: r.state is state or r.state.ended, state.value, timeout_s
        )
        assert record.state is state, await self.story()
        return record

    # --- looking ------------------------------------------------------------------------------------------------------

    def told(self, what: str) -> list[JobEvent]:
        return [event for event in self.events if event.what == what]

    @property
    def newest(self) -> int:
        """The newest iteration heard of; -1 before the first."""
        return max((row.iteration for row in self.rows), default=-1)

    async def find(self) -> JobRecord | None:
        """Its record; None while there is none."""
        body = await self._store.hash_get(topology.JOB_INDEX, self.id)
        return None if body is None else decode(body, JobRecord)

    async def record(self) -> JobRecord:
        record = await self.find()
        assert record is not None, f"{self.id} has no record"
        return record

    async def manifest(self) -> Manifest | None:
        """The newest checkpoint."""
        return await checkpoints.newest(self._store, self.id)

    async def saved(self, iteration: int, timeout_s: float = LONG_S) -> None:
        """Wait until a checkpoint of this iteration or a later one is in the store."""
        async with asyncio.timeout(timeout_s):
            while True:
                newest = await self.manifest()
                if newest is not None and newest.iteration >= iteration:
                    return
                await asyncio.sleep(LOOK_S)

    async def story(self) -> str:
        """What happened, for failures."""
        told = "\n  ".join(
            f"{e.what}@{e.iteration} {e.worker or ''} {e.reason[:200]}" for e in self.events[-25:]
        )
        try:
            record = await self.record()
            now = f"{record.state.value} ({record.reason}), {record.progress}, term {record.terms}"
        except RetryLater as error:
            now = str(error)
        return f"job {self.id}: {now}; row {self.newest}; events:\n  {told}"

    # --- the end ------------------------------------------------------------------------------------------------------

    async def equals_the_plain_loop(self, timeout_s: float = LONG_S) -> JobRecord:
        """Wait for success and compare the final parameters and metrics with the plain loop's."""
        record = await self.in_state(JobState.FINISHED, timeout_s)
        expected = await asyncio.to_thread(plain_loop, self.document)
        manifest = await self.manifest()
        assert manifest is not None, f"{self.id} left no checkpoint"
        assert record.progress.iteration == manifest.iteration == expected.iterations
        stream = Geometry(manifest.samples, manifest.batch)
        assert record.progress.samples == stream.iteration(expected.iterations).lo
        got = np.concatenate(
            [v.ravel() for v in (await checkpoints.load_values(self._store, manifest)).values()]
        )
        bound = TOLERANCE[self.document.dtype]
        np.testing.assert_allclose(got, expected.flat(), rtol=bound, atol=bound)
        final = expected.evaluations.get(expected.iterations)
        if final is not None:
            shown = record.progress.metrics
            assert record.progress.metrics_iteration == expected.iterations
            for name, value in final.items():
                np.testing.assert_allclose(shown[name], value, rtol=bound, atol=bound)
        return record


def plain_loop(document: JobDocument) -> reference.Reference:
    """The same job in one process."""
    args = {k: v for k, v in document.task_args.items() if k not in PLAIN}
    document = msgspec.structs.replace(document, task_args=args)
    return reference.run(document, {"ELPS_TASK_PATH": str(TASKS)})


async def eventually(condition: Callable[[], bool], what: str, timeout_s: float = LONG_S) -> None:
    """Wait for what nobody tells."""
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                if condition():
                    return
                await asyncio.sleep(SOON_S)
    except TimeoutError:
        raise AssertionError(f"no {what} within {timeout_s:g} s") from None


class Operator:
    """Submits jobs to a stack and follows them; made by `operating`."""

    def __init__(self, site: Site, bus: AmqpBus, store: RedisStore) -> None:
        self.site, self.bus, self.store = site, bus, store
        self.client = Client(bus, timeout_s=ANSWER_S)
        self._trainings: list[Training] = []

    def document(self, name: str = "job", **fields: Any) -> JobDocument:
        """A job of some seconds. Fields replace those here; `task_args` are added."""
        args = {"pace_s": 0.03, **fields.pop("task_args", {})}
        shown: dict[str, Any] = {
            "id": self.site.new_id(name),
            "task": "paced:Paced",
            "task_args": args,
            "optimizer": {"name": "adam", "lr": 0.02},
            "batch": {"global": 48},
            "iterations": 120,
            "dtype": "float64",
            "workers": {"min": 1, "max": 2},
            "shards": {"min": 1, "max": 2},
            "evaluate": {"every": 50},
            "checkpoint": {"every": 20, "every_s": 0},
            "limits": {"floor_s": 3.0},
        }
        return parse_job(shown | fields)

    async def submit(self, document: JobDocument | None = None, **fields: Any) -> Training:
        """Hand in a job and follow it from the start."""
        document = document or self.document(**fields)
        training = await self.following(document)
        reply = await self.client.submit(document)
        assert reply.ok, reply
        return training

    async def following(self, document: JobDocument) -> Training:
        """A job that is followed from before it is handed in."""
        training = self.again(document)
        await training.follow()
        self._trainings.append(training)
        return training

    async def ask(self, what: str, training: Training) -> Reply:
        """Kill, pause or resume a job; the answer must be a yes."""
        reply: Reply = await getattr(self.client, what)(training.id, "asked by the test")
        assert reply.ok, reply
        return reply

    def again(self, document: JobDocument) -> Training:
        """A job that was submitted before, not followed."""
        return Training(document, self.store, self.client.follow(str(document.id)))

    async def kill_all(self) -> None:
        """Kill what a failed test leaves behind, so that it takes nothing from the next one."""
        for training in self._trainings:
            with contextlib.suppress(ElpsError, AssertionError):
                if not (await training.record()).state.ended:
                    await self.client.kill(training.id)

    async def close(self) -> None:
        for training in self._trainings:
            await training.close()
        await self.bus.close()
        await self.store.close()


@asynccontextmanager
async def operating(site: Site) -> AsyncIterator[Operator]:
    """Connections to a stack; they outlive its servers' restarts."""
    record = site.record
    bus = await AmqpBus.connect(record.amqp_url, name="test", timeout_s=20.0)
    operator = Operator(site, bus, await RedisStore.connect(record.redis_url, timeout_s=20.0))
    try:
        yield operator
    finally:
        await operator.close()


class Hold:
    """A place at which one trainer stops in the middle of an iteration."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder

    @property
    def args(self) -> dict[str, str]:
        """For `task_args`."""
        return {"hold": str(self.folder)}

    async def catch(self) -> int:
        """Stop whoever computes next; returns its process id."""
        (self.folder / "arm").touch()
        await eventually(lambda: not (self.folder / "arm").exists(), "trainer at the hold")
        [mine] = [p for p in self.folder.iterdir() if p.name.isdigit()]
        return int(mine.name)

    def release(self) -> None:
        """Let it go on."""
        for path in self.folder.iterdir():
            path.unlink()
