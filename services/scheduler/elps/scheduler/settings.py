"""What the scheduler reads from the environment."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from elps.scheduler.core.events import Bounds
from elps.scheduler.core.groups import read
from elps.scheduler.core.policies import POLICIES
from elps.scheduler.core.policy import Policy

WEEK_S = 7 * 86_400.0
"""Whoever comes back after a weekend still finds the results; checkpoints lie in the store's memory."""

Seconds = Annotated[float, Meta(gt=0, le=86_400)]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Variables ``ELPS_BEAT_S``, ``ELPS_LOST_S``, ``ELPS_SUSPEND_S``, ``ELPS_KEEP_JOBS_S``, ``ELPS_POLICY``,
    ``ELPS_GROUPS``.
    """

    beat_s: Seconds = 1.0
    """Time between two heartbeats, ours and the members'."""
    lost_s: Seconds = 5.0
    """A member not heard for so long has lost what it held."""
    suspend_s: Seconds = 30.0
    """How long a suspension waits for the jobs' checkpoints before it says which are missing."""
    keep_jobs_s: Annotated[float, Meta(ge=0, le=1e10)] = WEEK_S
    """How long a job is kept after its end, with its checkpoints and its history; 0: for ever."""
    policy: str = "fifo"
    groups: str = ""
    """Weights and quotas, as in ``vision=weight:2,workers:8,shards:4; nlp=workers:4``."""

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise ValueError(f"ELPS_POLICY: {self.policy!r} is not one of {', '.join(POLICIES)}")
        try:
            read(self.groups)
        except ValueError as error:
            raise ValueError(f"ELPS_GROUPS: {error}") from None
        if self.lost_s < 2 * self.beat_s:
            raise ValueError(
                f"ELPS_LOST_S: {self.lost_s:g} is below two heartbeats (ELPS_BEAT_S {self.beat_s:g})"
            )

    def bounds(self) -> Bounds:
        """As the core takes them."""
        return Bounds(
            beat_s=self.beat_s,
            lost_s=self.lost_s,
            suspend_s=self.suspend_s,
            keep_jobs_s=self.keep_jobs_s,
        )

    def chosen_policy(self) -> Policy:
        """The policy named."""
        return POLICIES[self.policy]
