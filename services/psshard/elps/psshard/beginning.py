"""Where a term begins: with what the shards have of the one before, else at a checkpoint, else at version 0."""

from __future__ import annotations

import threading
from typing import Protocol

import structlog

from elps.contracts.errors import TaskError
from elps.contracts.ids import ShardId
from elps.contracts.messages import HostJob
from elps.psshard.core.inheriting import Inheritance, Stock, Stocktaking
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
    """Asks the shards and the store. What shards have needs no store; its skips are added when it answers."""

    def __init__(self, host: HostJob, lead: Leader) -> None:
        self._job, self._lead = host.job, lead
        shards, newest = [a.shard for a in host.shards], host.progress.checkpoint
        self._taking = (
            Stocktaking(shards, host.inherits, newest) if host.inherits is not None else None
        )  #: None: the shards have answered, or are not asked
        self._inheritance: Inheritance | None = None
        self._stored: tuple[bytes | None, list[Manifest]] | None = None  #: skips, checkpoints
        self.settled = False  #: it is known what to begin from; perhaps a trainer is needed for it

    @property
    def asks(self) -> bool:
        """Whether shards are to say what they have."""
        return self._taking is not None

    def stocked(self, shard: ShardId, stock: Stock) -> None:
        """A shard has said what it has."""
        with self._lead.lock:
            if self._taking is None:
                return
            self._taking.took(shard, stock)
            if self._taking.awaited:
                return
            found, self._taking = self._taking.verdict(), None
            if isinstance(found, Inheritance):
                self._inheritance = found
        if isinstance(found, str):
            self._lead.reporter.event("rolled_back", f"another shard leads now, and {found}")
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
        """Begin, if it is known now from what; look at the trainers that were ready before it was."""
        lead, manifest = self._lead, None
        try:
            with lead.lock:
                unknown = self._inheritance is None and self._stored is None
                if self.settled or self._taking is not None or unknown:
                    return
                if self._stored is not None:
                    inherits = self._inheritance is not None
                    manifest = lead.origin.remember(*self._stored, inherits=inherits)
                self.settled = True
                known = lead.origin.identity is not None
        except TaskError as error:
            lead.fail(str(error))
            return
        if known:
            self.begin(manifest)
        lead.look_again()

    def begin(self, manifest: Manifest | None = None) -> None:
        """What the job is, is known now: open it."""
        lead, inheritance = self._lead, self._inheritance
        if inheritance is None:
            lead.open(manifest)
            return
        identity = lead.origin.identity
        assert identity is not None
        if identity.digest != inheritance.history.identity:
            lead.fail("its data, parameters or code are not what they were under the term before")
            return
        version = f"{inheritance.version}{' and the next' if inheritance.ahead else ''}"
        log.info("inherited", job=self._job, version=version, shards=inheritance.placed)
        lead.open(inheritance)

    def waiting_for(self) -> str:
        """Who is waited for before the job is opened, for people; call it under the leader's lock."""
        if self._taking is not None:
            return f"waiting for {', '.join(self._taking.awaited)} to say what is there"
        if not self.settled:
            return self._lead.keeper.trouble or "waiting for the store"
        return "waiting for a trainer to be ready"
