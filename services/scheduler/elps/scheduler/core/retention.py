"""How long ended jobs are kept, and in which order they go.

An ended job is *kept* with its record, its checkpoints and its history until a user deletes it, or the time of
`Bounds.keep_jobs_s` is over. Then it is *hidden*: everyone is told to forget it, its keys go as soon as no shard can
write any, and its record says since when. The record is what keeps the id taken meanwhile, through restarts and for a
scheduler that takes over. `QUIET_S` later, and not before every member has let go of it, it is *forgotten*: what is
left in the store goes, the record last, so that whatever is cut off in between is done again.

Then the id is free. What may still come of the job that had it:

- A user's message that was on its way: `QUIET_S` is longer than any of ours is tried for.
- A member that was frozen, or cut off, for however long. It speaks and writes under terms of the old job, and no later
  job has any as low (`Marks`): its heartbeats are answered with orders to drop the job, its checkpoints and its skips
  are not those of the new job (`JobRecord.first_term`), and trainers do not know its secret.
- An order to remove keys, of a scheduler that was frozen: the store refuses it, as another one is in charge.

Times are Unix time, since they outlive the scheduler. A clock that is set back keeps jobs longer: those that ended, or
were hidden, while it was ahead, and no others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from elps.contracts.ids import JobId
from elps.contracts.state import JobRecord
from elps.scheduler.core.events import Marks

QUIET_S = 60.0
"""Clients try for seconds, the broker hands over again what was not acknowledged within as much."""
AT_ONCE = 50
"""Jobs hidden, or forgotten, with one tick: the first tick after the time was shortened must not take seconds."""


class Retention:
    """Which of the ended jobs are kept and which are hidden: each ended job that has a record is in one of the two."""

    def __init__(self) -> None:
        self.ended: dict[JobId, None] = {}  #: kept, those that ended first first
        self.deleted: dict[JobId, None] = {}  #: hidden, by when they were
        self.forgetting: dict[JobId, None] = {}  #: those of them whose record is being removed

    def load(self, records: Iterable[JobRecord]) -> None:
        """Take the records that the store had."""
        ended = [record for record in records if record.state.ended]
        kept = [record for record in ended if record.deleted_at is None]
        kept.sort(key=lambda r: (r.ended_at or 0.0, r.seq, r.id))
        hidden = [record for record in ended if record.deleted_at is not None]
        hidden.sort(key=lambda r: (r.deleted_at or 0.0, r.seq, r.id))
        self.ended = dict.fromkeys(record.id for record in kept)
        self.deleted = dict.fromkeys(record.id for record in hidden)

    def hide(self, job: JobId) -> None:
        """A kept job is shown no longer."""
        del self.ended[job]
        self.deleted[job] = None

    def forgotten(self, job: JobId) -> None:
        """Nothing is left of a hidden job."""
        del self.deleted[job]
        self.forgetting.pop(job, None)

    def over(
        self, records: Mapping[JobId, JobRecord], keep_jobs_s: float, now_unix: float
    ) -> list[JobId]:
        """Kept jobs whose time is over, `AT_ONCE` at most; none ever with 0."""
        found: list[JobId] = []
        for job in self.ended if keep_jobs_s else ():
            age_s = _age(records[job].ended_at, now_unix)
            if age_s < 0:
                continue
            if age_s < keep_jobs_s or len(found) == AT_ONCE:
                break
            found.append(job)
        return found

    def quiet(self, records: Mapping[JobId, JobRecord], now_unix: float) -> list[JobId]:
        """Hidden jobs of which nothing is on its way any more, `AT_ONCE` at most."""
        found: list[JobId] = []
        for job in self.deleted:
            age_s = _age(records[job].deleted_at, now_unix)
            if age_s < 0:
                continue
            if age_s < QUIET_S or len(found) == AT_ONCE:
                break
            if job not in self.forgetting:
                found.append(job)
        return found


def after(marks: Marks, record: JobRecord) -> Marks:
    """The marks with one more job."""
    return Marks(seq=max(marks.seq, record.seq), terms=max(marks.terms, record.terms))


def free_in(record: JobRecord, now_unix: float) -> float:
    """Seconds until the id of a hidden job is free, if nobody holds on to it."""
    return max(0.0, QUIET_S - _age(record.deleted_at, now_unix))


def first_term(marks: Marks) -> int:
    """Below any term of a new job and above all of those that were forgotten; 0 while there were none."""
    return marks.terms + 1 if marks.terms else 0


def _age(since: float | None, now_unix: float) -> float:
    return 0.0 if since is None else now_unix - since
