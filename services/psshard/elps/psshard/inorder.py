"""Work that many threads bring and one at a time does, in the order in which it came."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

import structlog

from elps.contracts.ids import JobId

T = TypeVar("T")
log = structlog.get_logger()


class InOrder(Generic[T]):
    """A queue that is worked off by whichever thread finds nobody else at it.

    `put` may be called under a lock that the work itself needs, so that the order is that of the lock; `work` may not.
    """

    def __init__(
        self, job: JobId, do: Callable[[T], object], failed: Callable[[str], object]
    ) -> None:
        self._job, self._do, self._failed = job, do, failed
        self._items: deque[T] = deque()
        self._lock = threading.Lock()
        self._at_work = False

    def put(self, items: Iterable[T]) -> None:
        """Add to the end of the queue."""
        self._items.extend(items)

    def work(self) -> None:
        """Do what is queued, unless another thread is at it: then that one does this as well."""
        while True:
            with self._lock:
                if self._at_work or not self._items:
                    return
                self._at_work = True
            try:
                while self._items:
                    self._do(self._items.popleft())
            except Exception as error:  # a fault of ours; what is left is still in order
                log.exception("failed_in_order", job=self._job)
                self._failed(f"{type(error).__name__}: {error}")
            finally:
                with self._lock:
                    self._at_work = False
