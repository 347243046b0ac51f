"""What trainers and shards say to a leader, as its shell would hear it: events of its clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from protocol_estate import Successor

from elps.contracts.epoch import Epoch
from elps.contracts.ids import PartitionId, ShardId
from elps.psshard.core.clock import Clock
from elps.psshard.core.commands import Command, Timing
from elps.stream.interval import Interval

if TYPE_CHECKING:
    from protocol_trainer import Trainer


class Hearing(Successor):
    """The side of a leader that others talk to."""

    trainers: dict[str, Trainer]  #: connected
    _waiting: dict[str, Trainer]  #: have asked, and are no workers yet
    event: Callable[[Epoch | None, Callable[[Clock], list[Command]]], None]
    reopen: Callable[[Epoch], None]
    _counts: Callable[[Epoch | None], bool]
    _admit: Callable[[], None]

    # --- trainers -------------------------------------------------------------------------------------------------

    def lost(self, trainer: Trainer, cause: str) -> None:
        """Its lease connection ended."""
        if self.trainers.pop(trainer.name, None) is not None:
            self.event(self.epoch, lambda c: c.worker_lost(trainer.name, cause, self.world.now))

    def left(self, trainer: Trainer, _: Epoch) -> None:
        """It says that it goes."""
        if self.trainers.pop(trainer.name, None) is not None:
            now = self.world.now
            self.event(self.epoch, lambda c: c.worker_left(trainer.name, "leaves", now))

    def retires(self, trainer: Trainer, _: Epoch) -> None:
        """It says that it will go."""
        if trainer.name in self.trainers:
            self.event(self.epoch, lambda c: c.worker_retires(trainer.name, self.world.now))

    def exited(self, trainer: Trainer) -> None:
        """Its agent saw its process end."""
        self.trainers.pop(trainer.name, None)
        self.event(self.epoch, lambda c: c.exit_seen(trainer.name, "signal 9", self.world.now))

    def _from(self, trainer: Trainer, epoch: Epoch, call: Callable[[Clock], list[Command]]) -> None:
        if trainer.name in self.trainers:
            self.event(epoch, call)

    def asked(self, trainer: Trainer, epoch: Epoch) -> None:
        if "no-lineage" in self.world.off and epoch != self.epoch:
            return
        self._from(trainer, epoch, lambda c: c.asked(trainer.name, self.world.now))
        if self.world.asked_first and self._counts(epoch):
            self._waiting[trainer.name] = trainer
            self._admit()

    def computed(
        self, w: Trainer, epoch: Epoch, t: int, interval: Interval, loss: float, timing: Timing
    ) -> None:
        now = self.world.now
        self._from(w, epoch, lambda c: c.computed(w.name, t, interval, loss, timing, now))
        self.asked(w, epoch)

    def evaluation(
        self, w: Trainer, epoch: Epoch, version: int, interval: Interval, sums: dict[str, float]
    ) -> None:
        now = self.world.now
        self._from(w, epoch, lambda c: c.evaluated(w.name, version, interval, sums, now))
        self.asked(w, epoch)

    def bad(self, w: Trainer, epoch: Epoch, t: int, interval: Interval) -> None:
        now = self.world.now
        self._from(w, epoch, lambda c: c.bad_gradient(w.name, t, interval, "nan", now))

    def pushed(self, w: Trainer, epoch: Epoch, t: int) -> None:
        self._from(w, epoch, lambda c: c.pushed(w.name, t, 0.1))

    # --- shards ---------------------------------------------------------------------------------------------------

    def progressed(self, s: ShardId, epoch: Epoch, version: int) -> None:
        exchange = epoch.n - self.opened.n
        self.event(epoch, lambda c: c.progressed(s, version, self.world.now, exchange))
        if self.world.asked_first:
            self._admit()

    def measured(self, s: ShardId, epoch: Epoch, t: int, norms: dict[PartitionId, float]) -> None:
        self.event(epoch, lambda c: c.measured(s, t, norms))

    def followed(self, s: ShardId, epoch: Epoch, wave: int, have: int, version: int) -> None:
        self.event(epoch, lambda c: c.followed(s, wave, have, version, self.world.now))

    def unfollowed(self, s: ShardId, epoch: Epoch, wave: int) -> None:
        self.event(epoch, lambda c: c.follow_failed(wave, f"{s}: feed broke", self.world.now))

    def trouble(self, _: ShardId, epoch: Epoch) -> None:
        """A shard has not what the new map says that it has."""
        if epoch == self.epoch:
            self.world.troubles += 1
            self.world.net.later(self.reopen, epoch)

    def froze(self, s: ShardId, epoch: Epoch, i: Interval, attempt: int, clean: bool) -> None:
        self.event(epoch, lambda c: c.freeze_answered(s, i, attempt, clean, self.world.now))

    def missed(self, _: ShardId, epoch: Epoch, version: int) -> None:
        self.event(epoch, lambda c: c.checkpoint_abandoned(version, self.world.now))
