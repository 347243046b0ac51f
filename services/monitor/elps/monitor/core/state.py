"""All that one monitor knows: messages go in by one method each, and what one part lets go the others let go too."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from elps.contracts.ids import JobId
from elps.contracts.messages import JobEvent, MemberMessage, SchedulerBeat, ShardBeat
from elps.contracts.state import JobRecord
from elps.contracts.telemetry import IterationRows, TelemetryMessage
from elps.contracts.topology import DELETED
from elps.monitor.core.clocks import Clocks
from elps.monitor.core.feed import Feed
from elps.monitor.core.jobs import Jobs
from elps.monitor.core.logs import Logs
from elps.monitor.core.members import Members


class State:
    """The monitor's memory. `now_s` is always the receiver's monotonic clock."""

    def __init__(self, *, lost_s: float, run: str) -> None:
        self.members = Members(lost_s)
        self.clocks = Clocks(lost_s)
        self.jobs = Jobs()
        self.logs = Logs()
        self.feed = Feed(run)
        self.heard_s = self.scheduler_heard_s = -1e18
        """When the newest beat of any member and of the scheduler came, our monotonic clock."""
        self.rows = 0
        """Rows taken, repeats not counted."""

    def take_beat(self, beat: MemberMessage, now_s: float, unix_s: float | None = None) -> None:
        """Take a member's heartbeat; with `unix_s`, our clock, that of its host is compared."""
        if not self.members.take(beat, now_s):
            return
        self.heard_s = now_s
        if unix_s is not None:
            self.clocks.take(beat.host, beat.at, unix_s, now_s)
        if isinstance(beat, SchedulerBeat) and beat.charge is not None:
            self.scheduler_heard_s = now_s
        if isinstance(beat, ShardBeat):
            for hosted in beat.jobs:
                if hosted.leads:
                    self.jobs.take_leader(hosted, beat.shard, now_s)
            self._tidy()

    def take_event(self, event: JobEvent, now_s: float) -> None:
        """Take an event of a job; one of a leader that was succeeded before is of no account (`Jobs.take_event`)."""
        if self.jobs.take_event(event, now_s):
            if event.what == DELETED:
                self.feed.forget(event.job)
            self.feed.add(event)
        self._tidy()

    def take_telemetry(self, message: TelemetryMessage, now_s: float) -> None:
        """Take finished iterations, or lines that a trainer printed."""
        if isinstance(message, IterationRows):
            self.rows += self.jobs.take_rows(message.job, message.rows, now_s)
        elif self.jobs.heard(message.job, now_s):
            self.logs.add(message.job, message.worker, message.at, message.lines)
        self._tidy()

    def take_records(
        self, records: Iterable[JobRecord], asked_s: float, unread: Collection[str] = ()
    ) -> None:
        """Take the store's index of jobs as it was when asked for at `asked_s`; `unread`: what nobody reads."""
        self.jobs.take_records(records, asked_s, unread)
        self._tidy()

    def take_record(self, job: JobId, record: JobRecord | None, now_s: float) -> None:
        """Take what the store knows of one job: its record, or that there is none."""
        if record is None:
            self.jobs.absent(job, now_s)
        else:
            self.jobs.take_record(record, now_s)
        self._tidy()

    def check_invariants(self) -> None:
        """Raise `AssertionError` when a bound or a sum does not hold."""
        self.jobs.check_invariants()
        for job in self.jobs:
            job.history.check_invariants()

    def _tidy(self) -> None:
        for job in self.jobs.take_gone():
            self.logs.forget(job)
