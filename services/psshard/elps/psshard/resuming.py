"""The side of a leader that goes on after something was lost: with what the shards have, or from a checkpoint."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection

import structlog

from elps.contracts.epoch import Epoch
from elps.contracts.ids import JobId, ShardId
from elps.contracts.messages import HostJob, Phase
from elps.psshard.beginning import Beginning
from elps.psshard.core import commands as do
from elps.psshard.core.awake import Awake
from elps.psshard.core.clock import Clock
from elps.psshard.keeping import Keeper
from elps.psshard.origin import Origin, Source
from elps.psshard.peers import Peers
from elps.psshard.reporting import Reporter
from elps.storage.checkpoints import Manifest

log = structlog.get_logger()


class Resuming:
    """Both ways begin another epoch under the same term; trainers stay, and drop what they computed."""

    host: HostJob
    job: JobId
    lock: threading.Lock
    clock: Clock | None
    epoch: Epoch
    opened: Epoch
    origin: Origin
    reporter: Reporter
    keeper: Keeper
    beginning: Beginning
    _me: ShardId
    _peers: Peers
    _awake: Awake
    _ended: tuple[Phase, str] | None
    _reopening: Epoch | None  #: the epoch that is being left for a checkpoint

    def open(self, source: Source) -> None:
        """Begin, or begin again, under the next epoch."""
        raise NotImplementedError

    def fail(self, reason: str) -> None:
        """The job cannot go on."""
        raise NotImplementedError

    def now(self) -> float:
        """The time that the clock and all deadlines of the leader go by; call it under the lock."""
        return self._awake.at(time.monotonic())

    @property
    def _holders(self) -> set[ShardId]:
        """Shards that have, or may have, something of the job; call it under the lock."""
        raise NotImplementedError

    def out_of_use(self, now: float, awake: float) -> list[ShardId]:
        """Shards that the job waits for in vain; the scheduler takes them from it if that lasts."""
        stuck = self.clock.stuck(awake) if self.clock is not None else []
        return sorted({*self._peers.down(now), *stuck} - {self._me})

    def lose(self, gone: Collection[ShardId]) -> None:
        """Shards are gone: go on from what the others have, if these had anything."""
        with self.beginning.deciding:
            self._lose(set(gone), f"{', '.join(sorted(gone))} lost")

    @property
    def goes_back(self) -> bool:
        """Whether it is about to go back to the newest checkpoint; call it under the lock."""
        return self._reopening == self.epoch

    def _lose(self, gone: set[ShardId], why: str) -> None:
        with self.lock:
            clock, left = self.clock, [s for s in self._peers if s not in gone]
            if not self._holders & gone or self._ended is not None:
                return
            self.origin.forget(gone)
            if clock is not None and self.origin.history is not None:
                self.reporter.follow(clock, self.now())
                self.clock, self.epoch = None, Epoch(self.host.term, self.epoch.n + 1)
                self.opened, since = self.epoch, self.origin.history.opened
                self.beginning.take(left, since, self.reporter.progress.checkpoint, why)
            epoch = self.epoch
        self._peers.keep(left)
        if clock is None:
            self.beginning.lose(gone, why)
        else:
            log.warning("shards_lost", job=self.job, shards=sorted(gone))
            self._peers.tell_all(epoch, do.TakeStock())

    def reopen(self, reason: str, *, must_restore: bool) -> None:
        """Go back to the newest checkpoint that can be loaded; once for all that is wrong under an epoch."""
        with self.lock:
            wrong = self.epoch
            if self._reopening == wrong:
                return
            self._reopening = wrong

        def run() -> None:
            manifests = self.keeper.manifests()
            with self.beginning.deciding:
                back_to(manifests)

        def back_to(manifests: list[Manifest]) -> None:
            with self.lock:
                if self.epoch != wrong:
                    return
                manifest = self.origin.usable(manifests)
            if manifest is None and must_restore:
                self.fail(f"{reason}; no older checkpoint is left to go back to")
                return
            self.reporter.event("rolled_back", reason)
            self.open(manifest)

        self.keeper.in_background("back", run)
