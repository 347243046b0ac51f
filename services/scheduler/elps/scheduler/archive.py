"""The scheduler's part of the store: records, terms, and the keys of jobs that are gone. Waits out its absences."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import msgspec
import structlog

from elps.contracts import topology
from elps.contracts.codec import decode, encode
from elps.contracts.epoch import Term
from elps.contracts.errors import InvalidDocument, RetryLater
from elps.contracts.ids import JobId, id_problem
from elps.contracts.state import JobRecord
from elps.scheduler.charge import NONCE_BITS, InCharge
from elps.scheduler.core.events import AskTerm, Marks, TermGranted
from elps.storage import checkpoints
from elps.storage.port import Store

log = structlog.get_logger(__name__)
T = TypeVar("T")

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0
"""Between two tries while the store is away."""
SECRET_BYTES = 32
DELETED_AT_ONCE = 500
WRITTEN_AT_ONCE = 200
"""Records: some 10 ms of encoding, for which heartbeats wait."""


@dataclass(frozen=True)
class Found:
    """What the store held when the scheduler started."""

    records: list[JobRecord]
    unreadable: list[JobId]
    """Jobs whose records another version has written."""
    marks: Marks
    """Of the jobs whose records are gone."""


CHOSEN = "chosen"
MARKS = "marks"


class Chosen(msgspec.Struct, frozen=True, kw_only=True):
    """A policy that was chosen while the stack ran. With another setting than then it does not count any more."""

    policy: str
    setting: str


JOBS_PREFIX, _, _TAIL = topology.job_prefix(JobId("\0")).partition("\0")
"""What the keys of all jobs begin with."""


def _job_of(key: str) -> JobId:
    return JobId(key.removeprefix(JOBS_PREFIX).partition(_TAIL)[0])


class Archive:
    """Each call goes on until it has succeeded: callers are tasks that wait, or are cancelled."""

    def __init__(self, store: Store, in_charge: InCharge, setting: str) -> None:
        """`setting` is the policy that the environment names."""
        self._store, self._in_charge, self._setting = store, in_charge, setting
        self._losses = in_charge.losses  #: that what is stored has been made good for
        self.chosen = ""  #: the policy that the store is to keep; empty: none was chosen

    async def load(self, kept: Mapping[JobId, JobRecord]) -> Found:
        """All records. Those of `kept` that are missing, or older in the store, are written again."""
        records, unreadable = dict[JobId, JobRecord](), list[JobId]()
        marks = await self._marks()
        for job, value in sorted((await self._insist("read jobs", self._read_all)).items()):
            try:
                records[JobId(job)] = decode(value, JobRecord)
            except InvalidDocument as error:
                log.error("record_unreadable", job=job, reason=str(error))
                unreadable.append(JobId(job))
        lost = {
            job: record
            for job, record in kept.items()
            if job not in records or records[job].changed_at < record.changed_at
        }
        if lost:
            log.warning("store_has_forgotten", what="records", written=len(lost))
            await self.write(lost)
        return Found([*{**records, **lost}.values()], unreadable, marks)

    async def write(self, records: Mapping[JobId, JobRecord]) -> None:
        """Store records; `Superseded` if another scheduler does so now."""
        jobs = list(records)
        for at in range(0, len(jobs), WRITTEN_AT_ONCE):
            fields = {str(job): encode(records[job]) for job in jobs[at : at + WRITTEN_AT_ONCE]}
            await self._insist(
                "write jobs", partial(self._in_charge.put, topology.JOB_INDEX, fields)
            )

    async def policy(self) -> str:
        """The policy that was chosen in place of the setting, or the setting."""
        setting = self._setting
        kept = await self._insist(
            "read policy", lambda: self._store.hash_get(topology.POLICY_KEY, CHOSEN)
        )
        try:
            found = Chosen(policy="", setting="") if kept is None else decode(kept, Chosen)
        except InvalidDocument as error:
            log.error("policy_unreadable", reason=str(error))
            return setting
        self.chosen = found.policy if found.setting == setting else ""
        return self.chosen or setting

    async def keep_policy(self, policy: str) -> None:
        """Have the policy outlive this scheduler."""
        body = encode(Chosen(policy=policy, setting=self._setting))
        put = partial(self._in_charge.put, topology.POLICY_KEY, {CHOSEN: body})
        await self._insist("keep policy", put)
        self.chosen = policy

    def forgotten(self) -> bool:
        """Whether the store has lost something since this was asked last, or since the records were loaded."""
        before, self._losses = self._losses, self._in_charge.losses
        return self._losses > before

    @property
    def lacks(self) -> bool:
        """Whether the store has lost something that nobody has asked about yet."""
        return self._in_charge.losses > self._losses

    async def grant(self, ask: AskTerm) -> TermGranted:
        """Have the store hand out a term, with a fresh nonce and secret."""
        nonce = secrets.randbits(NONCE_BITS)
        key = topology.term_key(ask.job)
        number = await self._insist(
            "get term", lambda: self._store.raise_to(key, ask.at_least, f"{nonce:x}")
        )
        return TermGranted(
            ask.job, ask.attempt, Term(number, nonce), secrets.token_hex(SECRET_BYTES)
        )

    async def remove_keys(self, jobs: Sequence[JobId]) -> None:
        """Remove all keys of some jobs; their records are not among them. `Superseded` as with `write`."""
        removed = await self._insist("remove keys", lambda: self._remove(dict.fromkeys(jobs)))
        log.info("keys_removed", jobs=list(jobs), keys=removed)

    async def forget(self, jobs: Sequence[JobId], marks: Marks) -> None:
        """Remove all that there is of some jobs, their records last: cut off in between, it is done again."""
        await self.keep_marks(marks)
        await self.remove_keys(jobs)
        remove = partial(self._in_charge.remove_fields, topology.JOB_INDEX, jobs)
        await self._insist("remove records", remove)

    async def keep_marks(self, marks: Marks) -> None:
        """Have the marks of forgotten jobs outlive this scheduler."""
        put = partial(self._in_charge.put, topology.FORGOTTEN_KEY, {MARKS: encode(marks)})
        await self._insist("keep marks", put)

    async def remove_strays(self, job: JobId) -> None:
        """Remove what was written for checkpoints of a job that never became valid. `Superseded` as with `write`."""
        if removed := await self._insist("remove strays", lambda: self._remove_strays(job)):
            log.info("strays_removed", job=job, keys=removed)

    async def jobs_with_keys(self) -> list[JobId]:
        """Jobs of which there are keys other than the record."""
        return await self._insist("look for keys", self._scan_jobs)

    async def _read_all(self) -> dict[str, bytes]:
        return await self._store.hash_all(topology.JOB_INDEX)

    async def _marks(self) -> Marks:
        kept = await self._insist(
            "read marks", lambda: self._store.hash_get(topology.FORGOTTEN_KEY, MARKS)
        )
        try:
            return Marks() if kept is None else decode(kept, Marks)
        except InvalidDocument as error:  # the records that are left say a part of it
            log.error("marks_unreadable", reason=str(error))
            return Marks()

    async def _remove(self, jobs: Mapping[JobId, object]) -> int:
        """One look at all keys, however many jobs: it is what takes the time."""
        removed, batch = 0, list[str]()
        prefix = topology.job_prefix(next(iter(jobs))) if len(jobs) == 1 else JOBS_PREFIX
        async for key in self._store.scan(prefix):
            if _job_of(key) not in jobs:
                continue
            batch.append(key)
            if len(batch) == DELETED_AT_ONCE:
                await self._in_charge.remove(batch)
                removed, batch = removed + len(batch), []
        await self._in_charge.remove(batch)
        return removed + len(batch)

    async def _remove_strays(self, job: JobId) -> int:
        """Only while in charge: the id may be another job's by the time at which one that stood still goes on."""
        strays = await checkpoints.strays(self._store, job)
        await self._in_charge.remove(strays)
        return len(strays)

    async def _scan_jobs(self) -> list[JobId]:
        jobs: dict[JobId, None] = {}
        async for key in self._store.scan(JOBS_PREFIX):
            if not id_problem(job := _job_of(key)):
                jobs[job] = None
        return sorted(jobs)

    async def _insist(self, what: str, call: Callable[[], Awaitable[T]]) -> T:
        """Call until the store answers, saying whom one waits for."""
        pause_s, tries = FIRST_PAUSE_S, 0
        while True:
            try:
                result = await call()
            except RetryLater as error:
                tries += 1
                log.warning("waiting_for", whom="store", to=what, tries=tries, error=str(error))
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            else:
                if tries:
                    log.info("store_answers_again", to=what, tries=tries)
                return result
