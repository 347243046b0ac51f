"""What a stack at rest consists of: processes, descriptors, sockets, queues, keys. Whatever is more was left over."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import psutil
from realstack.site import Site

from elps.contracts import topology
from elps.contracts.codec import decode
from elps.contracts.ids import JobId
from elps.contracts.state import JobRecord, JobState
from elps.local import processes
from elps.storage.checkpoints import VALUES, all_manifests
from elps.storage.port import Store
from elps.storage.scripts import HELD

REST_S = 20.0
LOOK_S = 0.2
SPARE_DESCRIPTORS = 8
"""Connections to the store that a service keeps for its busiest moment. One lost with each job soon is more."""
OF_TESTS = ("elps.reply.test.", "elps.follow.")
DRAWN = re.compile(r"[0-9a-f]{8,}")
"""Parts of queue names that are drawn at each start."""


@dataclass(frozen=True)
class Footprint:
    """Taken of a stack that has nothing to do."""

    descriptors: dict[str, int]
    """By kind of service: the most that one process has open."""
    queues: Counter[str]

    @classmethod
    async def of(cls, site: Site) -> Footprint:
        descriptors: dict[str, int] = {}
        for name, handle in site.record.services.items():
            kind = name.partition("-")[0]
            descriptors[kind] = max(descriptors.get(kind, 0), open_descriptors(handle.pid))
        return cls(descriptors, await queues(site))


def open_descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


async def queues(site: Site) -> Counter[str]:
    """Names of all queues, without what is drawn; those of the test's own connections left out."""
    shown = await asyncio.to_thread(site.broker.control, "list_queues", "name")
    names = [name for name in shown.split() if name.startswith(("elps.", "amq."))]
    return Counter(DRAWN.sub("*", name) for name in names if not name.startswith(OF_TESTS))


async def at_rest(site: Site, store: Store, before: Footprint) -> None:
    """Wait until nothing but the stack itself is left; raise what is."""
    left: list[str] = []
    try:
        async with asyncio.timeout(REST_S):
            while now := (
                _processes(site)
                or _descriptors(site, before)
                or _sockets(site)
                or await _keys(store)
                or await _queues(site, before)
            ):
                left = now
                await asyncio.sleep(LOOK_S)
    except TimeoutError:
        raise AssertionError("left over: " + "; ".join(left)) from None


def _processes(site: Site) -> list[str]:
    """Trainers and strays."""
    record = site.record
    own = {h.pid for h in record.services.values()}
    left = []
    for name, handle in record.services.items():
        if not processes.is_alive(handle):
            left.append(f"{name} is dead")
            continue
        try:
            children = psutil.Process(handle.pid).children()
            own |= {child.pid for child in children}
            expected = 1 if name.startswith("agent-") else 0
            if len(children) != expected:
                left.append(f"{name} has children {children}")
            left += [f"trainer {t} of {name}" for c in children for t in c.children()]
        except psutil.NoSuchProcess:
            left.append(f"{name} is changing")
    marked = processes.belonging_to(record.stack_id, "service")
    return left + [f"stray {h.name} ({h.pid})" for h in marked if h.pid not in own]


def _descriptors(site: Site, before: Footprint) -> list[str]:
    left = []
    for name, handle in site.record.services.items():
        known = before.descriptors[name.partition("-")[0]]
        try:
            now = open_descriptors(handle.pid)
        except FileNotFoundError:
            continue
        if now > known + SPARE_DESCRIPTORS:
            left.append(f"{name} has {now} descriptors open, at rest {known}")
    return left


def _sockets(site: Site) -> list[str]:
    """Connections that the other side has closed and this one has not.

    Those to the store lie in a pool, of bounded size, until they are wanted next; only then one shows that it is dead.
    """
    left = []
    for name, handle in site.record.services.items():
        try:
            held = psutil.Process(handle.pid).net_connections(kind="tcp")
        except psutil.NoSuchProcess:
            continue
        closed = [c for c in held if c.status == psutil.CONN_CLOSE_WAIT]
        left += [
            f"{name} holds the connection {c.laddr} to {c.raddr}"
            for c in closed
            if c.raddr.port != site.record.store_port
        ]
    return left


async def _queues(site: Site, before: Footprint) -> list[str]:
    now = await queues(site)
    more, less = now - before.queues, before.queues - now
    return [f"queues {dict(more)}" for _ in [0] if more] + [
        f"queues missing: {dict(less)}" for _ in [0] if less
    ]


async def _keys(store: Store) -> list[str]:
    """Keys that no job accounts for."""
    records = [decode(v, JobRecord) for v in (await store.hash_all(topology.JOB_INDEX)).values()]
    accounted = {topology.JOB_INDEX, topology.POLICY_KEY, topology.CHARGE, topology.CHARGE + HELD}
    accounted |= {topology.EVENTS_KEPT, topology.HISTORIES_SEAL, topology.FORGOTTEN_KEY}
    for record in records:
        accounted.add(topology.history_key(record.id))
        if record.state is JobState.KILLED:
            continue
        accounted |= await _keys_of(store, record.id)
    found = {key async for key in store.scan("elps:")}
    return [f"keys {sorted(found - accounted)[:10]}"] if found - accounted else []


async def _keys_of(store: Store, job: JobId) -> set[str]:
    keys = {
        topology.term_key(job),
        topology.manifests_key(job),
        topology.job_prefix(job) + "skips",
    }
    for manifest in await all_manifests(store, job):
        for number, entry in enumerate(manifest.partitions):
            assert VALUES in entry.digests
            keys |= {topology.chunk_key(job, manifest.name, number, a) for a in entry.digests}
    return keys
