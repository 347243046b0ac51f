"""The world of `protocol_world` under ``ssp`` and ``asp``: the same failures, with `Applying` and `UnbarredClock`.

    python tests/unit/protocol_unbarred.py 4711                # one schedule, told message by message
    python tests/unit/protocol_unbarred.py 0 4000              # many
    python tests/unit/protocol_unbarred.py 0 4000 no-bound     # a rule left out: it must be found

Gradients do not depend on the values here, and steps add up; so whatever is applied in whatever order, every partition
ends at its start plus all gradients of all samples, each once. What is read for training is looked at by itself: it has
to hold all iterations that are more than the bound before its own.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

sys.path.append(str(Path(__file__).parent))

import protocol_world
from protocol_block import Block, Slab
from protocol_following import Copy
from protocol_job import Job, State, draw_job
from protocol_shard import Shard
from protocol_shelf import Pull
from protocol_world import World

from elps.contracts.epoch import Epoch
from elps.contracts.ids import PartitionId
from elps.psshard.core.applying import Applying
from elps.psshard.core.clock import Clock
from elps.psshard.core.commands import Lend
from elps.psshard.core.holes import merged
from elps.psshard.core.inheriting import Stocktaking
from elps.psshard.core.part import Advance, Part
from elps.psshard.core.unbarred import UnbarredClock
from elps.stream.interval import Interval, IntervalSet

BOUNDS = (0, 1, 1, 2, 3, 1000)
FOCUSES = ("all",) * 5 + ("skips", "calls", "hangs", "pauses", "terms", "moves", "moves", "heirs")


class _One(list[int]):
    """One buffer for all versions."""

    def __getitem__(self, _: Any) -> Any:
        return super().__getitem__(0)

    def __setitem__(self, _: Any, value: Any) -> None:
        super().__setitem__(0, value)


@dataclass
class LiveBlock(Block):
    """The arrays of one partition, and what of the stream is in them."""

    applied: IntervalSet = field(default_factory=IntervalSet)  #: since `first`

    def __post_init__(self) -> None:
        self.values = _One([list.__getitem__(self.values, 0)])

    @classmethod
    def at(cls, version: int, state: State) -> Self:
        return cls([state[0]], state[1], first=version)

    @classmethod
    def of(cls, copy: Copy) -> Self:
        return replace(cls.at(copy.version, copy.state), skips=copy.skips)

    def heirloom(self) -> Block:
        return replace(self, values=list(self.values), feeds=[], applied=IntervalSet(self.applied))

    def oldest(self, version: int) -> int:
        return version


class LiveShard(Shard):
    """A shard that applies gradients as they come."""

    block_type = LiveBlock
    world: UnbarredWorld

    def gate(self, epoch: Epoch, version: int) -> None:
        super().gate(epoch, version)
        self._look_at_pulls()

    def _collect(
        self, part: Part, slab: Slab, t: int, interval: Interval, p: PartitionId, g: int
    ) -> None:
        aside, block = self.aside, slab[p]
        assert isinstance(block, LiveBlock)
        leaves = aside is not None and part.leaves(aside.version, t)
        if aside is not None and part is self.part and leaves and "no-aside" not in self.world.off:
            self._copy(slab, aside, p)
        block.values[0] += g
        block.momentum += interval.size
        block.applied.add(interval)

    def applied(self, block: Block, version: int) -> tuple[Interval, ...]:
        assert isinstance(block, LiveBlock)
        geometry = self.world.job.geometry
        by_iteration: dict[int, list[Interval]] = {}
        for interval in block.applied:
            t = geometry.iteration_of(interval.lo)
            if t >= version and "no-holes" not in self.world.off:
                by_iteration.setdefault(t, []).append(interval)
        return tuple(i for t in sorted(by_iteration) for i in merged(by_iteration[t]))

    def _advance(self, part: Part, slab: Slab, p: PartitionId) -> None:
        advance = part.due(p)
        if advance is not None:
            self.world.net.later(self._numbered, part, slab, advance)

    def _numbered(self, part: Part, slab: Slab, advance: Advance) -> None:
        p = advance.partition
        slab[p].skips |= {*advance.skipped}
        part.advanced(advance)
        if part is self.part:
            part.check_invariants()
            self._rose(min(map(part.version, part.partitions)))
            self._look_at_pulls()
        self._advance(part, slab, p)

    def _value(self, slab: Slab, p: PartitionId, pull: Pull) -> int:
        block, world = slab[p], self.world
        assert isinstance(block, LiveBlock)
        if pull.newest and self.part is not None:
            for t in range(block.first, pull.version - world.bound):
                whole = world.job.geometry.iteration(t)
                parts = [*block.applied.within(whole), *self.part.skips]
                have = IntervalSet()
                for interval in parts:
                    have.add(interval)
                why = f"partition {p} lacks samples of {t} when {pull.version} is computed"
                assert not list(have.gaps(whole)), why
        return super()._value(slab, p, pull)


class UnbarredWorld(World):
    """One job in one schedule."""

    shard_type = LiveShard

    def __init__(
        self,
        seed: int,
        *,
        part: type[Applying] = Applying,
        clock: Callable[..., Clock] = UnbarredClock,
        taking: type[Stocktaking] = Stocktaking,
        focus: str | None = None,
        off: frozenset[str] = frozenset(),
        bound: int | None = None,
        thorough: bool = False,
        plans: bool = True,
    ) -> None:
        r = random.Random(seed)
        self.bound = r.choice(BOUNDS) if bound is None else bound
        self.opened_ahead = self.bound + 1
        kind: Any = partial(part, staleness=self.bound)
        super().__init__(
            seed,
            part=kind,
            clock=clock,
            taking=taking,
            focus=focus or r.choice(FOCUSES),
            off=off,
            thorough=thorough,
            plans=plans,
        )

    def _draw_job(self, seed: int) -> Job:
        job = draw_job(self.r, self.kind, long=True)
        rules = replace(job.rules, staleness=self.bound)
        return replace(job, rules=rules, deterministic=False, unbarred=True)

    def see_lent(self, lend: Lend, clock: Clock) -> None:
        """Nothing is lent that is further ahead than the bound, and one."""
        if lend.kind == "train":
            assert lend.version <= clock.t + self.bound + 1, (lend, clock.t)
        else:
            assert lend.version == clock.t, (lend, clock.t)


def bad_among(seeds: Iterable[int], **how: Any) -> Iterator[tuple[int, str]]:
    """The schedules of these that are bad, with what is wrong."""
    return protocol_world.bad_among(seeds, UnbarredWorld, **how)


def main(arguments: list[str]) -> int:
    from protocol_unbarred_faults import UNBARRED_FAULTS

    return protocol_world.tell(arguments, UNBARRED_FAULTS, UnbarredWorld)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
