"""What pulls see of a shard, as its shell would have it: they wait for a version, and are answered or called back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from elps.contracts.epoch import Epoch, Standing, standing
from elps.contracts.ids import PartitionId, ShardId, WorkerId
from elps.psshard.core.part import Part, Reading

if TYPE_CHECKING:
    from protocol_block import Slab
    from protocol_trainer import Trainer
    from protocol_world import World


@dataclass
class Pull:
    """A pull that waits."""

    trainer: Trainer
    epoch: Epoch
    version: int
    ticket: int
    newest: bool = False  #: for training without a barrier


class Shelf:
    """The side of a shard that pulls use."""

    world: World
    name: ShardId
    partitions: list[PartitionId]
    epoch: Epoch
    part: Part | None
    slab: Slab
    waiting: list[Pull]
    called: dict[WorkerId, int]

    def pull(
        self, trainer: Trainer, epoch: Epoch, version: int, ticket: int, newest: bool = False
    ) -> None:
        """Every partition at a version: it waits until it can be read, or is told to ask for a lease."""
        self.waiting.append(Pull(trainer, epoch, version, ticket, newest))
        self._look_at_pulls()

    def forget_pulls(self, trainer: Trainer) -> None:
        """Its connection is gone."""
        self.waiting = [w for w in self.waiting if w.trainer is not trainer]

    def _look_at_pulls(self) -> None:
        waiting, self.waiting = self.waiting, []
        self.waiting += [pull for pull in waiting if not self._answer(pull)]

    def _answer(self, pull: Pull) -> bool:
        match standing(pull.epoch, self.epoch):
            case Standing.STALE:
                self._again(pull, stale=True)
                return True
            case Standing.NEWER:
                return False
        if self.part is None:
            return False
        readings = {self.part.reading(p, pull.version, newest=pull.newest) for p in self.partitions}
        if Reading.GONE in readings:
            self._again(pull)
        elif Reading.NOT_YET not in readings:
            half = len(self.partitions) // 2
            read = {p: self._value(self.slab, p, pull) for p in self.partitions[:half]}
            self.world.net.later(self._read_on, self.part, self.slab, pull, read)
        elif self.called.get(pull.trainer.name, 0) >= pull.ticket:
            self._again(pull)
        else:
            return False
        return True

    def _value(self, slab: Slab, p: PartitionId, pull: Pull) -> int:
        return slab[p].values[pull.version % 2]

    def _read_on(self, part: Part, slab: Slab, pull: Pull, read: dict[PartitionId, int]) -> None:
        """The rest is read some time later; what was overwritten meanwhile does not count."""
        for p in part.partitions:
            if p not in read:
                read[p] = self._value(slab, p, pull)
        off = self.world.off
        if part is not self.part and "old-reading" not in off:
            self._again(pull, stale=True)
            return
        readings = (part.reading(p, pull.version, newest=pull.newest) for p in part.partitions)
        good = all(reading is Reading.READY for reading in readings)
        if good or "no-recheck" in off:
            back = pull.trainer.back[self.name]
            self.world.net.send(back, pull.trainer.pulled, self.name, pull.epoch, pull.ticket, read)
        else:
            self._again(pull)

    def _again(self, pull: Pull, *, stale: bool = False) -> None:
        back = pull.trainer.back[self.name]
        self.world.net.send(back, pull.trainer.refused, pull.epoch, pull.ticket, stale)
