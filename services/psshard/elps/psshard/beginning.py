"""Where a term begins: with what the shards have of the one before, else at a checkpoint, else at version 0."""

from __future__ import annotations

import threading
from typing import Protocol

import structlog

from elps.contracts.errors import ProtocolError, TaskError
from elps.contracts.ids import ShardId
from elps.contracts.messages import HostJob
from elps.psshard.core.inheriting import Inheritance, Stock, Stocktaking
from elps.psshard.identity import Identity
from elps.psshard.keeping import Keeper
from elps.psshard.origin import Origin, Source
from elps.psshard.reporting import Reporter
from elps.storage.checkpoints import Manifest

log = structlog.get_logger()


class Leader(Protocol):
    """What a beginning needs of the leader."""

    lock: threading.Lock
    keeper: Keeper
    origin: Origin
    reporter: Reporter

    def open(self, source: Source) -> None:
        """Begin from there."""

    def look_again(self) -> None:
        """Trainers that were ready before it was known where to begin are looked at now."""

    def fail(self, reason: str) -> None:
        """The job cannot go on."""


class Beginning:
    """Asks the shards first, and then the store. What shards have needs neither the store nor a trainer."""

    def __init__(self, host: HostJob, lead: Leader) -> None:
        self._job, self._lead = host.job, lead
        shards, newest = [a.shard for a in host.shards], host.progress.checkpoint
        self._taking: Stocktaking | None = None  #: None: the shards are not asked, or it is open
        if host.inherits is not None:
            self._taking = Stocktaking(shards, host.inherits, newest)
        self._shards = set(shards)
        self._stored: tuple[bytes | None, list[Manifest]] | None = None  #: skips, checkpoints
        self.settled = False  #: it is known what to begin from; perhaps a trainer is needed for it

    @property
    def asks(self) -> bool:
        """Whether shards are to say what they have."""
        return self._taking is not None

    @property
    def holders(self) -> set[ShardId]:
        """Shards that may have something of the job before it is opened: none of them may be let go."""
        return self._shards if self._taking is not None else set()

    def stocked(self, shard: ShardId, stock: Stock) -> None:
        """A shard has said what it has."""
        lead = self._lead
        with lead.lock:
            if self._taking is None or not self._taking.awaited:
                return  # it was decided
            self._taking.took(shard, stock)
            if self._taking.awaited:
                return
            found = self._taking.verdict()
            if isinstance(found, Inheritance):
                try:
                    lead.origin.identity = Identity.of_text(found.history.identity)
                except ProtocolError as error:
                    found = str(error)
            self.settled = isinstance(found, Inheritance)
        if isinstance(found, Inheritance):
            version = f"{found.version}{' and the next' if found.ahead else ''}"
            log.info("inherited", job=self._job, version=version, shards=found.placed)
            lead.open(found)
        else:
            lead.reporter.event("rolled_back", f"another shard leads now, and {found}")
        with lead.lock:
            self._taking = None
        if self.settled:
            lead.look_again()
        else:
            self._look()

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
            return f"waiting for {', '.join(self._taking.awaited)} to say what is there"
        if not self.settled:
            return self._lead.keeper.trouble or "waiting for the store"
        return "waiting for a trainer to be ready"
