"""Sizes of jobs as one decision changes them, each with all the reasons for it."""

from __future__ import annotations

from collections.abc import Iterable

from elps.contracts.ids import JobId
from elps.scheduler.core.policy import HeldFact, Resize

UNFED = 3.0
"""Weight of a job that has not given its early feedback, over that of one that has."""


def worth(job: HeldFact) -> float:
    """What a job's speed counts for."""
    return job.worth if job.fed else job.weight * UNFED


class Sizing:
    """What jobs with a place are to have."""

    def __init__(self, held: Iterable[HeldFact]) -> None:
        self.held = {fact.job: fact for fact in held}
        self.why: dict[JobId, str] = {}  #: of jobs that are to have others than before
        self._workers: dict[JobId, int] = {}
        self._shards: dict[JobId, int] = {}
        self.fastest: set[JobId] = set()  #: of those that give workers up: who gives its fastest

    def size(self, job: HeldFact) -> int:
        """Workers that it is to have."""
        return self._workers.get(job.job, job.workers)

    def width(self, job: HeldFact) -> int:
        """Shards that it is to have."""
        return self._shards.get(job.job, job.shards)

    def resize(self, job: HeldFact, by: int, why: str, *, shards: int = 0) -> None:
        """So many workers, and shards, more or fewer; all reasons are told."""
        self._workers[job.job] = self.size(job) + by
        self._shards[job.job] = self.width(job) + shards
        before = self.why.get(job.job)
        self.why[job.job] = why if before in (None, why) else f"{before}; {why}"

    def resizes(self) -> tuple[Resize, ...]:
        """All changes."""
        return tuple(
            Resize(
                job,
                self.size(self.held[job]),
                self.width(self.held[job]),
                why,
                job in self.fastest,
            )
            for job, why in self.why.items()
        )
