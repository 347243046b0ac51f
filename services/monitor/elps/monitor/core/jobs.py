"""The view of all jobs, merged from the records in the store, from events, from leaders' beats and from telemetry.

Each source sees a part and may lag: the *record* (from the store or an event) says the state; the *leader's beat* says
how far the job is; *telemetry* brings the rows. Any of them may be the first to name a job. One without a record is
*provisional*: the shell is asked to read its record, and it goes if there is none and no leader speaks for it.

Memory is bounded: in jobs (those that ended first go first), in rows over all jobs (histories are thinned further,
ended jobs' first), in names of jobs that do not exist.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from elps.contracts.answers import Evaluation
from elps.contracts.epoch import Term
from elps.contracts.ids import JobId
from elps.contracts.messages import HostedJob, JobEvent
from elps.contracts.state import JobRecord, JobState, Progress
from elps.contracts.telemetry import IterationRow
from elps.monitor.core.history import History

KEEP_ENDED = 500
"""Ended jobs kept ready; older ones are read from the store when someone asks."""
MAX_JOBS = 10_000
MAX_PROVISIONAL = 256
MAX_CELLS = 500_000
"""Rows and workers' parts of rows over all jobs; one takes about 250 bytes."""
ABSENT_S = 5.0
"""So long the store is not asked again about a job that it does not know."""
MAX_ABSENT = 1024
QUIET_S = 10.0
"""A job that the store lacks is kept as long as something of it came within this time, and the store has not lacked it
for as long: records can be lost and are written again, and what a leader speaks for is there."""

_PHASE_STATE = {
    "loading": JobState.STARTING,
    "waiting": JobState.WAITING,
    "running": JobState.RUNNING,
    "pausing": JobState.RUNNING,
    "paused": JobState.PAUSED,
    "finished": JobState.FINISHED,
    "failed": JobState.FAILED,
}


class Job:
    """What is known of one job."""

    def __init__(self, job: JobId, now_s: float) -> None:
        self.id = job
        self.record: JobRecord | None = None  #: newest; None while provisional
        self.record_s = -1e18  #: when it was read or sent, our monotonic clock
        self.leader: str | None = None  #: shard that sent `hosted`
        self.hosted: HostedJob | None = None  #: the leader's word of the highest term heard
        self.led_s = -1e18  #: when the leader's word came, our monotonic clock
        self.progress = Progress()
        self.progress_term = 0  #: term number that `progress` is of; never falls
        self.term, self.term_at = 0, 0.0  #: highest term that is known, and since when, Unix time
        self.history = History()
        self.restored = False  #: what was kept of the history has been taken back
        self.from_its_start = (
            False  #: it had not begun when it was heard of: nothing was kept before
        )
        self.touched_s = now_s  #: when anything of the job came last, our monotonic clock
        self.lacked_s: float | None = None  #: since when the store has no record of it

    @property
    def state(self) -> JobState:
        """By the record; without one by the leader's phase."""
        if self.record is not None:
            return self.record.state
        return _PHASE_STATE[self.hosted.phase] if self.hosted is not None else JobState.STARTING

    @property
    def ended(self) -> bool:
        """Whether its record says that it ended."""
        return self.record is not None and self.record.state.ended

    def heard_term(self, number: int, at: float) -> None:
        """Something of a term came that was told at Unix time `at`."""
        if number > self.term:
            self.term, self.term_at = number, at

    @property
    def order(self) -> tuple[int, str]:
        """Jobs are listed in the order of their arrival, provisional ones last."""
        return (self.record.seq if self.record is not None else 2**63, self.id)


class Jobs:
    """All jobs that the monitor keeps."""

    def __init__(self) -> None:
        self._jobs: dict[JobId, Job] = {}
        self._missing: dict[
            JobId, None
        ] = {}  #: provisional jobs whose record is still to be read, in order
        self._absent: dict[
            JobId, float
        ] = {}  #: jobs that the store did not know, and until when that is believed
        self._gone: list[JobId] = []  #: let go since `take_gone`
        self.lapsed: dict[
            JobId, None
        ] = {}  #: jobs let go whose histories may be kept elsewhere; taken out by whoever keeps them
        self.cells = 0  #: sum of the histories' cells

    # --- what comes in ---

    def take_records(
        self, records: Iterable[JobRecord], asked_s: float, unread: Collection[str] = ()
    ) -> None:
        """Take the whole index of the store, as it was at or after `asked_s`; `unread`: what nobody here reads.

        Jobs that it has lacked for a while go, unless something of them came of late.
        """
        found = list(records)
        for record in found:
            if record.deleted_at is not None:
                self._take_record(record, asked_s)
        listed = {record.id: record for record in found if record.deleted_at is None}
        ended = sorted((r for r in listed.values() if r.state.ended), key=_end_order, reverse=True)
        kept = {r.id for r in ended[:KEEP_ENDED]}
        for record in listed.values():
            if not record.state.ended or record.id in kept or record.id in self._jobs:
                self._take_record(record, asked_s, stored=True)
        for job in list(self._jobs.values()):
            if job.id in listed or job.id in unread:
                job.lacked_s = None
            elif job.record is not None:
                job.lacked_s = asked_s if job.lacked_s is None else job.lacked_s
                if asked_s - max(job.lacked_s, job.touched_s) >= QUIET_S:
                    self._let_go(job.id)
        self._bound()

    def take_record(self, record: JobRecord, now_s: float) -> None:
        """Take one record that was asked for."""
        self._take_record(record, now_s, stored=True)
        self._bound(spare=record.id)

    def take_event(self, event: JobEvent, now_s: float) -> bool:
        """Take an event; False when a leader sent it to whose job a newer term had been given by then.

        What a leader told before that and what comes late is taken: readers put events in order by their time.
        """
        if event.record is not None:
            self._take_record(event.record, now_s)
        job = self._touch(event.job, now_s)
        if job is not None and event.term is not None:
            if event.term < job.term and event.at >= job.term_at:
                return False
            job.heard_term(event.term, event.at)
        if job is not None and event.metrics and event.iteration is not None:
            job.history.evaluated(
                Evaluation(
                    iteration=event.iteration,
                    at=event.at,
                    metrics=event.metrics,
                    term=event.term or 0,
                )
            )
        self._bound()
        return True

    def take_leader(self, hosted: HostedJob, shard: str, now_s: float) -> None:
        """Take what a leader's beat says of a job; the word of a former leader is dropped."""
        self._absent.pop(hosted.job, None)
        job = self._touch(hosted.job, now_s)
        if job is None or (job.hosted is not None and hosted.term.number < job.hosted.term.number):
            return
        job.hosted, job.leader, job.led_s = hosted, shard, now_s
        if (
            hosted.progress is not None
            and not job.ended
            and hosted.term.number >= job.progress_term
        ):
            job.progress, job.progress_term = hosted.progress, hosted.term.number

    def take_rows(self, job_id: JobId, rows: Sequence[IterationRow], now_s: float) -> int:
        """Take finished iterations; the number of those that were news."""
        job = self._touch(job_id, now_s)
        if job is None:
            return 0
        before = job.history.cells
        news = sum([job.history.add(row) for row in rows])
        self.cells += job.history.cells - before
        self._bound_cells()
        return news

    def restore(
        self,
        job_id: JobId,
        rows: Iterable[tuple[int, IterationRow]],
        evaluations: Iterable[tuple[int, Evaluation]],
    ) -> None:
        """Take back what was kept of a job's history."""
        if (job := self._jobs.get(job_id)) is None:
            return
        before, job.restored = job.history.cells, True
        job.history.restore(rows, evaluations)
        self.cells += job.history.cells - before
        self._bound_cells()

    def heard(self, job_id: JobId, now_s: float) -> bool:
        """Something else of a job came (its output); say whether the job is kept."""
        return self._touch(job_id, now_s) is not None

    # --- records that are to be read ---

    @property
    def any_missing(self) -> bool:
        """Whether a record should be read."""
        return bool(self._missing)

    def take_missing(self) -> list[JobId]:
        """Jobs whose record should be read now; they are not named again until something new of them comes."""
        missing, self._missing = list(self._missing), {}
        return missing

    def still_missing(self, jobs: Iterable[JobId]) -> None:
        """The records of these could not be read."""
        for job_id in jobs:
            if (job := self._jobs.get(job_id)) is not None and job.record is None:
                self._missing[job_id] = None

    def absent(self, job_id: JobId, now_s: float) -> None:
        """The store has no record of a job. It goes unless a leader speaks for it."""
        job = self._jobs.get(job_id)
        if job is None or job.record is not None or now_s - job.led_s <= QUIET_S:
            return
        self._believe_absent(job_id, now_s)
        self._let_go(job_id)

    def take_gone(self) -> list[JobId]:
        """Jobs let go since the last call, for what others keep of them."""
        gone, self._gone = self._gone, []
        return gone

    # --- what is there ---

    def get(self, job_id: str) -> Job | None:
        """A job by its id."""
        return self._jobs.get(JobId(job_id))

    def newest(self, limit: int) -> list[Job]:
        """At most `limit` jobs in the order of arrival; the first left out are those that ended, early ones first."""
        jobs = sorted(self._jobs.values(), key=lambda job: job.order)
        if len(jobs) > limit:
            chosen = sorted(jobs, key=lambda job: (not job.ended, job.order), reverse=True)[:limit]
            jobs = sorted(chosen, key=lambda job: job.order)
        return jobs

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[Job]:
        return iter(self._jobs.values())

    def check_invariants(self) -> None:
        """Raise `AssertionError` when a bound or a sum does not hold."""
        assert self.cells == sum(job.history.cells for job in self._jobs.values())
        assert len(self._jobs) <= MAX_JOBS
        assert sum(job.ended for job in self._jobs.values()) <= KEEP_ENDED + 1
        assert len(self._absent) <= MAX_ABSENT
        assert sum(job.record is None for job in self._jobs.values()) <= MAX_PROVISIONAL
        assert all(job in self._jobs for job in self._missing)

    # --- within ---

    def _touch(self, job_id: JobId, now_s: float) -> Job | None:
        """The job, made provisional when it is new; None while the store is known to lack it."""
        job = self._jobs.get(job_id)
        if job is None:
            if (until_s := self._absent.get(job_id)) is not None:
                if now_s < until_s:
                    return None
                del self._absent[job_id]
            job = self._jobs[job_id] = Job(job_id, now_s)
            self._bound_provisional(spare=job_id)
        if job.record is None:
            self._missing[job_id] = None
        job.touched_s = now_s
        return job

    def _take_record(self, record: JobRecord, now_s: float, *, stored: bool = False) -> None:
        if record.deleted_at is not None:
            self._deleted(record, now_s)
            return
        self._absent.pop(record.id, None)
        job = self._jobs.get(record.id)
        if job is None:
            job = self._jobs[record.id] = Job(record.id, now_s)
        known = job.record
        if known is not None and not _supersedes(record, known, stored and job.record_s <= now_s):
            return
        if known is not None and record.seq != known.seq:  # the id was used again
            self._let_go(record.id)
            job = self._jobs[record.id] = Job(record.id, now_s)
        unbegun = record.state is JobState.QUEUED and not record.terms
        job.from_its_start |= known is None and unbegun
        job.record, job.record_s, job.touched_s = record, now_s, max(now_s, job.touched_s)
        job.heard_term(record.terms, record.changed_at)
        self._missing.pop(record.id, None)
        held, offered = job.progress, record.progress
        if (
            record.terms > job.progress_term
            or record.state.ended
            or offered.iteration >= held.iteration
        ):
            job.progress, job.progress_term = offered, max(record.terms, job.progress_term)

    def _deleted(self, record: JobRecord, now_s: float) -> None:
        """Whatever is late of the job is nobody's, unless a later job has its id already."""
        job = self._jobs.get(record.id)
        if job is not None and job.record is not None and job.record.seq > record.seq:
            return
        self._believe_absent(record.id, now_s)
        if job is not None:
            self._let_go(record.id)

    def _believe_absent(self, job_id: JobId, now_s: float) -> None:
        self._absent[job_id] = now_s + ABSENT_S
        while len(self._absent) > MAX_ABSENT:
            del self._absent[next(iter(self._absent))]

    def _let_go(self, job_id: JobId) -> None:
        job = self._jobs.pop(job_id)
        self.cells -= job.history.cells
        self._missing.pop(job_id, None)
        self._gone.append(job_id)
        if job.restored:
            self.lapsed[job_id] = None

    def _bound(self, spare: JobId | None = None) -> None:
        ended = [
            job
            for job in self._jobs.values()
            if job.record is not None and job.ended and job.id != spare
        ]
        if len(ended) > KEEP_ENDED:
            ended.sort(key=lambda job: _end_order(job.record))
            for job in ended[: len(ended) - KEEP_ENDED]:
                self._let_go(job.id)
        while len(self._jobs) > MAX_JOBS:
            self._let_go(min(self._jobs.values(), key=lambda job: (job.touched_s, job.id)).id)

    def _bound_provisional(self, spare: JobId) -> None:
        provisional = [job for job in self._jobs.values() if job.record is None and job.id != spare]
        if len(provisional) >= MAX_PROVISIONAL:
            self._let_go(min(provisional, key=lambda job: (job.led_s, job.touched_s, job.id)).id)

    def _bound_cells(self) -> None:
        while self.cells > MAX_CELLS:
            able = [job for job in self._jobs.values() if not job.history.rows.smallest]
            if not able:
                return
            job = min(able, key=lambda job: (not job.ended, -job.history.cells, job.id))
            before = job.history.cells
            job.history.shrink()
            self.cells += job.history.cells - before


def led_by(job: Job, term: Term) -> bool:
    """Whether the leader's word that is kept is of this term."""
    return job.hosted is not None and job.hosted.term == term


def _end_order(record: JobRecord | None) -> tuple[float, int]:
    assert record is not None
    return (record.ended_at if record.ended_at is not None else record.changed_at, record.seq)


def _supersedes(record: JobRecord, known: JobRecord, authoritative: bool) -> bool:
    """Whether a record replaces the known one: the store's word, a later job, or a later change of the same.

    Numbers of arrival begin anew in a store that was emptied while nobody knew what it had held.
    """
    if record.seq != known.seq:
        return authoritative or record.seq > known.seq
    if known.state.ended:
        return record.state.ended and record.changed_at >= known.changed_at
    return (
        authoritative
        or record.state.ended
        or (record.changed_at, record.terms) >= (known.changed_at, known.terms)
    )
