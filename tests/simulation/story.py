"""What happened in a simulation, told by the logs of all its processes and by whoever does harm to them."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from typing import Any

import structlog
from simulation.clockwork import PROCESS, START_S, VirtualLoop

CRASHES = frozenset(
    (
        "shard_failed",
        "link_failed",
        "feed_failed",
        "connection_failed",
        "failed_in_order",
        "service_failed",
    )
)
"""Logged only where something went wrong that cannot."""


class Story:
    """Lines with the virtual time, and what must not have happened."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self.events: list[tuple[float, str, str, Any]] = []
        self.faults: list[str] = []

    def tell(self, what: str, /, **fields: Any) -> None:
        process = PROCESS.get()
        name = process.name if process is not None else "*"
        self.events.append((self._loop.now - START_S, name, what, fields))

    def wrong(self, what: str) -> None:
        """This cannot be."""
        self.tell(f"WRONG: {what}")
        self.faults.append(what)

    def record(self, _logger: Any, method: str, event: dict[str, Any]) -> Any:
        """As a processor of structlog."""
        what = event.pop("event")
        event.pop("queue", None)
        event.pop("message_id", None)
        self.tell(what, **event)
        process = PROCESS.get()
        failed = method == "exception" or event.get("exc_info") is True or what in CRASHES
        if failed and (process is None or not process.dead):
            self.wrong(f"{what}: {_error()}")
        raise structlog.DropEvent

    @contextlib.contextmanager
    def told_by_logs(self) -> Iterator[None]:
        """Have the services' logs tell it."""
        before = structlog.get_config()
        structlog.configure(
            processors=[structlog.contextvars.merge_contextvars, self.record],
            wrapper_class=structlog.make_filtering_bound_logger("info"),
            cache_logger_on_first_use=False,
        )
        try:
            yield
        finally:
            structlog.configure(**before)

    def lines(self) -> list[str]:
        """For people."""
        return [
            f"{at:9.4f}  {who:<16} {what}" + "".join(f" {k}={v}" for k, v in fields.items())
            for at, who, what, fields in self.events
        ]


def _error() -> str:
    return traceback.format_exc(limit=-6)
