"""Whether a new leader can go on from what the shards have, after the leader before it is gone.

A new term need not mean going back to a checkpoint. When a shard hears of one that inherits, it stops serving the term
before, for good, and keeps its blocks. The new leader has every shard say what it has, a *stock*:

- Only what is of one *history* counts: what has become, step by step, of one opening from a checkpoint or from version
  0. A shard that missed a rollback, or was cut off through whole terms, has blocks of an older history.
- By the gate, partitions differ by one version at most. So everything needed is there, if every partition is: at the
  oldest version *t*, or at *t+1* with *t* still readable. What was accepted of iteration *t* is forgotten, its tiling
  is begun anew; a partition at *t+1* drops what it is offered, since it has it.
- A partition may be claimed more than once: by its owner, by those that have copies which follow it, and, while the
  map was being exchanged, by its owner before. The newest version is taken, since an owner is never behind a copy.
- Where a copy takes the place of an owner that has not answered, a new history begins. The owner may live on, cut off
  from everybody, and come back: it may have been further, with skips that nobody else has heard of.
- Without a barrier a partition is at its version and has, beyond it, what it has applied; it can go on with any others.
  What is missing somewhere is lent again (`holes.py`).
- Skips that any partition counts with are in force, and of those that the store knows besides only the ones that no
  partition can have counted: a skip kept for after a rollback may have been counted by those that are at *t+1*.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from elps.contracts.epoch import Epoch
from elps.contracts.ids import PartitionId, ShardId
from elps.psshard.core.holes import Applied, furthest
from elps.stream.geometry import Geometry
from elps.stream.interval import Interval


@dataclass(frozen=True)
class History:
    """What a block has come from: equal for all that belongs together."""

    opened: Epoch
    """The opening from a checkpoint or from version 0; whatever has changed since, it was not the values."""
    identity: str
    """The job's data, parameters and code, as text: a new leader needs no trainer to tell it."""
    elements: int
    """Length of the job's flat vector."""


class Claim(msgspec.Struct, frozen=True, omit_defaults=True):
    """One partition that a shard has: both of its newest versions can be read, or its first."""

    partition: PartitionId
    start: int
    stop: int
    version: int
    """The newest."""
    steps: int
    """Optimizer steps behind it."""
    oldest: int | None = None
    """That can still be read; None: the version before."""
    copy: bool = False
    """It was not owned here: it follows the partition of another shard, or was given to one."""
    applied: tuple[Interval, ...] | None = None
    """Without a barrier: what it has of the iterations from its version on, in order; None under ``bsp``."""
    factor: float = 1.0
    """On the gradient of the step to its version, where the job clips."""

    def serves(self, version: int) -> bool:
        """Whether a job can go on from this version with it."""
        if self.applied is not None:
            return version <= self.version
        oldest = self.version - 1 if self.oldest is None else self.oldest
        return oldest <= version <= self.version <= version + 1


@dataclass(frozen=True)
class Stock:
    """All that a shard has of a job."""

    history: History | None = None
    """None: it has nothing."""
    epoch: Epoch | None = None
    """The one that the claims are of."""
    claims: tuple[Claim, ...] = ()
    skips: tuple[Interval, ...] = ()
    """In force under that epoch."""


@dataclass(frozen=True)
class Inheritance:
    """Where a new leader goes on."""

    history: History
    version: int
    """The oldest that some partition has as its newest."""
    ahead: bool
    """Whether some partition has the next one already."""
    placed: dict[PartitionId, ShardId]
    slices: list[tuple[int, int, int]]
    """Partition number, first element and end; they tile the vector."""
    skips: list[Interval]
    steps: int
    """Optimizer steps behind the version."""
    promoted: int = 0
    """Partitions of which a copy goes on in place of their owner."""
    applied: tuple[Applied, ...] | None = None
    """Without a barrier: where each partition is; None under ``bsp``."""
    factor: float = 1.0
    """On the gradient of the step from the version, if any partition has taken that: the others must take the same."""

    def in_force(self, kept: Iterable[Interval], geometry: Geometry) -> list[Interval]:
        """The skips to go on with; `kept` are those that the store knows."""
        counted = (
            self.version if self.ahead else self.version - 1
        )  #: iterations up to it are, somewhere
        if self.applied is not None:
            counted = furthest(geometry, self.version, self.applied)
        unmet = [i for i in kept if geometry.iteration_of(i.lo) > counted]
        return sorted({*self.skips, *unmet})


class Stocktaking:
    """Collects the stocks of all shards under one new term."""

    def __init__(self, shards: Iterable[ShardId], since: Epoch, checkpoint: int | None) -> None:
        """`since` is the newest opening that the scheduler has heard of, `checkpoint` the version of the newest one."""
        self._since, self._checkpoint = since, checkpoint
        self._awaited = set(shards)
        self._stocks: dict[ShardId, Stock] = {}

    @property
    def awaited(self) -> list[ShardId]:
        """Shards that have not answered, in order."""
        return sorted(self._awaited)

    def took(self, shard: ShardId, stock: Stock) -> None:
        """A shard has answered; its first answer counts, since nothing changes after it."""
        if shard in self._awaited:
            self._awaited.discard(shard)
            self._stocks[shard] = stock

    def lost(self, shard: ShardId) -> None:
        """A shard is gone: it will not answer, and what it has answered is gone with it."""
        self._awaited.discard(shard)
        self._stocks.pop(shard, None)

    def verdict(self) -> Inheritance | str:
        """What is there, once all have answered; or why that is not enough to go on from, for people."""
        histories = {s.history for s in self._stocks.values() if s.history is not None}
        known = [h for h in histories if h.opened == self._since or _after(h.opened, self._since)]
        if not known:
            return "no shard has anything of it"
        newest = max(known, key=lambda h: (h.opened.term.number, h.opened.n))
        if sum(h.opened == newest.opened for h in known) > 1:
            return "the shards have two jobs of one name"
        return self._whole(newest)

    def _whole(self, history: History) -> Inheritance | str:
        ours = {s: x for s, x in sorted(self._stocks.items()) if x.history == history}
        claims: dict[PartitionId, list[_Claimed]] = {}
        for shard, stock in ours.items():
            assert stock.epoch is not None
            for claim in stock.claims:
                claims.setdefault(claim.partition, []).append(_Claimed(claim, stock.epoch, shard))
        if (
            gap := _gap([of[0].claim for _, of in sorted(claims.items())], history.elements)
        ) is not None:
            return f"no shard has the parameters from element {gap} on"
        newest = [max(c.claim.version for c in of) for of in claims.values()]
        version = min(newest)
        best = {p: max(of, key=lambda c: c.rank(version)) for p, of in sorted(claims.items())}
        if not all(c.claim.serves(version) for c in best.values()):
            return f"the shards have versions {version} to {max(newest)}"
        if self._checkpoint is not None and version < self._checkpoint:
            return f"the shards have version {version}, a checkpoint has {self._checkpoint}"
        taken = [c.claim for c in best.values()]
        return Inheritance(
            history=history,
            version=version,
            ahead=any(claim.version > version for claim in taken),
            placed={p: c.shard for p, c in best.items()},
            slices=[(claim.partition, claim.start, claim.stop) for claim in taken],
            skips=sorted({skip for stock in ours.values() for skip in stock.skips}),
            steps=min(claim.steps for claim in taken),
            promoted=sum(claim.copy for claim in taken),
            applied=_between(taken),
            factor=next((claim.factor for claim in taken if claim.version > version), 1.0),
        )


@dataclass(frozen=True)
class _Claimed:
    claim: Claim
    epoch: Epoch
    shard: ShardId

    def rank(self, version: int) -> tuple[bool, int, bool, int, int]:
        """Of two claims to a partition the one with the higher rank is taken."""
        claim, epoch = self.claim, self.epoch
        return claim.serves(version), claim.version, not claim.copy, epoch.term.number, epoch.n


def _between(taken: Sequence[Claim]) -> tuple[Applied, ...] | None:
    """Where each partition is, without a barrier."""
    applied = [(claim.version, claim.applied) for claim in taken if claim.applied is not None]
    return tuple(applied) if applied else None


def _after(one: Epoch, other: Epoch) -> bool:
    return (one.term.number, one.n) > (other.term.number, other.n)


def _gap(claims: Sequence[Claim], elements: int) -> int | None:
    """The first element that none of consecutive claims has; None when they cover the vector."""
    end = 0
    for number, claim in enumerate(claims):
        if (claim.partition, claim.start) != (number, end):
            return end
        end = claim.stop
    return end if end < elements else None
