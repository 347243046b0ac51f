"""The rules of `ssp` and `asp`, one left out at a time. Each must be found within so many schedules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from protocol_fault import Fault, lending_as, never_gone, of_any_epoch, without_adding
from protocol_faults import NoCallBack
from protocol_inheriting_faults import KeptSkips

from elps.contracts.epoch import Epoch
from elps.contracts.ids import PartitionId, WorkerId
from elps.psshard.core.applying import Applying
from elps.psshard.core.commands import LeaseKind
from elps.psshard.core.cut import Piece
from elps.psshard.core.holes import Applied
from elps.psshard.core.lending import Lending
from elps.psshard.core.part import Advance, Reading, Verdict
from elps.psshard.core.unbarred import UnbarredClock
from elps.stream.interval import Interval

# --- the shard's rules ------------------------------------------------------------------------------------------------


class NoOverlapCheck(Applying):
    """Whatever comes of an iteration that is not complete is applied."""

    def offer(
        self, epoch: Epoch, iteration: int, interval: Interval, partition: PartitionId
    ) -> Verdict:
        verdict = super().offer(epoch, iteration, interval, partition)
        p = self._partitions.get(partition)
        here = verdict is Verdict.HAVE_IT and p is not None and p.version <= iteration
        if here and not self._skips.overlaps(interval):
            p.adding[iteration] += 1
            return Verdict.ACCEPT
        return verdict


class Forgetful(Applying):
    """Of what it has applied only the watermark is known."""

    def advanced(self, done: Advance) -> None:
        super().advanced(done)
        self._partitions[done.partition].accepted.clear()


class NoBound(Applying):
    def reading(self, partition: PartitionId, version: int, *, newest: bool = False) -> Reading:
        p = self._partitions.get(partition)
        if newest and p is not None and self.gate >= version:
            return Reading.READY
        return super().reading(partition, version, newest=newest)


class NoGateAtPulls(Applying):
    def reading(self, partition: PartitionId, version: int, *, newest: bool = False) -> Reading:
        p = self._partitions.get(partition)
        if newest and p is not None and p.version >= version - self._staleness:
            return Reading.READY
        return super().reading(partition, version, newest=newest)


class NoAdding(without_adding(Applying)):  # type: ignore[misc]
    """An iteration counts as complete while a gradient of it is still being applied."""

    def check_invariants(self) -> None:
        """It would tell at once."""


# --- the leader's rules -----------------------------------------------------------------------------------------------


class BeyondEvaluations(Lending):
    """Work is lent beyond a version that is to be evaluated."""

    def _find_open(self, worker: WorkerId, t: int) -> tuple[LeaseKind, int, Piece] | None:
        found = super()._find_open(worker, t)
        if found is not None or self.round is not None:
            return found
        due, self.due = self.due, lambda _: False  # type: ignore[method-assign]
        found = super()._find_open(worker, t)
        self.due = due  # type: ignore[method-assign]
        return found


class WhileEvaluating(Lending):
    """Work is lent while a version is evaluated."""

    def _find_open(self, worker: WorkerId, t: int) -> tuple[LeaseKind, int, Piece] | None:
        found = super()._find_open(worker, t)
        if found is not None or self.round is None:
            return found
        current, self.round = self.round, None
        due, self.due = self.due, lambda _: False  # type: ignore[method-assign]
        found = super()._find_open(worker, t)
        self.due, self.round = due, current  # type: ignore[method-assign]
        return found

    def check_invariants(self, *_: Any) -> None:
        """It would tell at once."""


class NoSaveBoundary(UnbarredClock):
    """A checkpoint is begun at a version that work was lent beyond."""

    def _save(self) -> None:
        if self._saving.wants and self._complete_everywhere and self._goal.halt is None:
            self._out += self._saving.begin(self.t)


class GateFirst(UnbarredClock):
    """Iterations are opened on the shards before anything of them is lent."""

    def _announce(self) -> None:
        self._lending.opened = max(self._lending.opened, self.t + self.rules.ahead)
        super()._announce()


class MovesAlong(UnbarredClock):
    """Copies are made while training goes on, as with a barrier."""

    def _move(self, now: float) -> None:
        super(UnbarredClock, self)._move(now)


class NoPoints(UnbarredClock):
    """What was begun under another leader is cut anew."""

    def take_over(self, partitions: Sequence[Applied]) -> None:
        super().take_over(partitions)
        self._lending.holes = None


class NotBeyond(UnbarredClock):
    """It may rest at any version that is complete, although newer gradients are applied somewhere."""

    def take_over(self, partitions: Sequence[Applied]) -> None:
        evaluated = self._lending.evaluated
        super().take_over(partitions)
        self._least, self._lending.evaluated = self.start, evaluated
        self._lending.opened = self.gate = self.start - 1
        self._out.clear()


def _off(what: str = "", **how: Any) -> dict[str, Any]:
    return {"off": frozenset(what.split()), **how}


UNBARRED_FAULTS = {
    "no-overlap": Fault("a sample is applied twice", 300, {"part": NoOverlapCheck}),
    "no-epoch": Fault(
        "a push of an epoch that is over counts", 2000, {"part": of_any_epoch(Applying)}
    ),
    "forgetful": Fault(
        "what was applied beyond the version is forgotten", 300, {"part": Forgetful}
    ),
    "no-bound": Fault("a pull does not wait for the bound", 300, {"part": NoBound}),
    "no-gate": Fault("a pull does not wait for the gate", 1000, {"part": NoGateAtPulls}),
    "no-adding": Fault("what is being applied counts as applied", 300, {"part": NoAdding}),
    "no-aside": Fault("applied before it is copied for a checkpoint", 300, _off("no-aside")),
    "no-holes": Fault(
        "what is applied beyond the version is not told", 300, _off("no-holes", focus="heirs")
    ),
    "no-points": Fault(
        "pieces of which partitions have a part", 600, {"clock": NoPoints, "focus": "heirs"}
    ),
    "not-beyond": Fault(
        "it rests where some are beyond", 600, {"clock": NotBeyond, "focus": "heirs"}
    ),
    "unsealed": Fault("who was applying goes on to apply", 600, _off("unsealed", focus="heirs")),
    "all-in-force": Fault(
        "skips kept for later come into force",
        300,
        {"taking": KeptSkips, "focus": "heirs"},
        first=2400,
    ),
    "beyond-evaluations": Fault(
        "lent beyond an evaluation", 300, {"clock": lending_as(BeyondEvaluations, UnbarredClock)}
    ),
    "while-evaluating": Fault(
        "lent while evaluating", 300, {"clock": lending_as(WhileEvaluating, UnbarredClock)}
    ),
    "no-call-back": Fault(
        "who waits beside free work is not called back",
        1000,
        {"clock": lending_as(NoCallBack, UnbarredClock)},
    ),
    "no-save-boundary": Fault(
        "checkpointed where work was lent beyond", 300, {"clock": NoSaveBoundary}
    ),
    "gate-first": Fault("opened before anything is lent", 300, {"clock": GateFirst}),
    "moves-along": Fault(
        "copied while training goes on", 300, {"clock": MovesAlong, "focus": "moves"}
    ),
}
"""Found by the world."""

UNBARRED_SPARE = {
    "any-mixture": Fault(
        "a version is read that is a mixture", 1000, {"part": never_gone(Applying)}
    ),
}
"""Kept although nothing comes of leaving it out: who reads a version too late is not asked for it any more."""
