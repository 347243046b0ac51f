"""The protocol with one rule left out. Each must be found by the world within so many schedules."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from protocol_fault import Fault, disputes_as, lending_as, never_gone, of_any_epoch, without_adding

from elps.contracts.epoch import Epoch
from elps.contracts.ids import PartitionId, ShardId, WorkerId
from elps.psshard.core import commands as do
from elps.psshard.core.batches import Tail
from elps.psshard.core.clock import Clock
from elps.psshard.core.commands import Command
from elps.psshard.core.cut import Cut, Hold, Piece
from elps.psshard.core.disputes import Disputes, Outcome
from elps.psshard.core.lending import Lending
from elps.psshard.core.part import Advance, Part, Verdict
from elps.stream.geometry import Geometry
from elps.stream.interval import Interval

# --- the shard's rules ------------------------------------------------------------------------------------------------


class NoOverlapCheck(Part):
    def offer(
        self, epoch: Epoch, iteration: int, interval: Interval, partition: PartitionId
    ) -> Verdict:
        verdict = super().offer(epoch, iteration, interval, partition)
        p = self._partitions.get(partition)
        here = verdict is Verdict.HAVE_IT and p is not None and p.version == iteration
        if here and not p.advancing and not self._skips.overlaps(interval):
            p.adding[iteration] += 1
            return Verdict.ACCEPT
        return verdict


class NoGate(Part):
    def due(self, partition: PartitionId) -> Advance | None:
        self.gate = 10**9
        return super().due(partition)


class NoGranules(Part):
    def __init__(self, epoch: Epoch, geometry: Geometry, skips: tuple[Interval, ...]) -> None:
        super().__init__(epoch, Geometry(geometry.samples, geometry.batch), skips)


class NoFrozen(Part):
    """Answers a freeze, and goes on accepting."""

    def freeze(self, epoch: Epoch, interval: Interval) -> bool:
        clean = super().freeze(epoch, interval)
        self._frozen.discard(interval)
        return clean


# --- the leader's rules -----------------------------------------------------------------------------------------------


class NewCut(Lending):
    """When a worker is lost, the open iteration is cut anew for those who are left."""

    newer = 0

    def leave(self, worker: WorkerId, why: str, pushed: Collection[int] = ()) -> list[Command]:
        out = super().leave(worker, why, pushed)
        for v in sorted(self.cuts)[self.newer :]:
            if self.workers and not any(p.hold is Hold.DISPUTED for p in self.cuts[v].pieces):
                whole, divide = self._rules.geometry.iteration(v), self._rules.geometry.cut
                self.cuts[v] = Cut.fresh(
                    whole, self._batches.shares(self._staying), self._skips, divide
                )
                for w in [w for w, x in self.hands.items() if x.version == v]:
                    self.idle[w] = 0.0
                    del self.hands[w]
        return out


class Recut(NewCut):
    """When a worker is lost, what is lent already of the next iteration is cut anew."""

    newer = 1


class PlanRecuts(Clock):
    """A plan of batches counts at once: iterations that are cut already are cut anew."""

    def plan_batches(
        self,
        number: int,
        shares: Mapping[WorkerId, int],
        reason: str = "",
        tail: Tail = Tail(),  # noqa: B008 (it never changes)
    ) -> list[Command]:
        out, lending = super().plan_batches(number, shares, reason, tail), self._lending
        if lending._batches.number == number and lending.workers:
            for v in lending.cuts:
                lending.cuts[v] = lending._fresh(v)
            for w in list(lending.hands):
                lending.idle[w] = 0.0
                del lending.hands[w]
        return out


class CutAnywhere(Lending):
    """Cuts fall within granules."""

    def _find(self, worker: WorkerId, t: int) -> Any:
        rules = self._rules
        geometry = rules.geometry
        loose = Geometry(geometry.samples, geometry.batch)
        object.__setattr__(rules, "geometry", loose)
        try:
            return super()._find(worker, t)
        finally:
            object.__setattr__(rules, "geometry", geometry)


class NoCallBack(Lending):
    def _call_back(self, t: int, now: float) -> list[Command]:
        return []


class NoSecondCallBack(Lending):
    def called_back(self) -> list[Command]:
        return []


class NoCallToTail(Lending):
    """Who waits for what comes after is not called back to a tail that nobody else may take."""

    def _call_back(self, t: int, now: float) -> list[Command]:
        cut = self.cuts.get(t)
        left = [p for p in cut.pieces if p.hold is Hold.FREE] if cut is not None else []
        return [] if left and all(p.tail for p in left) else super()._call_back(t, now)


class TailCutInPlace(Lending):
    """What is lent off the tail may be cut shorter later."""

    def _of_tail(self, worker: WorkerId, cut: Cut) -> Any:
        lent = [p for p in cut.pieces if p.tail and p.hold is Hold.LENT and p.interval.size > 1]
        if lent and not cut.tail_left:
            lo, hi = lent[0].interval
            lent[0].interval = Interval(lo, hi - 1)
            cut.pieces.insert(
                cut.pieces.index(lent[0]) + 1, Piece(Interval(hi - 1, hi), None, Hold.FREE)
            )
            return cut.for_worker(worker)
        return super()._of_tail(worker, cut)


class RetireRecut(Lending):
    """One that retires is left out of a cut, although somebody waits already for what comes after that."""

    def retire(self, worker: WorkerId, now: float) -> None:
        hands, self.hands = self.hands, {}
        super().retire(worker, now)
        self.hands = hands


class SkipOnSome(Disputes):
    """One clean shard is enough."""

    def answer(self, shard: ShardId, interval: Interval, attempt: int, clean: bool) -> Outcome:
        outcome = super().answer(shard, interval, attempt, clean)
        return Outcome.CLEAN if outcome is Outcome.UNCLEAN else outcome


class AnyAttempt(Disputes):
    """An answer to an earlier freeze counts."""

    def answer(self, shard: ShardId, interval: Interval, attempt: int, clean: bool) -> Outcome:
        dispute = self._open.get(interval)
        return super().answer(shard, interval, dispute.attempt if dispute else attempt, clean)


class NoSecondThaw(Disputes):
    def refused(self) -> list[Interval]:
        return []


class GrantAtOnce(Clock):
    """A bad gradient is skipped without asking."""

    def bad_gradient(
        self, worker: WorkerId, iteration: int, interval: Interval, what: str, now: float
    ) -> list[Command]:
        self._lending.answered(worker, iteration, interval, now)
        piece = self._lending.lent(worker, iteration, interval)
        if piece is not None and not self.over:
            piece.hold = Hold.DISPUTED
            self._lending.cuts[iteration].skip(piece)
            self.skips.add(interval)
            self._out.append(do.Grant(interval, what))
        return self._serve(now)


class NoHoldingBack(Clock):
    """An open evaluation does not hold the gate back."""

    def _announce(self) -> None:
        current, self._lending.round = self._lending.round, None
        due, self._lending.due = self._lending.due, lambda _: False  # type: ignore[method-assign]
        super()._announce()
        self._lending.round, self._lending.due = current, due  # type: ignore[method-assign]


class LateCheckpoint(Clock):
    """Shards hear of a checkpoint some time after its gate."""

    late: list[Command] = []  # noqa: RUF012

    def _take(self) -> list[Command]:
        out, late = super()._take(), self.late
        self.late = [c for c in out if isinstance(c, do.WriteCheckpoint)]
        return [c for c in out if c not in self.late] + late


class AnyCheckpoint(Part):
    """A version that some have left is checkpointed."""

    def rests_at(self, version: int) -> bool:
        return True


class GateAtTheEnd(Clock):
    """The gate is announced where the job rests, too."""

    def _announce(self) -> None:
        passes, self._goal.passes = self._goal.passes, lambda _: True  # type: ignore[method-assign]
        super()._announce()
        self._goal.passes = passes  # type: ignore[method-assign]


class NoRelending(Clock):
    """What is computed but does not become complete is not lent again."""

    def tick(self, now: float) -> list[Command]:
        self._deadlines.stuck = lambda *_: False  # type: ignore[method-assign]
        return super().tick(now)


class NoDeadline(Clock):
    """Who hangs with a lease in hand is waited for."""

    kind = "in hand"

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        overdue = self._deadlines.overdue
        self._deadlines.overdue = lambda *facts: [  # type: ignore[method-assign]
            (w, why) for w, why in overdue(*facts) if self.kind not in why
        ]


class NoDeadlineToCome(NoDeadline):
    """Who is called back and does not come is waited for."""

    kind = "not come"


class NoGreeting(Clock):
    """Who was told the map and never asks is waited for."""

    def greeted(self, worker: WorkerId, now: float) -> list[Command]:
        return []


class NoDeadlineToAsk(NoDeadline):
    """Who asks for nothing is waited for."""

    kind = "nothing asked"


FAULTS = {
    "no-overlap": Fault("a partition accepts what overlaps", 500, {"part": NoOverlapCheck}),
    "no-epoch": Fault(
        "a shard takes pushes of any epoch", 5_000, {"part": of_any_epoch(Part), "focus": "terms"}
    ),
    "no-gate": Fault("partitions do not wait for the gate", 2_000, {"part": NoGate}),
    "no-gone": Fault(
        "a version overwritten is read",
        5_000,
        {"part": never_gone(Part), "focus": "calls"},
        first=1400,
    ),
    "no-recheck": Fault(
        "what is overwritten while it is read counts",
        500,
        {"off": frozenset({"no-recheck"}), "focus": "calls"},
        first=5_000,
    ),
    "no-adding": Fault(
        "a version is written before all is added",
        500,
        {"part": without_adding(Part), "off": frozenset({"no-adding"})},
    ),
    "no-granules": Fault(
        "cuts fall within granules",
        500,
        {"part": NoGranules, "clock": lending_as(CutAnywhere), "off": frozenset({"no-granules"})},
    ),
    "no-half": Fault(
        "a push cut off in the middle leaves its first part",
        5_000,
        {"off": frozenset({"no-half"}), "focus": "hangs"},
    ),
    "no-frozen": Fault(
        "a frozen interval is accepted", 10_000, {"part": NoFrozen, "focus": "skips"}, first=450
    ),
    "new-cut": Fault("an open iteration is cut anew", 1_000, {"clock": lending_as(NewCut)}),
    "plan-recut": Fault(
        "a plan cuts iterations anew that are cut", 300, {"clock": PlanRecuts, "plans": True}
    ),
    "recut": Fault("what is lent is cut anew", 2_000, {"clock": lending_as(Recut)}),
    "retire-recut": Fault(
        "one who retires is left out of a cut while somebody waits for what comes after",
        300,
        {"clock": lending_as(RetireRecut)},
        first=9_700,
    ),
    "no-call-back": Fault("nobody is called back", 2_000, {"clock": lending_as(NoCallBack)}),
    "no-call-to-tail": Fault(
        "nobody is called back to a tail",
        3_000,
        {"clock": lending_as(NoCallToTail), "plans": True},
    ),
    "tail-cut-lent": Fault(
        "what is lent of a tail is cut shorter",
        500,
        {"clock": lending_as(TailCutInPlace), "plans": True},
    ),
    "no-second-call": Fault(
        "a call back that was lost is not repeated",
        10_000,
        {"clock": lending_as(NoSecondCallBack), "focus": "calls"},
    ),
    "grant-at-once": Fault("a skip is granted without freezing", 2_000, {"clock": GrantAtOnce}),
    "skip-on-some": Fault(
        "a skip is granted although a shard was not clean",
        2_000,
        {"clock": disputes_as(SkipOnSome), "focus": "skips"},
    ),
    "no-second-thaw": Fault(
        "a thaw that was lost is not repeated",
        500,
        {"clock": disputes_as(NoSecondThaw), "focus": "skips"},
        first=8_800,
    ),
    "no-holding-back": Fault(
        "an evaluation does not hold the gate back",
        5_000,
        {"clock": NoHoldingBack, "focus": "hangs"},
    ),
    "late-checkpoint": Fault(
        "a version that partitions have left is checkpointed",
        500,
        {"clock": LateCheckpoint, "part": AnyCheckpoint},
    ),
    "gate-at-the-end": Fault(
        "partitions go beyond the version that the job ends at",
        5_000,
        {"clock": GateAtTheEnd, "focus": "pauses"},
    ),
    "no-deadline": Fault("a hung worker is waited for", 1_000, {"clock": NoDeadline}),
    "no-deadline-to-come": Fault(
        "a worker that is called back and does not come is waited for",
        5_000,
        {"clock": NoDeadlineToCome, "focus": "calls"},
    ),
    "no-deadline-to-ask": Fault(
        "a worker that asks for nothing is waited for",
        1_000,
        {"clock": NoDeadlineToAsk, "focus": "hangs"},
    ),
    "no-greeting": Fault(
        "a trainer that hangs while the job is opened anew is waited for",
        200,
        {"clock": NoGreeting, "focus": "hangs", "asked_first": True},
    ),
    "no-relending": Fault(
        "what is computed and never becomes complete is waited for",
        5_000,
        {"clock": NoRelending, "focus": "hangs"},
        first=200,
    ),
}

SPARE = {
    "any-attempt": Fault(
        "an answer to an earlier freeze counts; once a shard was not clean it stays so, and its answers are in order",
        300,
        {"clock": disputes_as(AnyAttempt), "focus": "skips"},
    ),
    "no-granule-check": Fault(
        "a part does not check that intervals fit its geometry; no correct leader lends others",
        300,
        {"part": NoGranules},
    ),
}
