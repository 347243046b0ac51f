"""The leader's clock under ``ssp`` and ``asp``, where iterations have no barrier between them.

What differs from `Clock` (docs/protocol.md, "Without a barrier"):

* Iterations are opened one after the other, and the gate of each is announced when it is: at most `Rules.ahead` of them
  beyond the oldest that is not complete everywhere can be computed, and one more is lent early. Shards keep the same
  bound at each pull, so that it holds whatever the leader knows.
* A *boundary* is a version that nothing was opened beyond. Once all before it is complete everywhere, every partition
  is at this version and at no other. Whatever needs a version - an evaluation, a checkpoint, a pause, the end, another
  map - comes to be at a boundary, and nothing is opened until it has begun there.
* Partitions move while the job stands still: there is no sum of a version that a copy could follow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from elps.psshard.core import commands as do
from elps.psshard.core.clock import Clock
from elps.psshard.core.commands import Command
from elps.psshard.core.holes import Applied, Holes
from elps.psshard.core.rules import Rules


class UnbarredClock(Clock):
    """The clock of one job under one epoch; see `Clock`, of which it keeps the interface."""

    def take_over(self, partitions: Sequence[Applied]) -> None:
        """Begin where another leader has ended: each partition is somewhere else, beyond the version to begin at.

        What was opened then is open; the first boundary is beyond it, and what was to be evaluated before was.
        """
        holes = Holes(self.rules.geometry, self.start, partitions)
        self._lending.holes, self._lending.opened = holes, holes.far
        self._least = holes.far + 1
        if holes.far >= self.start:
            self._lending.evaluated = max(self._lending.evaluated, holes.far)

    def go_on(self, metrics: Mapping[str, float | None]) -> None:
        """See `Clock.go_on`; an evaluation that was lost is made up for at the first boundary."""
        told = self._evaluated
        super().go_on(metrics)
        boundary = self._next_boundary()
        self._lending.owed = boundary if self.rules.last_due(boundary) > told else None

    def _serve(self, now: float) -> list[Command]:
        if self.over or self._deaths.doomed:
            return self._take()
        ready = self._begun is not None and self._complete_everywhere
        if ready:
            self._move(now)
            self._save()
        self._announce()
        if self._may_begin(now) and not self._goal.resting and not self._moving.exchanging:
            leases = self._lending.serve(self.t, now)
            self._announce()  # before the leases: who is lent something waits for it
            self._out += leases
        if not self._goal.passes(self.t):
            self._settle(now)
        return self._take()

    def _announce(self) -> None:
        """Announce what is opened; not before all shards have taken the epoch, since others hear nothing of it."""
        if self._lending.opened > self.gate and self._complete_everywhere:
            self.gate = self._lending.opened
            self._out.append(do.AnnounceGate(self.gate))

    def _next_boundary(self) -> int:
        """The first version that nothing was opened beyond."""
        return max(self.t, self._least, self._lending.opened + 1)

    def _save(self) -> None:
        """Come to a boundary for a checkpoint that is wanted; begin it there."""
        goal, saving = self._goal, self._saving
        if saving.wants and goal.save is None and goal.halt is None:
            goal.save = self._next_boundary()
        if goal.save is not None and self.t >= goal.save and self._complete_everywhere:
            goal.save = None
            self._out += saving.begin(self.t)

    def _move(self, now: float) -> None:
        """Stand still at a boundary for as long as there is something to move; only there copies are made."""
        goal, moving = self._goal, self._moving
        self._out += moving.weigh(self.t, now)
        if goal.halt is None and goal.save is None and moving.wants(now):
            if self._saving.writing is None:
                goal.halt = self._next_boundary()
            else:
                self._out += self._saving.hurry()
        if goal.halts(self.t):
            self._out += moving.look(self.t, now)
            goal.halt = goal.halt if moving.wants(now) else None

    def _check_gate(self) -> None:
        assert self.t - 1 <= self.gate <= self.t + self.rules.ahead + 1, (self.gate, self.t)


def clock_for(rules: Rules) -> type[Clock]:
    """The clock that a job needs."""
    return Clock if rules.staleness is None else UnbarredClock
