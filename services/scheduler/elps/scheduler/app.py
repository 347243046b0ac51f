"""The scheduler as a service: it stands by until it is in charge, and then serves."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from contextlib import suppress

import structlog

from elps.contracts import topology
from elps.contracts.codec import encode
from elps.contracts.errors import RetryLater, Superseded
from elps.contracts.ids import JobId
from elps.contracts.state import JobRecord
from elps.runtime.schedule import every
from elps.runtime.service import Context
from elps.runtime.settings import read
from elps.scheduler.charge import InCharge
from elps.scheduler.core.tenure import Past
from elps.scheduler.serving import Serving, beat
from elps.scheduler.settings import Settings

log = structlog.get_logger(__name__)


class Scheduler:
    """Made by `create`, run once."""

    def __init__(self, context: Context, settings: Settings) -> None:
        self._context, self._settings = context, settings
        self._seq = 0
        self.serving: Serving | None = None  #: while it is in charge
        self._kept: Mapping[JobId, JobRecord] = {}  #: all, as it knew them when it was in charge

    async def run(self, stop: asyncio.Event) -> None:
        """Stand by and serve, in turn if need be, until `stop` is set."""
        past = Past()
        while not stop.is_set():
            context = self._context
            in_charge = InCharge(context.store, context.bus, context.clock, past)
            try:
                if await self._stand_by(in_charge, stop):
                    await self._serve(in_charge, stop)
            except Superseded as error:
                log.warning("superseded", reason=str(error))
            await in_charge.leave()

    async def _stand_by(self, in_charge: InCharge, stop: asyncio.Event) -> bool:
        """Wait for the time in which this one is in charge; False if it is asked to end before."""
        id_, done = uuid.uuid4().hex, asyncio.Event()
        coming = asyncio.create_task(in_charge.come(), name="stand by")
        stopped = asyncio.create_task(stop.wait(), name="stop")

        async def say() -> None:
            await self._say_standing_by(id_, leaving=False)

        saying = asyncio.create_task(
            every(self._settings.beat_s, say, done, wait_first=True), name="beat"
        )
        try:
            await asyncio.wait((coming, stopped), return_when=asyncio.FIRST_COMPLETED)
            if coming.done():
                coming.result()
            return coming.done()
        finally:
            done.set()
            for task in (coming, stopped):
                task.cancel()
            await asyncio.wait((coming, stopped, saying))
            if self._seq:
                with suppress(RetryLater):
                    await self._say_standing_by(id_, leaving=True)
                self._seq = 0

    async def _serve(self, in_charge: InCharge, stop: asyncio.Event) -> None:
        kept = self._kept if in_charge.resumes else {}
        serving = self.serving = Serving(self._context, self._settings, in_charge, kept)
        task = asyncio.create_task(_unwrapped(serving, in_charge, stop), name="scheduler")
        stopped = asyncio.create_task(stop.wait(), name="stop")
        try:
            await asyncio.wait((task, stopped), return_when=asyncio.FIRST_COMPLETED)
            await serving.close()
        finally:  # also when cancelled: nothing of it must go on beside the next scheduler
            stopped.cancel()
            task.cancel()
            await asyncio.wait((task,))
            self.serving, self._kept = None, serving.records
        if not task.cancelled():
            task.result()

    async def _say_standing_by(self, incarnation: str, *, leaving: bool) -> None:
        self._seq += 1
        at = self._context.clock.time()
        message = beat(incarnation, self._seq, None, {}, at=at, leaving=leaving)
        await self._context.bus.publish(
            topology.MEMBERS, topology.SCHEDULER_BEAT, encode(message), confirm=False
        )


async def _unwrapped(serving: Serving, in_charge: InCharge, stop: asyncio.Event) -> None:
    """Serve while in charge; that another one is now is told by its own name."""
    try:
        async with asyncio.TaskGroup() as tasks:
            keeping = tasks.create_task(in_charge.keep(), name="keep in charge")
            await serving.run(stop)
            keeping.cancel()
    except BaseExceptionGroup as group:
        if group.split(Superseded)[1] is not None:
            raise
        in_charge.check()
        raise


def create(context: Context) -> Scheduler:
    """The service, with its settings read from the environment."""
    return Scheduler(context, read(Settings, context.env))
