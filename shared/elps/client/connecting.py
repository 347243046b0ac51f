"""A client with a connection of its own, for programs that have no other use for one."""

from __future__ import annotations

import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog

from elps.client.control import ANSWER_S, Client

CONNECT_S = 5.0
"""A broker that is there answers in a fraction of a second."""


@asynccontextmanager
async def connect(
    amqp_url: str, *, timeout_s: float = ANSWER_S, connect_s: float = CONNECT_S
) -> AsyncIterator[Client]:
    """Open a client of the stack whose broker is at `amqp_url`, and close it at the end of the block.

    `elps.local.find.find_stack` tells the address of a local one. `timeout_s` bounds every answer. Raises `RetryLater`
    when the broker is not there within `connect_s`, `SetupError` when it refuses user, password or virtual host. A
    connection that is lost later is made again. A program that has not configured structlog hears warnings alone, on
    standard error.
    """
    from elps.messaging.amqp import AmqpBus  # heavy, and of use only here: commands start at once

    if not structlog.is_configured():
        structlog.configure(
            wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
            logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        )
    bus = await AmqpBus.connect(amqp_url, name="client", timeout_s=connect_s)
    try:
        yield Client(bus, timeout_s=timeout_s)
    finally:
        await bus.close()
