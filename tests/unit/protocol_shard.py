"""A shard as its shell would be: one `Part` for each epoch, and the arrays of its partitions."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING

from protocol_block import GARBAGE, Aside, Block, Slab
from protocol_estate import Estate, Heir, inherit
from protocol_following import Copy, Following
from protocol_job import State, step
from protocol_net import Link
from protocol_shelf import Pull

from elps.contracts.epoch import NO_EPOCH, Epoch, Standing, standing
from elps.contracts.ids import PartitionId, ShardId, WorkerId
from elps.psshard.core.commands import Move
from elps.psshard.core.part import Advance, Part, Verdict
from elps.stream.interval import Interval

if TYPE_CHECKING:
    from protocol_leader import Leader
    from protocol_trainer import Trainer
    from protocol_world import World


class Shard(Heir):
    """One shard of the job."""

    block_type: type[Block] = Block

    def __init__(self, world: World, name: ShardId) -> None:
        self.world, self.name = world, name
        self.partitions: list[PartitionId] = []
        self.from_leader, self.to_leader = Link(f"L>{name}"), Link(f"{name}>L")
        self.leader: Leader  #: of the term that it was told of last
        self.epoch = self.opened = NO_EPOCH
        self.part: Part | None = None
        self.slab: Slab = {}
        self.estate = Estate()  #: of the term before, until an assignment comes
        self.writes: list[tuple[Part, Slab, Advance, tuple[int, int]]] = []  #: under way
        self.following, self.standing = Following(self), Following(self, standing=True)
        self.spare: dict[PartitionId, Copy] = {}  #: given up, but not useless yet
        self.dead = False
        self.waiting: list[Pull] = []
        self.called: dict[WorkerId, int] = {}
        self.aside: Aside | None = None
        self.low = -1

    def copies(self, standing: bool) -> Following:
        return self.standing if standing else self.following

    def keep(self, copies: dict[PartitionId, Copy]) -> None:
        """Partitions that are not followed here any more, or not owned."""
        for p, copy in copies.items():
            if copy.version >= 0 and (p not in self.spare or self.spare[p].version < copy.version):
                self.spare[p] = copy

    def block_of(self, copy: Copy) -> Block:
        return self.block_type.of(copy)

    def tell(self, call: Callable[..., None], *arguments: object) -> None:
        self.world.net.send(self.to_leader, call, self.name, self.epoch, *arguments)

    # --- the leader's word ----------------------------------------------------------------------------------------

    def assign(
        self,
        epoch: Epoch,
        start: int,
        states: list[State] | None,
        placed: dict[PartitionId, ShardId],
        skips: tuple[Interval, ...],
        opened: Epoch,
        inherited: bool,
    ) -> None:
        """Begin an epoch, without states with what is here; a repeat reports again what may have been lost."""
        if standing(epoch, self.epoch) is Standing.STALE:
            return
        if epoch == self.epoch:
            assert self.part is not None
            for interval in skips:
                self.part.grant(epoch, interval)
            self._advance_all()
            if "no-second-norms" not in self.world.off:
                self._tell_norms(self.part)
            if self.low >= 0:
                self.tell(self.leader.progressed, self.low)
            if self.aside is not None and self.aside.stored:
                self.tell(self.leader.saved, self.aside.version, self.aside.copies)
            return
        mine = [p for p in sorted(placed) if placed[p] == self.name]
        part, slab = self.world.part(epoch, skips), {}
        take_over = inherit if inherited else Shard._carry
        if states is None and not take_over(self, part, slab, mine, start):
            self.world.net.send(self.to_leader, self.leader.trouble, self.name, epoch)
            return
        self._let_go(mine, carried=states is None and not inherited)
        self.epoch, self.opened, self.part, self.partitions = epoch, opened, part, mine
        self.slab, self.called, self.aside, self.low = slab, {}, None, -1
        self.estate = Estate()
        if states is not None:
            for p in mine:
                self.world.net.later(self._load, self.part, p, start, states[p])
        if not mine:
            self._rose(self.world.job.rules.iterations)
        elif states is None:
            self._rose(min(map(part.version, mine)))
        self._look_at_pulls()

    def _let_go(self, mine: list[PartitionId], *, carried: bool) -> None:
        """Another epoch begins: keep what it does not own but may need, if it goes on from this one."""
        old, slab, part = self.spare, self.slab, self.part
        self.spare = {}
        if carried and part is not None and "no-spare" not in self.world.off:
            self.keep(old)
            self.keep(self.following.copies | self.standing.copies)
            for p in part.partitions:
                block, at = slab[p], part.version(p)
                state = block.values[at % 2], block.momentum, part.steps(p)
                before = block.values[(at - 1) % 2]
                self.keep({p: Copy(at, state, block.first, before, block.skips, block.factor)})
            self.spare = {p: copy for p, copy in self.spare.items() if p not in mine}
        self.following.forget()
        self.standing.forget()

    def _carry(self, part: Part, slab: Slab, mine: list[PartitionId], start: int) -> bool:
        """Take over what this shard held or followed; False when something is not here at this version."""
        for p in mine:
            copy = self.following.copies.get(p)
            if copy is not None and (copy.version == start or "any-version" in self.world.off):
                at_start = copy.version == start
                kind = self.block_type
                slab[p] = kind.of(copy) if at_start else kind.at(start, copy.state)
                part.hold(p, start, copy.state[2])
            elif copy is None and p in self.slab and not self.slab[p].writing:
                assert self.part is not None
                if self.part.version(p) != start:
                    return False
                slab[p] = self.slab[p]
                part.hold(p, start, self.part.steps(p))
            else:
                return False
        return True

    def _load(self, part: Part, p: PartitionId, start: int, state: State) -> None:
        if part is not self.part:
            return
        self.slab[p] = self.block_type.at(start, state)
        part.hold(p, start, state[2])
        if len(part.partitions) == len(self.partitions):
            self._rose(start)
        self._look_at_pulls()
        self._advance(part, self.slab, p)

    def follow(
        self, epoch: Epoch, number: int, moves: tuple[Move, ...], standing: bool = False
    ) -> None:
        self.copies(standing).follow(epoch, number, moves)

    def unfollow(self, epoch: Epoch, number: int, standing: bool = False) -> None:
        self.copies(standing).unfollow(epoch, number)

    def gate(self, epoch: Epoch, version: int) -> None:
        if self.part is not None:
            if epoch == self.epoch:
                self.spare = {p: c for p, c in self.spare.items() if c.version >= version}
            self.part.announce_gate(epoch, version)
            self._advance_all()

    def clip(self, epoch: Epoch, t: int, factor: float) -> None:
        if self.part is not None:
            self.part.clip(epoch, t, factor)
            self._advance_all()

    def freeze(self, epoch: Epoch, interval: Interval, attempt: int) -> None:
        if epoch == self.epoch and self.part is not None:
            clean = self.part.freeze(epoch, interval)
            self.tell(self.leader.froze, interval, attempt, clean)

    def thaw(self, epoch: Epoch, interval: Interval) -> None:
        if self.part is not None:
            self.part.thaw(epoch, interval)

    def grant(self, epoch: Epoch, interval: Interval) -> None:
        if self.part is not None:
            self.part.grant(epoch, interval)
            self._advance_all()

    def call_back(self, epoch: Epoch, worker: WorkerId, ticket: int) -> None:
        if epoch == self.epoch:
            self.called[worker] = max(ticket, self.called.get(worker, 0))
            self._look_at_pulls()

    def checkpoint(self, epoch: Epoch, version: int) -> None:
        if epoch != self.epoch or self.part is None:
            return
        if self.aside is not None and self.aside.version == version:
            if self.aside.stored:
                self.tell(self.leader.saved, version, self.aside.copies)
        elif self.part.rests_at(version) or not self.partitions:
            steps = {p: self.part.steps(p) for p in self.part.partitions}
            self.aside = Aside(version, steps)
            for p in self.partitions:
                self.world.net.later(self._copy, self.slab, self.aside, p)
            self.world.net.later(self._store, self.aside)
        else:
            self.world.missed += 1
            self.tell(self.leader.missed, version)

    def _copy(self, slab: Slab, aside: Aside, p: PartitionId) -> None:
        if p not in aside.copies:
            value = slab[p].values[aside.version % 2]
            aside.copies[p] = (value, slab[p].momentum, aside.steps[p])

    def _store(self, aside: Aside) -> None:
        if aside is not self.aside:
            return
        if len(aside.copies) < len(self.partitions):
            self.world.net.later(self._store, aside)
            return
        aside.stored = True
        self.tell(self.leader.saved, aside.version, aside.copies)

    # --- gradients ------------------------------------------------------------------------------------------------

    def push(
        self, trainer: Trainer, epoch: Epoch, t: int, interval: Interval, p: PartitionId, g: int
    ) -> None:
        """A gradient that was received whole."""
        part, slab = self.part, self.slab
        verdict = Verdict.STALE
        if part is not None:
            verdict = part.offer(epoch, t, interval, p)
        if verdict is Verdict.ACCEPT:
            self.world.net.later(self._add, part, slab, trainer, epoch, t, interval, p, g)
        else:
            assert verdict is not Verdict.EARLY
            self._acknowledge(trainer, epoch, t, interval, p)
        if part is not None and "no-adding" in self.world.off:
            self._advance(part, slab, p)

    def half_push(self, epoch: Epoch, t: int, interval: Interval, p: PartitionId, g: int) -> None:
        """A push that was cut off in the middle: nothing, unless the rule is left out."""
        part = self.part
        if "no-half" not in self.world.off or part is None or p not in part.partitions:
            return
        if epoch == self.epoch and part.version(p) == t and interval in part.missing(p):
            self.slab[p].total += g // 2

    def _add(
        self,
        part: Part,
        slab: Slab,
        trainer: Trainer,
        epoch: Epoch,
        t: int,
        interval: Interval,
        p: PartitionId,
        g: int,
    ) -> None:
        self._collect(part, slab, t, interval, p, g)
        part.added(p, t)
        self._acknowledge(trainer, epoch, t, interval, p)
        self._advance(part, slab, p)

    def _collect(
        self, _: Part, slab: Slab, t: int, interval: Interval, p: PartitionId, g: int
    ) -> None:
        if self.world.job.deterministic:
            slab[p].slots.append((interval, g))
        else:
            slab[p].total += g

    def applied(self, _block: Block, _version: int) -> tuple[Interval, ...] | None:
        """What is in the values beyond a version; None with a barrier."""
        return None

    def _acknowledge(
        self, trainer: Trainer, epoch: Epoch, t: int, interval: Interval, p: PartitionId
    ) -> None:
        self.world.net.send(trainer.back[self.name], trainer.acknowledged, epoch, t, interval, p)

    # --- versions -------------------------------------------------------------------------------------------------

    def _advance_all(self) -> None:
        if self.part is not None:
            for p in self.part.partitions:
                self._advance(self.part, self.slab, p)

    def _advance(self, part: Part, slab: Slab, p: PartitionId) -> None:
        if (measured := part.unmeasured(p)) is not None:
            self.world.net.later(self._measure, part, slab, measured)
        advance = part.due(p)
        if advance is None:
            return
        aside = self.aside
        if part is self.part and aside is not None and aside.version == advance.iteration:
            self._copy(slab, aside, p)
        block = slab[p]
        block.values[(advance.iteration + 1) % 2], block.writing = GARBAGE, True
        old, momentum = block.values[advance.iteration % 2], block.momentum
        if advance.count:
            block.momentum = GARBAGE
        write = part, slab, advance, (old, momentum)
        self.writes.append(write)
        self.world.net.later(self._written, write)

    def _measure(self, part: Part, slab: Slab, step: Advance) -> None:
        block = slab[step.partition]
        total = block.total + sum(g for _, g in block.slots)
        part.measured(step, abs(total) / step.count if step.count else 0.0)
        self._tell_norms(part)

    def _tell_norms(self, part: Part) -> None:
        if part is self.part and (norms := part.norms()) is not None:
            self.tell(self.leader.measured, *norms)

    def _written(self, write: tuple[Part, Slab, Advance, tuple[int, int]]) -> None:
        if not any(write is w for w in self.writes):
            return  # it was waited for
        self.writes = [w for w in self.writes if w is not write]
        part, slab, advance, _ = write
        self._write(*write)
        self._advance(part, slab, advance.partition)

    def _write(self, part: Part, slab: Slab, advance: Advance, old: tuple[int, int]) -> None:
        p = advance.partition
        block = slab[p]
        slots = sorted(block.slots)
        assert all(a[0].hi <= b[0].lo for a, b in pairwise(slots)), slots
        total = block.total + sum(g for _, g in slots)
        block.total, block.slots = 0, []
        state = (*old, part.steps(p))
        if advance.count:
            state = step(state, total, advance.count, advance.factor)
            assert state[2] == advance.step
        block.values[(advance.iteration + 1) % 2], block.momentum = state[:2]
        block.writing, block.skips = False, block.skips | {*advance.skipped}
        block.factor = advance.factor
        for feed in block.feeds:
            feed.tell(advance, total)
        part.advanced(advance)
        if part is self.part:
            part.check_invariants()
            self._rose(min(map(part.version, part.partitions)))
            self._look_at_pulls()

    def _rose(self, low: int) -> None:
        if low > self.low and (
            self.part is None or len(self.part.partitions) == len(self.partitions)
        ):
            self.low = low
            self.tell(self.leader.progressed, low)
