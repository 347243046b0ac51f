"""The histories of jobs and the newest events in the store: written while they grow, read back after a restart.

A history is a hash, whose fields are pieces (`elps.monitor.core.keeping`); the events are one value. Only the monitor
that takes the queries writes; one that stands by begins with what is there when it takes over. What the monitor's
memory lets go goes from the store as well, so the store holds no more than the memory: histories of live jobs and of
the newest that ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import structlog

from elps.contracts import topology
from elps.contracts.errors import InvalidDocument
from elps.contracts.ids import JobId
from elps.monitor.core import feed, keeping
from elps.monitor.core.jobs import Job
from elps.monitor.core.keeping import Kept, Piece
from elps.monitor.core.state import State
from elps.storage.port import Store

log = structlog.get_logger(__name__)


class Histories:
    """Keeps the histories of a `State` in a store."""

    def __init__(self, state: State, store: Store) -> None:
        self._state, self._store = state, store
        self._kept: dict[JobId, Kept] = {}  #: of jobs whose history was taken back
        self._lock = asyncio.Lock()  #: one job at a time is read, written or removed
        self._in_charge = False
        self._swept = False
        self._events_at: int | None = (
            None  #: `Feed.next` at the last save; None before they are read
        )
        self.unreadable = 0
        """Pieces and events that another version, or nobody, has written."""

    async def keep(self, *, in_charge: bool) -> None:
        """Read back what is not yet, write what has changed, remove what nobody needs. Raises `RetryLater`."""
        if in_charge and not self._in_charge:
            self._begin()
        self._in_charge = in_charge
        await self._remove_lapsed()
        await self.restore_events()
        jobs = sorted(self._state.jobs, key=lambda job: (job.ended, -job.order[0], job.id))
        for job in jobs:
            await self.restore(job.id)
        if not in_charge:
            return
        for job in jobs:
            await self._save(job)
        await self._save_events()
        if not self._swept:
            await self._sweep()

    async def restore_events(self) -> None:
        """Take back the events of earlier runs, if that was not done yet. Raises `RetryLater`."""
        if self._events_at is not None:
            return
        body = await self._store.get(topology.EVENTS_KEPT)
        if self._events_at is None:
            self._events_at = -1
            try:
                self._state.feed.restore(feed.unpack(body) if body is not None else [])
            except InvalidDocument as error:
                self.unreadable += 1
                log.warning("events_unreadable", reason=str(error))

    async def restore(self, job_id: JobId) -> None:
        """Take back what was kept of a job's history, if that was not done yet. Raises `RetryLater`."""
        known = self._state.jobs.get(job_id)
        if known is None or known.restored or known.record is None:
            return  # without the lock: whoever has it may wait for the store for long
        if known.from_its_start:
            self._kept[job_id] = Kept(known.record.seq, {})
            self._state.jobs.restore(job_id, (), ())
            return
        async with self._lock:
            job = self._state.jobs.get(job_id)
            if job is None or job.restored or job.record is None:
                return
            seq = job.record.seq
            fields = await self._store.hash_all(topology.history_key(job_id))
            found = await asyncio.to_thread(self._unpack, fields, seq) if fields else {}
            if self._state.jobs.get(job_id) is job:
                self._kept[job_id] = Kept(seq, found)
                self._state.jobs.restore(job_id, *keeping.restored(filter(None, found.values())))

    def _begin(self) -> None:
        """Another monitor may have written until now: what it has left is taken as what there is."""
        self._kept.clear()
        self._swept = False
        for job in self._state.jobs:
            job.restored = job.from_its_start = False

    async def _remove_lapsed(self) -> None:
        lapsed = self._state.jobs.lapsed
        for job_id in list(lapsed):
            async with self._lock:
                self._kept.pop(job_id, None)
                if (job := self._state.jobs.get(job_id)) is not None:
                    job.restored = False  # the id is used again
                if self._in_charge:
                    await self._store.delete([topology.history_key(job_id)])
                lapsed.pop(job_id, None)

    async def _save(self, job: Job) -> None:
        async with self._lock:
            kept = self._kept.get(job.id)
            known = self._state.jobs.get(job.id) is job
            if kept is None or not known or not kept.differs(job.history):
                return
            save, key = kept.save(job.history), topology.history_key(job.id)
            for name, body in (await asyncio.to_thread(_packed, save.write)).items():
                await self._store.hash_put(key, name, body)
            if save.remove:
                await self._store.hash_delete(key, save.remove)
            kept.saved(save)

    async def _save_events(self) -> None:
        ring = self._state.feed
        if self._events_at != (at := ring.next):
            body = await asyncio.to_thread(feed.pack, ring.since(ring.oldest))
            await self._store.put(topology.EVENTS_KEPT, body)
            self._events_at = at

    async def _sweep(self) -> None:
        """Remove histories of jobs that went while no monitor was there."""
        head = topology.history_key(JobId(""))
        stray = [key async for key in self._store.scan(head) if not self._known(key, head)]
        await self._store.delete(stray)
        self._swept = True
        if stray:
            log.info("histories_removed", count=len(stray))

    def _known(self, key: str, head: str) -> bool:
        return self._state.jobs.get(key.removeprefix(head)) is not None

    def _unpack(self, fields: dict[str, bytes], seq: int) -> dict[str, Piece | None]:
        found: dict[str, Piece | None] = dict.fromkeys(fields)
        for name, body in fields.items():
            try:
                piece = keeping.unpack(body)
            except InvalidDocument as error:
                self.unreadable += 1
                log.warning("history_unreadable", field=name[:64], reason=str(error))
                continue
            if piece.seq == seq:
                found[name] = piece
        return found


def _packed(pieces: Mapping[str, Piece]) -> dict[str, bytes]:
    return {name: keeping.pack(piece) for name, piece in pieces.items()}
