"""The skip rule: a bad gradient is skipped on every partition or on none (DESIGN, invariant 7).

No mark is ever pushed. The worker reports to the leader, which has every shard *freeze* the interval: from then on no
partition accepts anything that overlaps it. Each shard answers whether it was *clean*, with nothing of it accepted and
its iteration not complete. Only when all were clean is the skip granted: then nobody has counted a part of it, and
nobody will. Otherwise all are thawed and the interval is computed again; a part of it was good for somebody.

Messages are repeated when a link comes back, so an answer may be to an earlier freeze of the same interval, from before
a thaw: each freeze has a number, its *attempt*, and only answers that name it count.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum

from elps.contracts.ids import ShardId
from elps.stream.interval import Interval


class Outcome(Enum):
    """What the answers of all shards come to."""

    OPEN = "open"
    CLEAN = "clean"
    UNCLEAN = "unclean"


@dataclass
class _Dispute:
    attempt: int  #: number of its freeze; answers to another one do not count
    reason: str
    waiting: set[ShardId]  #: shards that have not answered
    clean: bool = field(default=True)  #: whether all answers so far were clean


class Disputes:
    """All skips being decided, and the thaws that may have been lost."""

    def __init__(self, shards: Collection[ShardId]) -> None:
        self._shards = shards  #: those that hold partitions; may change while nothing is open
        self._open: dict[Interval, _Dispute] = {}  #: disjoint, like the pieces they are about
        self._refused: set[Interval] = set()  #: thawed and not open again
        self._attempts = 0

    def begin(self, interval: Interval, reason: str) -> int:
        """Ask every shard about an interval; returns the attempt that the answers must name."""
        self._attempts += 1
        self._refused.discard(interval)
        self._open[interval] = _Dispute(self._attempts, reason, set(self._shards))
        return self._attempts

    def answer(self, shard: ShardId, interval: Interval, attempt: int, clean: bool) -> Outcome:
        """Take one shard's answer; repeats, and answers to what is not asked any more, leave it open."""
        dispute = self._open.get(interval)
        if dispute is None or dispute.attempt != attempt or shard not in dispute.waiting:
            return Outcome.OPEN
        dispute.waiting.discard(shard)
        dispute.clean &= clean
        if dispute.waiting:
            return Outcome.OPEN
        return Outcome.CLEAN if dispute.clean else Outcome.UNCLEAN

    def grant(self, interval: Interval) -> str:
        """The skip is granted; returns the reason it was begun for."""
        return self._open.pop(interval).reason

    def refuse(self, interval: Interval) -> str:
        """The skip is not granted; returns the reason it was begun for."""
        self._refused.add(interval)
        return self._open.pop(interval).reason

    def forget(self, whole: Interval) -> None:
        """An iteration is complete everywhere: nobody needs to be told again what was refused in it."""
        self._refused = {i for i in self._refused if not whole.contains(i)}

    def open(self) -> list[tuple[Interval, int]]:
        """Intervals being decided with their attempts, in order: frozen again when a link comes back."""
        return [(i, self._open[i].attempt) for i in sorted(self._open)]

    def refused(self) -> list[Interval]:
        """Intervals whose thaw is to be said again when a link comes back, in order."""
        return sorted(self._refused)

    def awaited(self) -> list[ShardId]:
        """Shards that have not answered, in order."""
        return sorted({s for d in self._open.values() for s in d.waiting})
