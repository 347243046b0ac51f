"""A leader's dealings with the store: in threads of their own, until the store answers or the job is dropped."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import structlog

from elps.contracts.codec import encode
from elps.contracts.errors import RetryLater
from elps.contracts.ids import JobId
from elps.contracts.topology import skips_key
from elps.psshard.bridge import Bridge
from elps.psshard.orders import RETRY_S, STORE_WAIT_S
from elps.storage.checkpoints import Manifest, all_manifests, is_there, publish
from elps.stream.interval import Interval

T = TypeVar("T")
log = structlog.get_logger()


class Keeper:
    """Reads and writes what must outlive a leader: manifests and granted skips."""

    def __init__(
        self, job: JobId, bridge: Bridge, failed: Callable[[str], None], first_term: int = 0
    ) -> None:
        """What is there of lower terms than `first_term` was left by a leader of an earlier job of this id."""
        self._job, self._bridge, self._failed = job, bridge, failed
        self._first_term = first_term
        self.closed = threading.Event()  #: the job is dropped here
        self._lock = threading.Lock()
        self._skips: list[Interval] = []  #: newest list to be kept
        self._keeping_skips = False  #: a thread writes it, until it is the newest
        self._at_work = 0  #: background threads
        self._trouble = ""  #: what the store last answered, while it does not

    @property
    def trouble(self) -> str:
        """What the store last answered to the leader, or to this shard's share in the job, while it refuses."""
        return self._trouble or self._bridge.store_trouble

    def manifests(self) -> list[Manifest]:
        """All valid checkpoints, newest first."""
        return self._ask(lambda: all_manifests(self._bridge.store, self._job, self._first_term))

    def skips(self) -> bytes | None:
        """The list of granted skips, as it was written."""
        return self._ask(lambda: self._bridge.store.get(self._skips_key))

    def keep_skips(self, skips: list[Interval]) -> None:
        """Write the list of granted skips, in the background: the newest list, by one thread."""
        with self._lock:
            self._skips = skips
            if self._keeping_skips:
                return
            self._keeping_skips = True
        self.in_background("skip", self._write_skips)

    def _write_skips(self) -> None:
        put = self._bridge.store.put
        while True:
            skips = self._skips
            data = encode([[i.lo, i.hi] for i in skips])
            self._ask(lambda data=data: put(self._skips_key, data))  # type: ignore[misc]
            with self._lock:
                if self._skips is skips:
                    self._keeping_skips = False
                    return

    def publish(
        self,
        manifest: Manifest,
        in_force: Callable[[], bool],
        then: Callable[[], None],
        lost: Callable[[], None],
    ) -> None:
        """Make a checkpoint valid in the background, then say so; not once its epoch is over.

        `lost`: some of it is gone from the store.
        """

        def over() -> bool:
            return not in_force()

        def run() -> None:
            if self._ask(lambda: publish(self._bridge.store, manifest), until=over):
                then()
            else:
                log.warning("checkpoint_lost", job=self._job, checkpoint=manifest.name)
                self.closed.wait(
                    RETRY_S
                )  # a store that loses it each time is not kept busy by this
                lost()

        self.in_background("ckpt", run)

    def find(self, version: int, then: Callable[[bool], None]) -> None:
        """Look in the background whether the newest checkpoint is of this version and whole."""

        def run() -> None:
            then(self._ask(lambda: is_there(self._bridge.store, self._job, version)))

        self.in_background("find", run)

    @property
    def _skips_key(self) -> str:
        return skips_key(self._job, self._first_term)

    def _ask(
        self,
        call: Callable[[], Coroutine[Any, Any, T]],
        until: Callable[[], bool] = lambda: False,
    ) -> T:
        """Ask until the store answers; `RetryLater` once the job is dropped here, or it is no use any more."""
        while True:
            if until():
                raise RetryLater("it is no use any more")
            try:
                answer = self._bridge.wait(call(), STORE_WAIT_S, "the store")
            except RetryLater as error:
                self._trouble = str(error)
                log.warning("waiting_for_store", job=self._job, reason=str(error))
                if self.closed.wait(RETRY_S):
                    raise
            else:
                self._trouble = ""
                return answer

    @property
    def at_work(self) -> bool:
        """Whether a thread may still write to the store."""
        with self._lock:
            return self._at_work > 0

    def in_background(self, what: str, run: Callable[[], object]) -> None:
        """Run in a thread; what it raises fails the job, unless that is dropped."""

        def until_dropped() -> None:
            try:
                run()
            except RetryLater as error:  # only once the job is dropped here
                log.info("given_up", job=self._job, what=what, reason=str(error))
            except Exception as error:
                log.exception("leader_failed", job=self._job, what=what)
                self._failed(f"the leader failed in {what}: {type(error).__name__}: {error}")
            finally:
                with self._lock:
                    self._at_work -= 1

        with self._lock:
            self._at_work += 1
        threading.Thread(target=until_dropped, name=f"{what}-{self._job}"[:15], daemon=True).start()
