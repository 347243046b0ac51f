"""All services in one process on a bus and a store in memory: what `elps run` trains with.

The services come from the entry points `elps.services`, so that nothing here imports one. Each member has its own bus
connection and its own environment, exactly as if it were a process.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import metadata

import structlog

from elps.cli.stack import leaves
from elps.contracts.errors import ElpsError, SetupError
from elps.messaging.memory import MemoryBroker, MemoryBus
from elps.runtime.service import Context, Service
from elps.storage.memory import MemoryStore
from elps.storage.port import Store

log = structlog.get_logger(__name__)

GROUP = "elps.services"
LEAVE_S = 15.0
"""A service that has not left by then is cancelled; trainers get 10 s to end."""
CANCEL_S = 2.0

Create = Callable[[Context], Service]


class ServiceEnded(ElpsError):
    """A service of the process tree stopped by itself: nothing can go on without it."""


@dataclass(frozen=True)
class Member:
    """One service to start: which, under what name, with what beside the common environment."""

    service: str
    name: str
    env: Mapping[str, str]


@dataclass
class Composition:
    """The running services."""

    bus: MemoryBus
    """A connection for whoever composed them."""
    store: Store


def members(workers: int, shards: int, *, monitor_port: int | None = None) -> list[Member]:
    """Who takes part, in the order of starting; they leave in the opposite order. No port, no monitor."""
    found = [Member("scheduler", "scheduler", {})]
    if monitor_port is not None:
        found.append(Member("monitor", "monitor", {"ELPS_MONITOR_PORT": str(monitor_port)}))
    found += [
        Member("psshard", f"shard-{i}", {"ELPS_SHARD_ID": f"shard-{i}"})
        for i in range(1, shards + 1)
    ]
    found += [
        Member("worker", f"agent-{i}", {"ELPS_AGENT_ID": f"agent-{i}", "ELPS_WORKER_SLOTS": "1"})
        for i in range(1, workers + 1)
    ]
    return found


def installed_services(names: Collection[str]) -> dict[str, Create]:
    """The services of this installation with these names."""
    found: dict[str, Create] = {}
    for entry in metadata.entry_points(group=GROUP):
        if entry.name in names:
            try:
                found[entry.name] = entry.load()
            except ImportError as error:
                raise SetupError(
                    f"service {entry.name} cannot be imported ({error}): install elps again"
                ) from error
    return found


@asynccontextmanager
async def composed(
    taking_part: list[Member], services: Mapping[str, Create], env: Mapping[str, str]
) -> AsyncIterator[Composition]:
    """Start the members, and end them in order on leaving.

    One that ends by itself cancels the body and raises `ServiceEnded`, in an exception group; the others still leave in
    order.
    """
    if missing := sorted({m.service for m in taking_part} - services.keys()):
        raise SetupError(
            f"no service {', '.join(missing)} in this installation: install elps again"
        )
    broker, store = MemoryBroker(), MemoryStore()
    running: list[_Running] = []
    buses: list[MemoryBus] = []
    try:
        for member in taking_part:
            bus = MemoryBus(broker, member.name)
            buses.append(bus)
            service = services[member.service](Context(bus, store, {**env, **member.env}))
            stop = asyncio.Event()
            task = asyncio.create_task(service.run(stop), name=member.name)
            running.append(_Running(member, task, stop))
        own = MemoryBus(broker, "elps")
        buses.append(own)
        async with asyncio.TaskGroup() as group:
            watcher = group.create_task(_watch(running))
            try:
                yield Composition(own, store)
            finally:
                watcher.cancel()
    finally:
        for kind in reversed(list(dict.fromkeys(m.service for m in taking_part))):
            await _leave([r for r in running if r.member.service == kind])
        for bus in reversed(buses):
            await bus.close()
        await store.close()


@dataclass(frozen=True)
class _Running:
    member: Member
    task: asyncio.Task[None]
    stop: asyncio.Event


async def _watch(running: list[_Running]) -> None:
    """Wait for the first member that ends by itself, and raise its reason."""
    await asyncio.wait([r.task for r in running], return_when=asyncio.FIRST_COMPLETED)
    ended = next(r for r in running if r.task.done())
    name = ended.member.name
    error = ended.task.exception() if not ended.task.cancelled() else None
    reasons = leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    for reason in reasons:
        if isinstance(reason, ElpsError):
            raise reason
    if error is None:
        raise ServiceEnded(f"{name} ended by itself")
    told = "; ".join(f"{type(reason).__name__}: {reason}" for reason in reasons)
    raise ServiceEnded(f"{name} stopped: {told}") from error


async def _leave(running: list[_Running]) -> None:
    """End the members of one kind: agents leave first, so that shards still answer while trainers end."""
    for member in running:
        member.stop.set()
    if not running:
        return
    _, late = await asyncio.wait([r.task for r in running], timeout=LEAVE_S)
    for task in late:
        task.cancel()
    if late:
        await asyncio.wait(late, timeout=CANCEL_S)
    for member in running:
        if (
            member.task.done()
            and not member.task.cancelled()
            and (error := member.task.exception())
        ):
            log.error("service_failed", service=member.member.name, exc_info=error)
