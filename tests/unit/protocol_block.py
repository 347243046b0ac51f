"""The arrays of a shard in small: a partition has two buffers of values, and one of state."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

from protocol_following import Copy, Feed
from protocol_job import State

from elps.contracts.ids import PartitionId
from elps.stream.interval import Interval

GARBAGE = -1_000_003
"""What is read of a buffer that is being written."""


@dataclass
class Block:
    """The arrays of one partition. They go over as they are to an epoch that begins at the version that is here."""

    values: list[int]  #: version v in buffer v % 2
    momentum: int
    total: int = 0
    slots: list[tuple[Interval, int]] = field(default_factory=list)
    writing: bool = False
    feeds: list[Feed] = field(default_factory=list)  #: are told each sum
    first: int = 0  #: version it came at
    skips: frozenset[Interval] = frozenset()  #: behind it
    factor: float = 1.0  #: on the gradient of the newest step

    @classmethod
    def at(cls, version: int, state: State) -> Self:
        values = [GARBAGE, GARBAGE]
        values[version % 2] = state[0]
        return cls(values, state[1], first=version)

    @classmethod
    def of(cls, copy: Copy) -> Self:
        """Of a partition that followed."""
        block = cls.at(copy.version, copy.state)
        block.first, block.skips, block.factor = copy.first, copy.skips, copy.factor
        if copy.version > copy.first:
            block.values[(copy.version - 1) % 2] = copy.before
        return block

    def heirloom(self) -> Block:
        """Its values and state; what was collected of the open iteration stays with those who may still add to it."""
        values, first = list(self.values), self.first
        return Block(values, self.momentum, first=first, skips=self.skips, factor=self.factor)

    def oldest(self, version: int) -> int:
        """The oldest version that can be read when this is the newest."""
        return max(version - 1, self.first)


Slab = dict[PartitionId, Block]


@dataclass
class Aside:
    """A version copied while training goes on."""

    version: int
    steps: dict[PartitionId, int]
    copies: dict[PartitionId, State] = field(default_factory=dict)
    stored: bool = False
