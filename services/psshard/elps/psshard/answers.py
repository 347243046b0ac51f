"""What the shards of a job say to its leader."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from elps.contracts.epoch import Epoch
from elps.contracts.ids import ShardId
from elps.psshard.beginning import Beginning
from elps.psshard.checkpointing import Checkpointing
from elps.psshard.core.clock import Clock
from elps.psshard.core.commands import Command
from elps.psshard.keeping import Keeper
from elps.psshard.origin import Origin
from elps.psshard.reporting import Reporter
from elps.psshard.reports import (
    Followed,
    Frozen,
    Measured,
    Missed,
    Progressed,
    Report,
    Stocked,
    Trouble,
    Unfollowed,
    Worked,
    Written,
)


class Leader(Protocol):
    """What the answers need of the leader: the state that its lock guards, and what can be asked of it."""

    lock: threading.Lock
    epoch: Epoch
    opened: Epoch
    origin: Origin
    reporter: Reporter
    checkpointing: Checkpointing
    keeper: Keeper
    beginning: Beginning

    def event(
        self, ask: Callable[[Clock, float], list[Command]], epoch: Epoch | None = None
    ) -> None:
        """Give the clock an event and execute what it commands."""

    def admit_all(self, epoch: Epoch) -> None:
        """Admit the trainers that waited for the first values."""

    def reopen(self, reason: str, *, must_restore: bool) -> None:
        """Go back to the newest checkpoint."""

    def fail(self, reason: str) -> None:
        """The job cannot go on."""


class Answers:
    """Turns reports into events of the clock."""

    def __init__(self, lead: Leader) -> None:
        self._lead = lead

    def reported(self, shard: ShardId, report: Report) -> None:
        """A shard's answer or progress."""
        epoch = report.epoch
        match report:
            case Progressed(_, version):
                self._lead.event(
                    lambda clock, now: clock.progressed(
                        shard, version, now, exchange=epoch.n - self._lead.opened.n
                    ),
                    epoch,
                )
                self._lead.admit_all(epoch)
            case Measured(_, iteration, norms):
                self._lead.event(lambda clock, _: clock.measured(shard, iteration, norms), epoch)
            case Followed(_, wave, have, version):
                self._lead.event(
                    lambda clock, now: clock.followed(shard, wave, have, version, now), epoch
                )
            case Unfollowed(_, wave, reason):
                why = f"{shard}: {reason}"
                self._lead.event(lambda clock, now: clock.follow_failed(wave, why, now), epoch)
            case Frozen(_, interval, attempt, clean):
                self._lead.event(
                    lambda clock, now: clock.freeze_answered(shard, interval, attempt, clean, now),
                    epoch,
                )
            case Written():
                self._collect(shard, report)
            case Missed(_, version):
                self._abandon(version, epoch)
            case Trouble():
                self._trouble(shard, report)
            case Stocked(_, stock):
                self._lead.beginning.stocked(shard, stock, epoch)
            case Worked(_, s_per_byte):
                self._lead.event(lambda clock, _: clock.worked(shard, s_per_byte), epoch)

    def _abandon(self, version: int, epoch: Epoch) -> None:
        self._lead.reporter.saving(None, time.monotonic())
        self._lead.event(lambda clock, now: clock.checkpoint_abandoned(version, now), epoch)

    def _trouble(self, shard: ShardId, trouble: Trouble) -> None:
        with self._lead.lock:
            if trouble.epoch != self._lead.epoch:
                return
            condemned = self._lead.origin.condemn() if trouble.damaged else None
        what = f"{shard}: {trouble.reason}"
        if trouble.lost:
            self._lead.reopen(
                what, must_restore=self._lead.reporter.progress.checkpoint is not None
            )
        elif condemned is not None:
            reason = f"checkpoint {condemned} cannot be loaded by {shard}: {trouble.reason}"
            self._lead.reopen(reason, must_restore=True)
        elif not trouble.damaged:
            self._lead.fail(what)

    def _collect(self, shard: ShardId, report: Written) -> None:
        with self._lead.lock:
            if report.epoch != self._lead.epoch:
                return
            progress = self._lead.reporter.progress
            manifest = self._lead.checkpointing.take(shard, report, progress, time.time())

        def valid() -> None:
            self._lead.reporter.checkpointed(report.version)
            self._lead.event(
                lambda clock, now: clock.checkpoint_written(report.version, now), report.epoch
            )

        if manifest is not None:
            self._lead.keeper.publish(
                manifest,
                lambda: self._lead.epoch == report.epoch,
                valid,
                lambda: self._abandon(report.version, report.epoch),
            )
