"""Deadlines on progress. Nobody is waited for without one: who lets it pass is given up, and his work is lent again.

A lease may take `slack` times as long as the slowest one seen lately, and `floor_s` at least; before any was seen,
`first_lease_s`. Its time begins when it was lent, or when the version that it needs was complete, whichever is later.
"""

from __future__ import annotations

from collections import deque

from elps.contracts.ids import WorkerId
from elps.psshard.core.commands import LeaseKind
from elps.psshard.core.cut import Cut
from elps.psshard.core.lending import Lease, Lending
from elps.psshard.core.rules import Rules

SEEN = 20
"""Leases of a kind that are remembered: some iterations back, so that one slow phase does not count for ever."""


Seen = dict[LeaseKind, deque[float]]
"""How long leases of each kind took lately, s."""


def nothing_seen() -> Seen:
    """As a term begins. An opening forgets nothing: the work is the same after it."""
    return {"train": deque(maxlen=SEEN), "evaluate": deque(maxlen=SEEN)}


class Deadlines:
    """How long things took, and what takes too long."""

    def __init__(self, rules: Rules, now: float, seen: Seen) -> None:
        self._rules, self._seen = rules, seen
        self.moved_at = now  #: when the newest version was complete everywhere, monotonic s
        self._computed_since: float | None = None  #: all of t is computed, and t may be left, since

    def moved(self, now: float) -> None:
        """A version is complete everywhere."""
        self.moved_at, self._computed_since = now, None

    def took(self, kind: LeaseKind, lent_at: float, now: float) -> None:
        """A lease was answered."""
        self._seen[kind].append(now - max(lent_at, self.moved_at))

    def limit_s(self, kind: LeaseKind) -> float:
        """How long a lease of a kind may take."""
        seen = self._seen[kind]
        slack = self._rules.slack
        return max(self._rules.floor_s, slack * max(seen)) if seen else self._rules.first_lease_s

    def overdue(self, lending: Lending, t: int, now: float) -> list[tuple[WorkerId, str]]:
        """Workers that take too long, in order, and with what. Version `t` must be complete everywhere."""
        late = []
        for worker in sorted(lending.workers):
            lease = lending.hands.get(worker)
            if lease is not None:
                since, what = self._since(lease, t)
                limit_s = self.limit_s(lease.kind)
            else:
                since, what = lending.idle.get(worker), "nothing asked for"
                limit_s = self.limit_s("train")
            if since is not None and now - since > limit_s:
                late.append(
                    (worker, f"hung: {what} for {now - since:.1f} s, limit {limit_s:.1f} s")
                )
        return late

    def _since(self, lease: Lease, t: int) -> tuple[float | None, str]:
        """When the time of a lease began; None while the worker may wait for its version."""
        if lease.version <= t + self._rules.ahead:
            return max(lease.piece.lent_at, self.moved_at), f"{lease} in hand"
        if lease.called_at is not None:
            return max(lease.called_at, self.moved_at), f"called back from {lease}, not come"
        return None, ""

    def stuck(self, cut: Cut | None, now: float) -> bool:
        """Whether all of iteration t has been computed long enough ago, yet it is not complete everywhere.

        The cut is None while nothing would be stuck, since the gate does not let the iteration be left.
        """
        if cut is None or not cut.pieces or not cut.computed:
            self._computed_since = None
        elif self._computed_since is None:
            self._computed_since = now
        elif now - self._computed_since > self.limit_s("train"):
            self._computed_since = None
            return True
        return False
