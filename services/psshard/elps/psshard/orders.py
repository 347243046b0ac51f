"""The leader's word carried out on one shard; it comes by call on the leader's own shard, by link on the others."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Protocol, TypeVar

import structlog

from elps.contracts.epoch import Epoch
from elps.contracts.errors import ElpsError, InvalidDocument, ProtocolError, RetryLater
from elps.contracts.ids import PartitionId, ShardId
from elps.contracts.messages import HostJob
from elps.contracts.topology import manifests_key
from elps.psshard.aside import Aside
from elps.psshard.assignment import Assignment, NotHere
from elps.psshard.bridge import Bridge
from elps.psshard.core import commands as do
from elps.psshard.core.throttle import Throttle
from elps.psshard.member import Member
from elps.psshard.reports import Stocked, Trouble, Unfollowed
from elps.psshard.wave import Wave
from elps.storage.checkpoints import (
    DamagedCheckpoint,
    Manifest,
    checkpoint_name,
    load_partition,
    read_manifest,
    write_partition,
)
from elps.wire.connection import Connection
from elps.wire.handshake import Hello, Refused, dial

STORE_WAIT_S = 10.0
FEED_WAIT_S, FEED_RETRY_S = 5.0, 0.05
RETRY_S = 1.0
"""Between two tries of the store while it is down; training goes on meanwhile."""

T = TypeVar("T")

log = structlog.get_logger()


Order = (
    Assignment
    | do.AnnounceGate
    | do.Clip
    | do.Freeze
    | do.Thaw
    | do.Grant
    | do.CallBack
    | do.WriteCheckpoint
    | Wave
    | do.Unfollow
    | do.TakeStock
)
"""What a leader says to the shards of its job. Every one may be repeated without harm."""


class Peer(Protocol):
    """A shard as its leader speaks to it."""

    def carry_out(self, epoch: Epoch, order: Order) -> None:
        """Do what the leader says. Nothing waits for it; its answers are reports."""

    def close(self) -> None:
        """The job ends here."""


class Orders:
    """Carries out the leader's word; what takes long is done in threads of its own."""

    def __init__(self, host: HostJob, me: ShardId, member: Member, bridge: Bridge) -> None:
        self.job, self.member, self._bridge = host.job, member, bridge
        self._me, self._secret = me, host.secret
        self._hello = Hello(job=host.job, purpose="feed", sender=me, term=host.term.number)
        self._lock = threading.Lock()
        self._at_work = 0  #: background threads that may still speak to the store

    @property
    def at_work(self) -> bool:
        """Whether something may still be written to the store."""
        with self._lock:
            return self._at_work > 0

    def carry_out(self, epoch: Epoch, order: Order) -> None:
        """Do what the leader says; whatever goes wrong is reported to it."""
        try:
            self._carry_out(epoch, order)
        except ElpsError as error:
            lost = isinstance(error, NotHere)
            self.member.report(Trouble(epoch, str(error), lost=lost))
        except Exception as error:
            self._failed(epoch, type(order).__name__, error)
            log.exception("shard_failed", job=self.job, order=type(order).__name__)

    def _carry_out(self, epoch: Epoch, order: Order) -> None:
        match order:
            case Assignment():
                if self.member.assign(epoch, order) and order.checkpoint and order.partitions:
                    name = order.checkpoint
                    self._start(epoch, "load", lambda: self._load(epoch, order, name))
            case do.AnnounceGate() | do.Clip():
                self._advance(epoch, order)
            case do.Freeze() | do.Thaw() | do.Grant():
                self._skip(epoch, order)
            case do.CallBack(worker, ticket):
                self.member.call_back(epoch, worker, ticket)
            case do.WriteCheckpoint(version, hurry):
                if (aside := self.member.checkpoint(epoch, version, hurry=hurry)) is not None:
                    self._start(epoch, "checkpoint", lambda: self._write(epoch, aside))
            case Wave():
                self._follow(epoch, order)
            case do.Unfollow(wave, standing):
                self.member.unfollow(epoch, wave, replicas=standing)
            case do.TakeStock():
                if (stock := self.member.stock(epoch)) is not None:
                    self.member.report(Stocked(epoch, stock))

    def _advance(self, epoch: Epoch, order: do.AnnounceGate | do.Clip) -> None:
        match order:
            case do.AnnounceGate(version):
                self.member.gate(epoch, version)
            case do.Clip(iteration, factor):
                self.member.clip(epoch, iteration, factor)

    def _skip(self, epoch: Epoch, order: do.Freeze | do.Thaw | do.Grant) -> None:
        match order:
            case do.Freeze(interval, attempt):
                self.member.freeze(epoch, interval, attempt)
            case do.Thaw(interval):
                self.member.thaw(epoch, interval)
            case do.Grant(interval, _):
                self.member.grant(epoch, interval)

    def _follow(self, epoch: Epoch, wave: Wave) -> None:
        def connect(target: ShardId) -> Connection:
            host, port = wave.addresses[target]
            until = time.monotonic() + FEED_WAIT_S
            while True:
                try:
                    return dial(host, port, self._hello, self._secret, peer=target)
                except (RetryLater, Refused) as error:  # it may not have been told of the job yet
                    over = isinstance(error, Refused) and error.code != "later"
                    if over or self.member.closed or time.monotonic() > until:
                        raise
                    time.sleep(FEED_RETRY_S)

        try:
            self.member.follow(epoch, wave, self._me, connect)
        except ProtocolError as error:
            self.member.report(Unfollowed(epoch, wave.number, str(error)))

    def close(self) -> None:
        """The job is dropped here."""
        self.member.close()

    # --- in threads of their own --------------------------------------------------------------------------------------

    def _start(self, epoch: Epoch, what: str, run: Callable[[], None]) -> None:
        """Run in a thread; what it raises is reported: nobody would see it there."""

        def guarded() -> None:
            try:
                run()
            except RetryLater as error:  # only once the job is dropped here
                log.info("given_up", job=self.job, what=what, reason=str(error))
            except Exception as error:
                log.exception("shard_failed", job=self.job, what=what)
                self._failed(epoch, what, error)
            finally:
                with self._lock:
                    self._at_work -= 1

        with self._lock:
            self._at_work += 1
        threading.Thread(target=guarded, name=f"{what}-{self.job}"[:15], daemon=True).start()

    def _failed(self, epoch: Epoch, what: str, error: Exception) -> None:
        self.member.report(Trouble(epoch, f"{what}: {type(error).__name__}: {error}"))

    def _load(self, epoch: Epoch, assignment: Assignment, name: str) -> None:
        try:
            manifest = self._manifest(name)
            for number, start, stop in assignment.partitions:
                entry = manifest.partitions[number] if number < len(manifest.partitions) else None
                if entry is None or (entry.start, entry.stop) != (start, stop):
                    raise DamagedCheckpoint(
                        f"checkpoint {name} has no partition {number} of [{start}, {stop})"
                    )
                partition = PartitionId(number)
                arrays = self._persist(
                    partial(load_partition, self._bridge.store, manifest, partition)
                )
                self.member.bring(epoch, partition, arrays, entry.steps)
        except DamagedCheckpoint as error:
            self.member.report(Trouble(epoch, str(error), damaged=True))
        except RetryLater:
            raise
        except ElpsError as error:
            self.member.report(Trouble(epoch, f"checkpoint {name} cannot be loaded: {error}"))

    def _manifest(self, name: str) -> Manifest:
        data = self._persist(lambda: self._bridge.store.hash_get(manifests_key(self.job), name))
        if data is None:
            raise DamagedCheckpoint(f"checkpoint {name} of job {self.job} is gone from the store")
        try:
            return read_manifest(data)
        except InvalidDocument as error:
            raise DamagedCheckpoint(str(error)) from None

    def _write(self, epoch: Epoch, aside: Aside) -> None:
        name = checkpoint_name(epoch.term.number, epoch.n, aside.version)
        digests: dict[PartitionId, dict[str, int]] = {}
        throttle = Throttle()
        for partition in aside.partitions:
            aside.take(partition)  # all copies first: the next boundary must not wait for them
        for partition in aside.partitions:
            written = self._write_partition(name, aside, partition)
            if written is None:
                return
            digests[partition], took_s = written
            aside.release(partition)
            if partition != aside.partitions[-1]:
                aside.rest(throttle.rest_s(took_s))
        self.member.wrote(aside, digests)

    def _write_partition(
        self, name: str, aside: Aside, partition: PartitionId
    ) -> tuple[dict[str, int], float] | None:
        """Write it, however long the store is away; None once nobody wants it any more.

        With its digests the seconds of the try that succeeded: who waits for the store takes nothing from the training.
        """
        store, arrays = self._bridge.store, aside.take(partition)
        try:
            while self.member.current(aside):
                began = time.monotonic()
                try:
                    digests = self._bridge.wait(
                        write_partition(store, self.job, name, partition, arrays),
                        STORE_WAIT_S,
                        "the store",
                    )
                    return digests, time.monotonic() - began
                except RetryLater as error:
                    self._bridge.store_trouble = str(error)
                    log.warning(
                        "checkpoint_lags", job=self.job, version=aside.version, reason=str(error)
                    )
                    time.sleep(RETRY_S)
        finally:
            self._bridge.store_trouble = ""
        return None

    def _persist(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Ask the store until it answers, or the job is dropped."""
        while True:
            try:
                answer = self._bridge.wait(call(), STORE_WAIT_S, "the store")
            except RetryLater as error:
                if self.member.closed:
                    self._bridge.store_trouble = ""
                    raise
                self._bridge.store_trouble = str(error)
                log.warning("waiting_for_store", job=self.job, reason=str(error))
                time.sleep(RETRY_S)
            else:
                self._bridge.store_trouble = ""
                return answer
