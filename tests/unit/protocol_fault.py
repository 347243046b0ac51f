"""What it is to leave a rule of the protocol out, and how it is done to a part of the clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from elps.psshard.core.clock import Clock
from elps.psshard.core.disputes import Disputes
from elps.psshard.core.lending import Lending


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


def _with(part_of_clock: Callable[[Clock], None]) -> type[Clock]:
    """A clock one part of which is changed."""

    class Changed(Clock):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            part_of_clock(self)

    return Changed


def lending_as(kind: type[Lending]) -> type[Clock]:
    """A clock that lends in this way."""

    def change(clock: Clock) -> None:
        clock._lending.__class__ = kind

    return _with(change)


def disputes_as(kind: type[Disputes]) -> type[Clock]:
    """A clock that decides skips in this way."""

    def change(clock: Clock) -> None:
        clock._skipping._disputes.__class__ = kind

    return _with(change)
