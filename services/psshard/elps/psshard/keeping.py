"""A leader's dealings with the store: in threads of their own, until the store answers or the job is dropped."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import structlog

from elps.contracts.codec import encode
from elps.contracts.errors import RetryLater
from elps.contracts.ids import JobId
from elps.contracts.topology import job_prefix
from elps.psshard.bridge import Bridge
from elps.psshard.orders import RETRY_S, STORE_WAIT_S
from elps.storage.checkpoints import Manifest, all_manifests, publish
from elps.stream.interval import Interval

T = TypeVar("T")
log = structlog.get_logger()


class Keeper:
    """Reads and writes what must outlive a leader: manifests and granted skips."""

    def __init__(self, job: JobId, bridge: Bridge, failed: Callable[[str], None]) -> None:
        self._job, self._bridge, self._failed = job, bridge, failed
        self.closed = threading.Event()  #: the job is dropped here
        self._skips: list[Interval] = []  #: newest list to be kept
        self.trouble = ""  #: what the store last answered, while it does not

    def manifests(self) -> list[Manifest]:
        """All valid checkpoints, newest first."""
        return self._ask(lambda: all_manifests(self._bridge.store, self._job))

    def skips(self) -> bytes | None:
        """The list of granted skips, as it was written."""
        return self._ask(lambda: self._bridge.store.get(self._skips_key))

    def keep_skips(self, skips: list[Interval]) -> None:
        """Write the list of granted skips, in the background."""
        self._skips = skips
        put = self._bridge.store.put

        def newest() -> bytes:  # an earlier list that had to wait must not undo a later one
            return encode([[i.lo, i.hi] for i in self._skips])

        self.in_background("skip", lambda: self._ask(lambda: put(self._skips_key, newest())))

    def publish(self, manifest: Manifest, then: Callable[[], None]) -> None:
        """Make a checkpoint valid in the background, then say so."""

        def run() -> None:
            self._ask(lambda: publish(self._bridge.store, manifest))
            then()

        self.in_background("ckpt", run)

    @property
    def _skips_key(self) -> str:
        return job_prefix(self._job) + "skips"

    def _ask(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Ask until the store answers; `RetryLater` once the job is dropped here."""
        while True:
            try:
                answer = self._bridge.wait(call(), STORE_WAIT_S, "the store")
            except RetryLater as error:
                self.trouble = str(error)
                log.warning("waiting_for_store", job=self._job, reason=str(error))
                if self.closed.wait(RETRY_S):
                    raise
            else:
                self.trouble = ""
                return answer

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

        threading.Thread(target=until_dropped, name=f"{what}-{self._job}"[:15], daemon=True).start()
