"""Telemetry: how iterations went and what trainers printed, on its way to the monitor and from there to the scheduler.

Exchange `elps.telemetry`. All of it may be lost.
"""

from __future__ import annotations

import msgspec

from elps.contracts.ids import JobId, WorkerId
from elps.contracts.messages import Message
from elps.contracts.numbers import Whole


class ExtraLeases(msgspec.Struct, frozen=True, kw_only=True):
    """What of a worker's part of an iteration was in leases beyond its first; means, where several are told as one."""

    leases: float
    samples: float
    compute_s: float
    wait_s: float
    """Asking for them, and pushing them."""


class WorkerTiming(msgspec.Struct, frozen=True, kw_only=True):
    """One worker's part of one iteration; all times in seconds."""

    worker: WorkerId
    samples: Whole
    compute_s: float
    pull_s: float
    """Receiving parameters, without the wait for their version."""
    wait_s: float
    """Waiting for the version to be complete."""
    push_s: float
    lease_s: float
    """Waiting for the leader's answer."""
    cpu_process: float | None = None
    cpu_host: float | None = None
    memory_bytes: Whole | None = None
    """When it had pushed: cores that it can have, idle cores and memory of its machine; None where it is not known."""
    extra: ExtraLeases | None = None
    """Part of the above; None if it had one lease."""


class IterationRow(msgspec.Struct, frozen=True, kw_only=True):
    """One finished iteration."""

    iteration: Whole
    passes: float
    samples: Whole
    """Samples really counted."""
    skipped: Whole
    loss: float | None
    """Mean over the counted samples."""
    duration_s: float
    """Since the iteration before was complete."""
    at: float
    """Unix time, s."""
    term: Whole
    plan: Whole
    lr: float
    workers: list[WorkerTiming]
    n: Whole = 0
    """Of the epoch within the term (`Epoch.n`): iterations that are done again come under a higher one."""
    waiting: dict[WorkerId, float] = {}
    """Workers without a part in it, and how much of a core each could have, as last told."""

    @property
    def standing(self) -> tuple[int, int]:
        """Term and epoch. A row voids those of lower ones from its iteration on."""
        return self.term, self.n


class IterationRows(Message, frozen=True, kw_only=True, tag="iterations"):
    """Rows of one job, oldest first."""

    job: JobId
    rows: list[IterationRow]
    balanced: bool = False
    """The scheduler waits for the timings in them."""


class WorkerMean(msgspec.Struct, frozen=True, kw_only=True):
    """Means over the iterations in which a worker had a part, as in `WorkerTiming`; availability is the newest."""

    worker: WorkerId
    samples: float
    compute_s: float
    pull_s: float
    push_s: float
    wait_s: float
    cpu_process: float | None = None
    cpu_host: float | None = None
    memory_bytes: Whole | None = None
    extra: ExtraLeases | None = None


class IterationTimings(Message, frozen=True, kw_only=True, tag="timings"):
    """From the monitor to the scheduler, at once: what is needed of a batch of rows to decide the coming batches.

    Several rows, which come together when iterations are shorter than their way, are one: a plan could not have come
    between them. May be lost.
    """

    job: JobId
    term: Whole
    iteration: Whole
    """The newest of them."""
    workers: list[WorkerMean]
    n: Whole = 0
    """Of the epoch, as in `IterationRow`."""
    waiting: dict[WorkerId, float] = {}
    """As in the newest `IterationRow`."""


class LogLines(Message, frozen=True, kw_only=True, tag="log"):
    """What a trainer printed."""

    job: JobId
    worker: WorkerId
    at: float
    lines: list[str]


TelemetryMessage = IterationRows | LogLines
