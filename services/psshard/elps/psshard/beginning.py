"""Where a term begins: with what the shards have of the one before, else at a checkpoint, else at version 0.

And where it goes on after a shard was lost: with what the others have, else at a checkpoint.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from typing import Protocol

import structlog

from elps.contracts.epoch import Epoch
from elps.contracts.errors import ProtocolError, TaskError
from elps.contracts.ids import ShardId
from elps.contracts.messages import HostJob
from elps.psshard.core.inheriting import Inheritance, Stock, Stocktaking
from elps.psshard.identity import Identity
from elps.psshard.keeping import Keeper
from elps.psshard.origin import Origin, Source
from elps.psshard.reporting import Reporter
from elps.storage.checkpoints import Manifest

ANSWER_S = 20.0
"""A shard that does not say for so long what it has is taken to have nothing: whatever keeps it, the job goes on."""

log = structlog.get_logger()


class Leader(Protocol):
    """What a beginning needs of the leader."""

    lock: threading.Lock
    epoch: Epoch
    keeper: Keeper
    origin: Origin
    reporter: Reporter

    def now(self) -> float:
        """The time that deadlines go by; asked under the lock."""

    @property
    def goes_back(self) -> bool:
        """Whether it is about to go back to the newest checkpoint."""

    def open(self, source: Source) -> None:
        """Begin from there."""

    def reopen(self, reason: str, *, must_restore: bool) -> None:
        """Go back to the newest checkpoint."""

    def look_again(self) -> None:
        """Trainers that were ready before it was known where to begin are looked at now."""

    def fail(self, reason: str) -> None:
        """The job cannot go on."""


class Beginning:
    """Asks the shards first, and then the store. What shards have needs neither the store nor a trainer."""

    def __init__(self, host: HostJob, lead: Leader) -> None:
        self._job, self._lead = host.job, lead
        self._taking: Stocktaking | None = None  #: None: the shards are not asked, or it is open
        self._shards: set[ShardId] = set()  #: those that are asked, until it is opened
        self._why = ""  #: they are, for people
        self._asked_at = 0.0  #: by the leader's time
        #: whoever decides where to go on opens the job there before anybody else decides
        self.deciding = threading.RLock()
        if host.inherits is not None:
            shards, newest = [a.shard for a in host.shards], host.progress.checkpoint
            self.take(shards, host.inherits, newest, "another shard leads now")
        self._stored: tuple[bytes | None, list[Manifest]] | None = None  #: skips, checkpoints
        self.settled = False  #: it is known what to begin from; perhaps a trainer is needed for it

    @property
    def asks(self) -> bool:
        """Whether shards are to say what they have."""
        return self._taking is not None

    @property
    def holders(self) -> set[ShardId]:
        """Shards that may have something of the job before it is opened: none of them may be let go."""
        return self._shards

    def take(
        self, shards: Collection[ShardId], since: Epoch, checkpoint: int | None, why: str
    ) -> None:
        """Find out what these shards have, under the leader's epoch; it tells them so. Call it under its lock."""
        self._taking, self._shards = Stocktaking(shards, since, checkpoint), set(shards)
        self._why, self._asked_at = why, self._lead.now()

    def tick(self) -> None:
        """Wait no longer for shards that do not answer."""
        with self._lead.lock:
            late = self._lead.now() - self._asked_at > ANSWER_S
            silent = self._taking.awaited if self._taking is not None and late else []
        if silent:
            log.warning("stock_not_told", job=self._job, shards=silent)
            why = f"{', '.join(silent)} said nothing for {ANSWER_S:g} s"
            self.lose(silent, why, if_awaited=True)

    def stocked(self, shard: ShardId, stock: Stock, epoch: Epoch) -> None:
        """A shard has said what it has."""
        with self._lead.lock:
            if self._taking is None or epoch != self._lead.epoch:
                return
            self._taking.took(shard, stock)
        self._decide()

    def lose(self, gone: Collection[ShardId], why: str, *, if_awaited: bool = False) -> None:
        """Some will not say it any more; `if_awaited`: unless they have said it just now."""
        with self._lead.lock:
            if self._taking is not None and if_awaited:
                gone = set(gone) & set(self._taking.awaited)
            if self._taking is None or not self._shards & set(gone):
                return
            for shard in gone:
                self._taking.lost(shard)
            self._shards = self._shards - set(gone)
            self._why = f"{self._why}; {why}"
        self._decide()

    def _decide(self) -> None:
        with self.deciding:
            self._decide_alone()

    def _decide_alone(self) -> None:
        lead = self._lead
        with lead.lock:
            if self._taking is None or self._taking.awaited:
                return
            found, self._taking = self._taking.verdict(), None
            if isinstance(found, Inheritance):
                try:
                    lead.origin.identity = Identity.of_text(found.history.identity)
                except ProtocolError as error:
                    found = str(error)
            resumes, self.settled = self.settled, self.settled or isinstance(found, Inheritance)
        if isinstance(found, Inheritance):
            self._go_on(found)
        with lead.lock:
            self._shards = set()
        if isinstance(found, Inheritance):
            if not resumes:
                lead.look_again()
        elif resumes:
            must_restore = lead.reporter.progress.checkpoint is not None
            lead.reopen(f"{self._why}, and {found}", must_restore=must_restore)
        else:
            lead.reporter.event("rolled_back", f"{self._why}, and {found}")
            self._look()

    def _go_on(self, found: Inheritance) -> None:
        version = f"{found.version}{' and the next' if found.ahead else ''}"
        log.info("inherited", job=self._job, version=version, shards=found.placed)
        lead = self._lead
        if found.promoted:
            partitions = f"{found.promoted} of {len(found.placed)} partitions"
            what = f"{self._why}: {partitions} go on from their replicas at version {found.version}"
            lead.reporter.event("recovered", what)
        lead.open(found)

    def ask_store(self) -> None:
        """Get the newest checkpoint and the skips; waits for the store, however long that takes."""
        stored = self._lead.keeper.skips(), self._lead.keeper.manifests()
        with self._lead.lock:
            self._stored = stored
            if self.settled:
                self._lead.origin.remember_skips(stored[0])
        self._look()

    def _look(self) -> None:
        """Begin at the newest checkpoint, if there is one and no more than that to begin from."""
        lead = self._lead
        try:
            with lead.lock:
                if self.settled or self._taking is not None or self._stored is None:
                    return
                manifest = lead.origin.remember(*self._stored)
                self.settled = True
        except TaskError as error:
            lead.fail(str(error))
            return
        if manifest is not None:
            lead.open(manifest)
        lead.look_again()

    def waiting_for(self) -> str:
        """Who is waited for before the job is opened, for people; call it under the leader's lock."""
        if self._taking is not None:
            awaited = ", ".join(self._taking.awaited)
            return f"{self._why}: waiting for {awaited} to say what is there"
        if not self.settled:
            return self._lead.keeper.trouble or "waiting for the store"
        if self._lead.goes_back:
            return self._lead.keeper.trouble or "going back to the newest checkpoint"
        return "waiting for a trainer to be ready"
