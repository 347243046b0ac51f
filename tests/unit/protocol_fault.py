"""What it is to leave a rule of the protocol out, and how it is done to a part of the clock or to a shard's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from elps.contracts.epoch import Epoch
from elps.contracts.ids import PartitionId
from elps.psshard.core.clock import Clock
from elps.psshard.core.disputes import Disputes
from elps.psshard.core.lending import Lending
from elps.psshard.core.part import Advance, Part, Reading, Verdict
from elps.stream.interval import Interval


@dataclass(frozen=True)
class Fault:
    """A rule left out."""

    what: str
    within: int
    """Schedules among which one must be bad."""
    how: dict[str, Any] = field(default_factory=dict)
    """What the world is made of."""
    first: int = 0
    """Seed of the first: a little before one that is known to be bad, where bad ones are rare."""

    def __post_init__(self) -> None:
        # Rare ones are known by the seeds of schedules without plans of batches.
        self.how.setdefault("plans", False)

    @property
    def seeds(self) -> range:
        """The schedules to look at."""
        return range(self.first, self.first + self.within)


def _with(part_of_clock: Callable[[Clock], None], clock: type[Clock] = Clock) -> type[Clock]:
    """A clock one part of which is changed."""

    class Changed(clock):  # type: ignore[valid-type, misc]
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            part_of_clock(self)

    return Changed


def lending_as(kind: type[Lending], clock: type[Clock] = Clock) -> type[Clock]:
    """A clock that lends in this way."""

    def change(changed: Clock) -> None:
        changed._lending.__class__ = kind

    return _with(change, clock)


def disputes_as(kind: type[Disputes]) -> type[Clock]:
    """A clock that decides skips in this way."""

    def change(clock: Clock) -> None:
        clock._skipping._disputes.__class__ = kind

    return _with(change)


def of_any_epoch(part: type[Part]) -> type[Part]:
    """A part that takes pushes of an epoch that is over."""

    class NoEpochCheck(part):  # type: ignore[valid-type, misc]
        def offer(
            self, epoch: Epoch, iteration: int, interval: Interval, partition: PartitionId
        ) -> Verdict:
            verdict = super().offer(self.epoch, iteration, interval, partition)
            return Verdict.STALE if verdict is Verdict.EARLY else verdict

    return NoEpochCheck


def never_gone(part: type[Part]) -> type[Part]:
    """A part that has versions read that it does not hold any more."""

    class NoGone(part):  # type: ignore[valid-type, misc]
        def reading(self, partition: PartitionId, version: int, *, newest: bool = False) -> Reading:
            reading = super().reading(partition, version, newest=newest)
            return Reading.READY if reading is Reading.GONE else reading

    return NoGone


def without_adding(part: type[Part]) -> type[Part]:
    """A part to which what is still being added counts as added."""

    class NoAdding(part):  # type: ignore[valid-type, misc]
        def due(self, partition: PartitionId) -> Advance | None:
            p = self._partitions[partition]
            adding, p.adding = p.adding, Counter()
            advance = super().due(partition)
            p.adding = adding
            return advance

    return NoAdding
