"""The shard service: commands in, beats, events and rows out; the rest is done by data threads."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import secrets
import socket
import sys
from typing import Any

import structlog

from elps.contracts.codec import encode
from elps.contracts.errors import InvalidDocument, RetryLater
from elps.contracts.ids import JobId, ShardId
from elps.contracts.messages import (
    BatchPlan,
    DirectJob,
    DropJob,
    HostJob,
    ShardBeat,
)
from elps.contracts.topology import (
    COMMANDS,
    EVENTS,
    MEMBERS,
    SHARD_BEAT,
    TELEMETRY,
    command_queue,
    event_key,
    telemetry_key,
)
from elps.messaging.memory import MemoryBus
from elps.messaging.port import Delivery, Queue
from elps.optim import warm_up
from elps.psshard.bridge import Bridge
from elps.psshard.core.backlog import bodies, by_job
from elps.psshard.core.pacing import Pace
from elps.psshard.hosting import Hosting
from elps.psshard.intake import read_order
from elps.psshard.listener import Listener
from elps.psshard.settings import Addresses, Settings, addresses, drawn_id, own_address
from elps.runtime.emulating import SHARDS, Machine, opened, slowdown_for
from elps.runtime.obeying import Obedience
from elps.runtime.processes import rss_bytes
from elps.runtime.service import Context
from elps.runtime.settings import read

ROWS_S = 0.1
"""Rows go out at most this often: those of short iterations together, since publishing keeps data threads waiting."""
BALANCED_ROWS_S = 0.02
"""The same for jobs whose batches follow the timings in them."""
DRAIN_LOOK_S = 0.05
LAST_WORD_S = 2.0
"""How long a shard that leaves tries to send what its jobs have told."""
SWITCH_S = 0.001
"""Threads hand the interpreter over this often: a data thread must not wait 5 ms for the event loop."""

log = structlog.get_logger()


class ShardService:
    """One shard process."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._settings = read(Settings, context.env)
        self.id = ShardId(self._settings.shard_id or drawn_id())
        slowdown = slowdown_for(self.id, self._settings.shard_slowdown, SHARDS)
        self._machine = Machine(opened(slowdown, SHARDS))
        self._incarnation = secrets.token_hex(8)
        self._seq = 0
        self._obedience = Obedience()
        self._leaving = False  #: asked to end; every beat says so
        self._unheard = False  #: the broker took nothing the last time
        self._speaks = True  #: rows and events may still come
        self._data_host = ""  #: where others reach it; known before the first beat

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until `stop`, and then until the scheduler has had the jobs checkpointed and taken away."""
        sys.setswitchinterval(SWITCH_S)
        loop = asyncio.get_running_loop()
        listen, self._data_host = await self._addresses()
        bridge = Bridge(self._context.store, loop)
        hosting = Hosting(self.id, bridge, self._machine)
        listener = Listener(
            listen,
            self._settings.data_port,
            hosting.secret_of,
            hosting.check,
            hosting.serve,
        )
        warming = [loop.run_in_executor(None, warm_up, dtype) for dtype in ("float32", "float64")]
        queue = Queue(
            name=command_queue(self.id), bindings=((COMMANDS, self.id),), max_length=10_000
        )
        try:
            subscription = await self._context.bus.subscribe(
                queue, lambda delivery: self._command(delivery, hosting)
            )
            await asyncio.gather(*warming)
            log.info("shard_ready", shard=self.id, host=self._data_host, port=listener.port)
            async with asyncio.TaskGroup() as tasks:
                speaking = tasks.create_task(self._speak(bridge, hosting, listener.port))
                await stop.wait()
                self._leaving = True
                bridge.beat()
                await self._drained(hosting)
                self._speaks = False
                bridge.beat()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LAST_WORD_S):
                        await asyncio.shield(speaking)
                speaking.cancel()
            await subscription.cancel()
        finally:
            self._leaving = True
            hosting.close("the shard is leaving")
            listener.close()
            with contextlib.suppress(RetryLater):
                await self._beat(hosting, listener.port)

    async def _addresses(self) -> Addresses:
        """In a thread, since a name may have to be resolved."""
        # A bus in memory has its members in this process, whatever broker the environment names besides.
        within = isinstance(self._context.bus, MemoryBus)
        url = "" if within else self._settings.amqp_url.reveal()
        return await asyncio.to_thread(
            addresses, self._settings, functools.partial(own_address, url)
        )

    async def _drained(self, hosting: Hosting) -> None:
        """Wait, for a while, until no job would be cut off in the middle of its training."""
        until = asyncio.get_running_loop().time() + self._settings.leave_s
        while hosting.busy:
            if asyncio.get_running_loop().time() >= until:
                reason = f"not taken away within {self._settings.leave_s:g} s"
                log.warning("jobs_cut_off", shard=self.id, reason=reason)
                return
            await asyncio.sleep(DRAIN_LOOK_S)

    async def _command(self, delivery: Delivery, hosting: Hosting) -> None:
        command = read_order(delivery.body)
        if not self._obedience.owed_to(command):
            return
        match command:
            case HostJob() as message:
                hosting.host(message)
            case DropJob() as message:
                hosting.drop(message)
            case DirectJob() as message:
                hosting.direct(message)
            case BatchPlan() as message:
                hosting.plan_batches(message)

    async def _speak(self, bridge: Bridge, hosting: Hosting, port: int) -> None:
        """Beats at their interval and at once on a change; rows and events as they come."""
        loop = asyncio.get_running_loop()
        beat_at = rows_at = loop.time()
        pace = Pace()

        def pace_s(job: JobId) -> float:
            return BALANCED_ROWS_S if hosting.balanced(job) else ROWS_S

        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(min(beat_at, pace.due_at(pace_s))):
                    await bridge.wake.wait()
                async with asyncio.timeout_at(rows_at):
                    await bridge.urgent.wait()
            new, events, beat = bridge.take()
            now = loop.time()
            rows = pace.take(new, now, pace_s, at_once=beat or bool(events))
            rows_at = now + min(map(pace_s, pace.speaking), default=ROWS_S) if new else rows_at
            try:
                if beat or loop.time() >= beat_at:
                    beat_at = loop.time() + self._settings.beat_s
                    await self._beat(hosting, port)
                while events:
                    event = events[0]
                    key = event_key(event.job, event.what)
                    await self._send(EVENTS, key, encode(event))
                    events.pop(0)
                for job, some in by_job(rows):
                    for body in bodies(job, some, balanced=hosting.balanced(job)):
                        await self._send(TELEMETRY, telemetry_key(job), body)
                if self._unheard:
                    log.info("broker_reached", shard=self.id)
                self._unheard = False
            except RetryLater as error:
                bridge.put_back(
                    rows, events
                )  # a row that was sent already comes twice, which harms nobody
                if not self._unheard:
                    log.warning("broker_unreachable", shard=self.id, reason=str(error))
                self._unheard = True
            if not self._speaks:
                return

    async def _beat(self, hosting: Hosting, port: int) -> None:
        self._seq += 1
        settings = self._settings
        beat = ShardBeat(
            shard=self.id,
            incarnation=self._incarnation,
            seq=self._seq,
            host=socket.gethostname(),
            pid=os.getpid(),
            data_host=self._data_host,
            data_port=port,
            slots=settings.shard_slots,
            jobs=hosting.status(),
            refused=hosting.refused(),
            version=_version(),
            rss_bytes=rss_bytes(),
            leaving=self._leaving,
            obeys=self._obedience.to,
            at=self._context.clock.time(),
        )
        await self._send(MEMBERS, SHARD_BEAT, encode(beat), timeout_s=1.0)

    async def _send(self, exchange: str, key: str, body: bytes, **how: Any) -> None:
        """Publish. What no broker takes is dropped and logged: training does not end for want of a row."""
        try:
            await self._context.bus.publish(exchange, key, body, confirm=False, **how)
        except InvalidDocument as error:
            log.error("message_dropped", shard=self.id, exchange=exchange, reason=str(error))


@functools.cache
def _version() -> str:
    """Looked up once: it takes milliseconds in which no data thread runs."""
    from importlib.metadata import version

    return version("elps")


def create(context: Context) -> ShardService:
    """Make the service."""
    return ShardService(context)
