"""What a job's document says to its clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from elps.stream.geometry import Geometry

MAX_DEATHS = 3
"""Workers that may die on one interval before the job fails (DESIGN, section 6)."""
MAX_TRIES = 3
"""Times that a gradient may be bad while its skip cannot be granted, before the job goes back to its checkpoint."""
MAX_SKIPPING = 10
"""Iterations in a row with a skip, after which the job fails: a diverged model skips everything from then on."""
LAST_WORD_S = 1.0
"""How long the end of a job waits for losses and timings that are still on their way."""
EXIT_WAIT_S = 2.0
"""How long the failure of a job waits for what an agent saw of the last worker's exit."""


@dataclass(frozen=True)
class Rules:
    """The fixed terms under which a clock runs. Times in seconds, counts in iterations or samples."""

    geometry: Geometry
    iterations: int
    """Iterations in the whole job; at least 1."""
    test_samples: int = 0
    evaluate_every: int = 0
    """0: never but at the end."""
    evaluate_at_end: bool = False
    checkpoint_every: int = 0
    checkpoint_every_s: float = 0.0
    target_metric: str | None = None
    target: float | None = 0.0
    """None: there is none, and `patience` alone says when it is enough."""
    target_is_maximum: bool = True
    patience: int = 0
    """Evaluations in a row that may be no better by `min_delta`; 0: any number."""
    min_delta: float = 0.0
    time_s: float | None = None
    clip_norm: float | None = None
    """Largest norm of the mean gradient of an iteration; a longer one is made as long. None: any is taken."""
    staleness: int | None = None
    """Iterations before its own that a training lease may lack; None: ``bsp``, where an iteration has a barrier."""
    first_lease_s: float = 600.0
    slack: float = 10.0
    floor_s: float = 5.0
    patience_s: float = 2.0
    """How long the first ready workers wait for the others of the plan before training begins without them."""

    max_deaths: int = MAX_DEATHS
    max_tries: int = MAX_TRIES
    max_skipping: int = MAX_SKIPPING

    @property
    def ahead(self) -> int:
        """Iterations beyond the oldest open one that can be computed while that is open."""
        return self.staleness or 0

    @property
    def evaluates(self) -> bool:
        """Whether any version is ever evaluated."""
        return self.test_samples > 0 and (self.evaluate_every > 0 or self.evaluate_at_end)

    def evaluation_due(self, version: int, end: int) -> bool:
        """Whether this version is to be evaluated."""
        if not self.test_samples or version == 0:
            return False
        if self.evaluate_every and version % self.evaluate_every == 0:
            return True
        return self.evaluate_at_end and version == end

    def last_due(self, version: int) -> int:
        """The newest version before this one that was to be evaluated on the way; -1 if there is none."""
        if not self.test_samples or not self.evaluate_every or version <= self.evaluate_every:
            return -1
        return (version - 1) // self.evaluate_every * self.evaluate_every

    def reached(self, metrics: Mapping[str, float | None]) -> str:
        """How an evaluation reached the job's target, for people; empty when it did not."""
        name, value = self.target_metric, None
        if name is not None:
            value = metrics.get(name)
        if value is None or self.target is None:
            return ""
        met = value >= self.target if self.target_is_maximum else value <= self.target
        return f"{name} reached {value:.6g}, target {self.target:.6g}" if met else ""

    def time_is_up(self, trained_s: float) -> str:
        """Why the job ends after so much training; empty while it goes on."""
        up = self.time_s is not None and trained_s >= self.time_s
        return f"trained for {self.time_s:g} s, the time set" if up else ""
