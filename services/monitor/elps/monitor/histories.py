"""The histories of jobs and the newest events in the store: written while they grow, read back after a restart.

A history is a hash, whose fields are pieces (`elps.monitor.core.keeping`); the events are one value. Only the monitor
that takes the queries writes; one that stands by begins with what is there when it takes over. What the monitor's
memory lets go goes from the store as well, so the store holds no more than the memory: histories of live jobs and of
the newest that ended.

A store that is killed comes back without its newest second, or empty. So what was written is *sealed*: a value that was
never there before is put last, and looked for before the next save. If it is not there all histories are read back
again, and what is missing of them is written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping

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

SEALED_AT_ONCE = 50
"""Histories saved between two seals: those that were not sealed, since the save was cut off, are written again."""


class Histories:
    """Keeps the histories of a `State` in a store."""

    def __init__(self, state: State, store: Store) -> None:
        self._state, self._store = state, store
        self.spared: Collection[str] = ()
        """Jobs whose records nobody here can read: what there is of their histories stays."""
        self._kept: dict[JobId, Kept] = {}  #: of jobs whose history was taken back
        self._lock = asyncio.Lock()  #: one job at a time is read, written or removed
        self._keeping = (
            asyncio.Lock()
        )  #: one `keep` at a time: each looks for the seal of the one before
        self._in_charge = False
        self._swept = False
        self._events_at: int | None = (
            None  #: `Feed.next` at the last seal; None before they are read
        )
        self._seal: bytes | None = None  #: that was put last; None before the first
        self._seals = 0
        self._unsealed: list[Kept] = []  #: saved since
        self.unreadable = 0
        """Pieces and events that another version, or nobody, has written."""

    async def keep(self, *, in_charge: bool) -> None:
        """Read back what is not yet, write what has changed, remove what nobody needs. Raises `RetryLater`."""
        async with self._keeping:
            await self._keep(in_charge=in_charge)

    async def _keep(self, *, in_charge: bool) -> None:
        if in_charge and (not self._in_charge or await self._broken()):
            self._begin()
        self._in_charge = in_charge
        await self._remove_lapsed()
        await self.restore_events()
        jobs = sorted(self._state.jobs, key=lambda job: (job.ended, -job.order[0], job.id))
        for job in jobs:
            await self.restore(job.id)
        if not in_charge:
            return
        for kept in self._unsealed:
            kept.doubt()
        self._unsealed.clear()
        for job in jobs:
            await self._save(job)
            if len(self._unsealed) >= SEALED_AT_ONCE:
                await self._put_seal()
        at = await self._save_events()
        if self._unsealed or at != self._events_at:
            await self._put_seal()
            self._events_at = at
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

    async def _broken(self) -> bool:
        """Whether the store is not as it was left."""
        if self._seal is None or await self._store.get(topology.HISTORIES_SEAL) == self._seal:
            return False
        log.warning("histories_set_back", reason="the store has not what was written to it last")
        return True

    async def _put_seal(self) -> None:
        self._seals += 1
        seal = f"{self._state.feed.run}-{self._seals}".encode()
        await self._store.put(topology.HISTORIES_SEAL, seal)
        self._seal = seal
        self._unsealed.clear()

    def _begin(self) -> None:
        """Another monitor may have written until now, or the store has lost some: what is left is what there is."""
        self._kept.clear()
        self._unsealed.clear()
        self._swept, self._seal = False, None
        self._events_at = None if self._events_at is None else -1
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
            self._unsealed.append(kept)

    async def _save_events(self) -> int:
        """Returns the place up to which they lie in the store."""
        ring = self._state.feed
        if self._events_at != (at := ring.next):
            body = await asyncio.to_thread(feed.pack, ring.since(ring.oldest))
            await self._store.put(topology.EVENTS_KEPT, body)
        return at

    async def _sweep(self) -> None:
        """Remove histories of jobs that went while no monitor was there."""
        head = topology.history_key(JobId(""))
        stray = [key async for key in self._store.scan(head) if not self._known(key, head)]
        await self._store.delete(stray)
        self._swept = True
        if stray:
            log.info("histories_removed", count=len(stray))

    def _known(self, key: str, head: str) -> bool:
        job = key.removeprefix(head)
        return job in self.spared or self._state.jobs.get(job) is not None

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
