"""The side of a clock that sees to how far the job goes: what ends it, where it pauses, and on what it comes to rest.

It goes up to a *boundary*, a version that nothing was begun beyond. There it evaluates, stands still for a new map or
checkpoints, and rests or ends once the store has what was promised.
"""

from __future__ import annotations

from collections.abc import Mapping

from elps.psshard.core import commands as do
from elps.psshard.core.commands import Command
from elps.psshard.core.readable import Readable
from elps.psshard.core.rows import Rows
from elps.psshard.core.rules import LAST_WORD_S, Rules
from elps.psshard.core.stopping import Stopping


class Resting(Readable):
    """What `Goal`, `Stopping` and `Saving` decide, brought in line with what the clock has under way."""

    rules: Rules
    _stopping: Stopping
    _rows: Rows
    _least: int  #: versions before it have been left, somewhere
    _out: list[Command]

    def _serve(self, now: float) -> list[Command]:
        """Lend what can be lent, announce what can be announced, rest or end when it is time."""
        raise NotImplementedError

    def _stand_still(self) -> None:
        """Nobody was lent anything beyond t, and no evaluation or checkpoint reads it: exchange the map."""
        raise NotImplementedError

    def go_on(self, metrics: Mapping[str, float | None]) -> None:
        """Begin where another leader has ended: what it last evaluated may end the job already.

        An evaluation that was due since, and was lost with it, is done at the version that the job is at.
        """
        self.judge(metrics)
        if self.rules.last_due(self.start) > self._lending.evaluated:
            self._lending.owed = self.start

    def judge(self, metrics: Mapping[str, float | None]) -> None:
        """What was evaluated last, before this clock began, may end the job already."""
        if reached := self._stopping.verdict(metrics):
            self._goal.stop(self._next_boundary(), reached)

    def pause(self, now: float) -> list[Command]:
        """Rest at the next boundary."""
        if not self.over:
            self._goal.pause(self._next_boundary())
        return self._serve(now)

    def resume(self, now: float) -> list[Command]:
        """Go on; a pause that was not reached is taken back."""
        self._goal.resume()
        return self._serve(now)

    def checkpoint_written(self, version: int, now: float) -> list[Command]:
        """The manifest of a checkpoint is in the store."""
        self._saving.written(version, now)
        return self._serve(now)

    def checkpoint_found(self, version: int, there: bool, now: float) -> list[Command]:
        """It was looked for in the store; one that is not there is written again."""
        self._saving.found(version, there, now)
        return self._serve(now)

    def checkpoint_abandoned(self, version: int, now: float) -> list[Command]:
        """A checkpoint cannot be written any more; another is begun at the next boundary."""
        self._saving.abandoned(version)
        return self._serve(now)

    def _next_boundary(self) -> int:
        """The first version that no partition has left or is about to leave."""
        version = max(self._lending.next_boundary(self.t), self._least)
        while version <= self.gate and self._skipping.leaves_nothing(version):
            version += 1
        return version

    def _settle(self, now: float) -> None:
        """At the last boundary: evaluate, checkpoint, then say that the job rests or is done."""
        if self.needs_workers:
            return
        self._out += self._saving.hurry()
        if self._goal.halts(self.t):
            if self._saving.writing is None:
                self._stand_still()
            return
        if self._moving.exchanging:
            return
        if self._saving.lacks(self.t):
            self._out += self._saving.begin(self.t, whatever=True)
            return
        if self._rows.waiting and now - self._deadlines.moved_at < LAST_WORD_S:
            return
        self._out += self._rows.flush()
        ends = self.t >= self._goal.end
        if self._goal.resting and not ends:
            return
        self._out += self._saving.find(self.t, now)
        if self._saving.seeking is not None:
            return
        if ends:
            self.over = True
            self._out.append(do.Finish(self.t, self._goal.reason))
        else:
            self._goal.resting = True
            self._out.append(do.Rest(self.t))
