"""What the leader does about a gradient that is not finite: it asks, then skips it or has it computed again."""

from __future__ import annotations

from collections.abc import Collection

from elps.contracts.ids import ShardId, WorkerId
from elps.psshard.core import commands as do
from elps.psshard.core.commands import Command
from elps.psshard.core.cut import Hold
from elps.psshard.core.disputes import Disputes, Outcome
from elps.psshard.core.lending import Lending
from elps.psshard.core.rules import Rules
from elps.stream.interval import Interval, IntervalSet


class Skipping:
    """The skips of one job under one epoch."""

    def __init__(
        self, rules: Rules, lending: Lending, granted: IntervalSet, shards: Collection[ShardId]
    ) -> None:
        self._rules, self._lending = rules, lending
        self._granted = granted  #: those of earlier epochs, too; lending cuts around them
        self._disputes = Disputes(shards)
        self._in_a_row = 0  #: iterations with a skip, up to the newest complete one

    def bad(self, worker: WorkerId, iteration: int, interval: Interval, what: str) -> list[Command]:
        """A worker's gradient of a lease is not finite: ask whether it may be skipped."""
        piece = self._lending.lent(worker, iteration, interval)
        if piece is None:
            return []
        piece.hold = Hold.DISPUTED
        return [do.Freeze(interval, self._disputes.begin(interval, f"{worker}: {what}"))]

    def answered(
        self, shard: ShardId, interval: Interval, attempt: int, clean: bool
    ) -> list[Command]:
        """A shard has frozen an interval; the last one decides. After a `RollBack` nothing else is to be done."""
        outcome = self._disputes.answer(shard, interval, attempt, clean)
        if outcome is Outcome.OPEN:
            return []
        t = self._rules.geometry.iteration_of(interval.lo)
        piece = self._lending.disputed(t, interval)
        if piece is not None and outcome is Outcome.CLEAN:
            reason = self._disputes.grant(interval)
            self._lending.cuts[t].skip(piece)
            self._granted.add(interval)
            remark = do.Remark("skipped", f"samples {interval}: {reason}", iteration=t)
            return [do.Grant(interval, reason), remark]
        reason = self._disputes.refuse(interval)
        if piece is None:  # a holder of an earlier lease has filled it
            return [do.Thaw(interval)]
        piece.tries += 1
        known = f"a part of it is counted already; {reason}"
        if piece.tries >= self._rules.max_tries:
            why = f"the gradient of {interval} was bad {piece.tries} times and {known}"
            return [do.Thaw(interval), do.RollBack(interval, why)]
        return [do.Thaw(interval), *self._lending.free(t, piece, 1, f"bad gradient, but {known}")]

    def complete(self, t: int) -> int:
        """An iteration is complete everywhere; returns how many of its samples were skipped."""
        whole = self._rules.geometry.iteration(t)
        skipped = sum(s.size for s in self._granted.within(whole))
        self._in_a_row = self._in_a_row + 1 if skipped else 0
        self._disputes.forget(whole)
        return skipped

    @property
    def hopeless(self) -> str:
        """Why the job cannot go on skipping like this; empty while it can."""
        if self._in_a_row < self._rules.max_skipping:
            return ""
        why = "iterations in a row had samples skipped: the gradients are not finite"
        return f"{self._in_a_row} {why}"

    def leaves_nothing(self, t: int) -> bool:
        """Whether nothing of an iteration is left to compute: it becomes complete without anybody's doing."""
        return self._granted.covers(self._rules.geometry.iteration(t))

    def again(self) -> list[Command]:
        """What to say again when a link comes back."""
        thaws: list[Command] = [do.Thaw(i) for i in self._disputes.refused()]
        return thaws + [do.Freeze(i, attempt) for i, attempt in self._disputes.open()]

    def awaited(self) -> list[ShardId]:
        """Shards whose answers are missing, in order."""
        return self._disputes.awaited()
