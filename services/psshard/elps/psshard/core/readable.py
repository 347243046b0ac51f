"""How a clock stands: what its leader's beat, its shell and tests read off it. Nothing here changes anything."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from elps.contracts.ids import ShardId, WorkerId
from elps.psshard.core.clipping import Clipping
from elps.psshard.core.deadlines import Deadlines
from elps.psshard.core.goal import Goal
from elps.psshard.core.lending import Lending
from elps.psshard.core.moving import Moving
from elps.psshard.core.replicating import Replicas
from elps.psshard.core.saving import Saving
from elps.psshard.core.skipping import Skipping
from elps.stream.interval import Interval


class Readable:
    """The side of a clock that is only read."""

    start: int
    held: dict[ShardId, int]
    t: int
    gate: int
    expected: set[WorkerId]
    over: bool
    workers: set[WorkerId]
    _goal: Goal
    _lending: Lending
    _deadlines: Deadlines
    _skipping: Skipping
    _clipping: Clipping
    _saving: Saving
    _moving: Moving
    _replicas: Replicas
    _trained_before: float
    _begun: float | None

    @property
    def _complete_everywhere(self) -> bool:
        """Whether all partitions hold version t; false only before the first values are there."""
        return min(self.held.values()) >= self.t

    @property
    def has_values(self) -> bool:
        """Whether every partition has its first values, so that trainers may be lent work.

        Not whether their gate is announced: that waits for an evaluation of them, for which trainers are needed.
        """
        return min(self.held.values()) >= self.start

    @property
    def end(self) -> int:
        """Version that the job ends at; falls when it is stopped early."""
        return self._goal.end

    @property
    def needs_workers(self) -> bool:
        """Whether anything is left to compute before the job rests or ends."""
        evaluating = self.t >= self._goal.end and self._lending.due(self.t)
        evaluating |= self._lending.round is not None
        return self._goal.passes(self.t) or not self._complete_everywhere or evaluating

    @property
    def holders(self) -> set[ShardId]:
        """Shards that hold partitions; see `Moving.holders`."""
        return self._moving.holders

    @property
    def moving(self) -> str:
        """What is on its way between shards, for people."""
        return self._moving.waiting_for()

    def stuck(self, now: float) -> list[ShardId]:
        """Shards that do not take a new map, although their links may be up."""
        return self._moving.stuck(now)

    @property
    def replicas(self) -> str:
        """How the replicas stand, for people; empty for a job without."""
        return self._replicas.state()

    @property
    def boundary(self) -> int | None:
        """Version that the job pauses at; None while it is to go on."""
        return self._goal.boundary

    def trained_s(self, now: float) -> float:
        """Training time over all terms."""
        return self._trained_before + (now - self._begun if self._begun is not None else 0.0)

    @property
    def begun(self) -> bool:
        """Whether leases have been lent."""
        return self._begun is not None

    def quiet_s(self, now: float) -> float:
        """Since when no version has become complete, s."""
        return now - self._deadlines.moved_at

    def waiting_for(self, now: float) -> str:
        """Who is waited for, for people; empty while nothing is."""
        saving = self._saving
        if not self.needs_workers and (saving.writing, saving.seeking) != (None, None):
            version = saving.seeking if saving.writing is None else saving.writing
            return f"checkpoint of version {version}: waiting for the store"
        if self._moving.exchanging or self._goal.halts(self.t):
            return self._moving.waiting_for()
        if not self.workers:
            return "no worker is ready"
        if self._begun is None:
            return f"waiting for {', '.join(sorted(self.expected - self.workers))} to be ready"
        low = self.t if self._complete_everywhere else self.start - 1
        behind = ", ".join(s for s, v in self.held.items() if v <= low)
        if not self._complete_everywhere:
            return f"version {self.t}: waiting for {behind}"
        if copies := self._replicas.waiting_for(self.t):
            return copies
        if awaited := self._skipping.awaited():
            return f"a skip is being decided: waiting for {', '.join(awaited)}"
        if awaited := self._clipping.awaited(self.t):
            return f"iteration {self.t} is to be clipped: waiting for {', '.join(awaited)} to measure it"
        cut = self._lending.cuts.get(self.t)
        if cut is not None and cut.computed and self.gate >= self.t:
            return f"iteration {self.t} is computed: waiting for {behind} to complete it"
        return self._lending.outstanding(self.t, now)

    def check_invariants(self, lent: Callable[[int], Iterable[Interval]]) -> None:
        """Raise `AssertionError` if a state that cannot be has come about. `lent(t)`: all ever lent of an iteration."""
        self._check_gate()
        assert self._goal.halt is None or self.t <= self._goal.halt, (self.t, self._goal.halt)
        if not self.over:
            self._lending.check_invariants(self.t, lent)

    def _check_gate(self) -> None:
        assert self.gate <= self.t <= self.gate + 1, (self.gate, self.t)
