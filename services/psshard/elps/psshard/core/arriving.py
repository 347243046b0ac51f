"""Ready trainers that are no workers yet: what they owe the leader, and until when.

Told the map of an opening, a trainer ends what it has in hand, connects to the shards, and asks; one brings version 0
besides, if there is no other. Until all that is done it is in no cut and has no lease, so that no other deadline is
about it. Yet a job may have nobody else.
"""

from __future__ import annotations

from elps.contracts.ids import WorkerId
from elps.psshard.core.deadlines import Deadlines
from elps.psshard.core.rules import Rules

CONNECT_S = 30.0
"""To connect to the shards: a trainer gives one up after this time, and ends of itself."""


class Arrivals:
    """Who is awaited, since when; monotonic seconds. Each time begins once, however often something is said again."""

    def __init__(self, rules: Rules, deadlines: Deadlines) -> None:
        self._rules, self._deadlines = rules, deadlines
        self._greeted: dict[WorkerId, float] = {}  #: told the map, not heard of since
        self._bringing: dict[WorkerId, float] = {}  #: told to bring version 0, which is not there

    def greeted(self, worker: WorkerId, now: float) -> None:
        """A trainer is about to be told the map."""
        self._greeted.setdefault(worker, now)

    def brings(self, worker: WorkerId, now: float) -> None:
        """A trainer is about to be told to bring version 0."""
        self._bringing.setdefault(worker, now)

    def asked(self, worker: WorkerId) -> None:
        """It has ended what it had, and is connected."""
        self._greeted.pop(worker, None)

    def joined(self) -> None:
        """A trainer is a worker: the values are there, whoever brought them."""
        self._bringing.clear()

    def gone(self, worker: WorkerId) -> None:
        """Its connection ended, or it was given up."""
        self._greeted.pop(worker, None)
        self._bringing.pop(worker, None)

    def overdue(self, now: float) -> list[tuple[WorkerId, str]]:
        """Trainers that take too long, in order, and with what."""
        ask_s, bring_s = self._limits
        return [
            (worker, f"hung: {what} for {now - since:.1f} s, limit {limit_s:.1f} s")
            for waiting, limit_s, what in (
                (self._greeted, ask_s, "told where the job goes on, nothing asked for"),
                (self._bringing, bring_s, "the first values are not there"),
            )
            for worker, since in sorted(waiting.items())
            if now - since > limit_s
        ]

    @property
    def _limits(self) -> tuple[float, float]:
        """To ask, and to bring version 0. It may just have begun a lease of the epoch before, of whichever kind."""
        limit_s = self._deadlines.limit_s("train")
        if self._rules.evaluates:
            limit_s = max(limit_s, self._deadlines.limit_s("evaluate"))
        return limit_s + CONNECT_S, self._rules.first_lease_s
