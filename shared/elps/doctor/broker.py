"""Reads the broker, over one connection that is not made anew.

It leaves nothing there: its own queues are exclusive, and the scheduler is asked for something only while it takes
messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

from aio_pika import Message
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage
from aio_pika.connection import Connection, make_url
from aio_pika.exceptions import (
    CONNECTION_EXCEPTIONS,
    AuthenticationError,
    ChannelNotFoundEntity,
    ProbableAuthenticationError,
)
from aiormq.exceptions import ConnectionNotAllowed

from elps.contracts.codec import encode
from elps.contracts.requests import PolicyCommand
from elps.contracts.topology import (
    DEAD,
    EVENTS,
    JOBS,
    POLICY,
    PROBE_KEY,
    SCHEDULER_JOBS_QUEUE,
    TELEMETRY,
)
from elps.contracts.urls import masked
from elps.doctor.core.readings import BrokerReading, QueueReading

CONNECT_S = 5.0
STEP_S = 3.0
"""For one question; a broker that is there answers within milliseconds."""
APART_S = 2.0
"""Between the two looks at each queue: a scheduler that serves takes thousands of messages in it."""
BLOCKED_WAIT_S, BLOCKED_S = 1.0, 1.0
"""A broker that takes no messages says so at once, to whoever publishes; then one is made to wait for so long."""
QUEUES = (SCHEDULER_JOBS_QUEUE, DEAD)
_LOST = (*CONNECTION_EXCEPTIONS, TimeoutError)


async def read_broker(url: str) -> BrokerReading:
    """What there is to know of the broker; never raises for anything that is wrong with it."""
    shown = masked(url)
    connection = None
    try:
        async with asyncio.timeout(CONNECT_S):
            connection = Connection(
                make_url(url), client_properties={"connection_name": "elps doctor"}
            )
            await connection.connect(timeout=CONNECT_S)
        return await _read(connection, shown)
    except (AuthenticationError, ProbableAuthenticationError, ConnectionNotAllowed) as error:
        return BrokerReading(shown, error=_words(error), refused=True)
    except TimeoutError:
        return BrokerReading(shown, error=f"no answer within {CONNECT_S:g} s")
    except (*CONNECTION_EXCEPTIONS, ValueError) as error:
        return BrokerReading(shown, error=_words(error))
    finally:
        if connection is not None:
            with contextlib.suppress(Exception):  # it is thrown away
                async with asyncio.timeout(STEP_S):
                    await connection.close()


async def _read(connection: Connection, shown: str) -> BrokerReading:
    assert connection.transport is not None
    properties: dict[str, Any] = dict(
        getattr(connection.transport.connection, "server_properties", None) or {}
    )
    before = {name: await _queue(connection, name) for name in QUEUES}
    await asyncio.sleep(APART_S)
    queues: dict[str, tuple[QueueReading, QueueReading] | None] = {}
    stuck = {}
    for name, first in before.items():
        second = await _queue(connection, name)
        if isinstance(second, str):
            stuck[name] = second
        elif isinstance(first, QueueReading) and second is not None:
            queues[name] = first, second
        else:
            queues[name] = None if second is None else (second, second)
    blocked = await _blocked(
        connection
    )  # last: a connection that has published may not be read from any more
    denied = {} if blocked else await _denied(connection)
    jobs = queues.get(SCHEDULER_JOBS_QUEUE)
    served = jobs is not None and jobs[1].consumers > 0
    return BrokerReading(
        shown,
        product=_text(properties.get("product", "")),
        version=_text(properties.get("version", "")),
        blocked=blocked,
        denied=denied,
        queues=queues,
        answered=await _answers(connection) if served and not (blocked or denied) else None,
        stuck=stuck,
    )


async def _blocked(connection: Connection) -> bool:
    """Publish what no queue takes, and see whether it stops the connection."""

    async def publish(channel: AbstractChannel) -> None:
        exchange = await channel.get_exchange(TELEMETRY, ensure=False)
        await exchange.publish(Message(b"{}"), PROBE_KEY, mandatory=False)

    with contextlib.suppress(*_LOST):
        await _on_a_channel(connection, publish, confirms=False)
    assert connection.transport is not None
    try:
        await asyncio.sleep(BLOCKED_WAIT_S)
        async with asyncio.timeout(BLOCKED_S):
            await connection.transport.ready()
    except TimeoutError:
        return True
    return False


async def _denied(connection: Connection) -> dict[str, str]:
    """What a service does, on a queue of our own; the first step that is refused ends it."""
    name, step = f"elps.doctor.{secrets.token_hex(6)}", "declare a queue"

    async def act(channel: AbstractChannel) -> None:
        nonlocal step
        queue = await channel.declare_queue(name, exclusive=True, auto_delete=True)
        exchange = await channel.get_exchange(EVENTS, ensure=False)
        step = f"bind to {EVENTS}"
        await queue.bind(exchange, name)
        step = f"publish to {EVENTS}"
        await exchange.publish(Message(b"{}"), name)
        step = "read a queue"
        await queue.get(fail=False)

    try:
        await _on_a_channel(connection, act)
    except ChannelNotFoundEntity:  # no service has ever connected, so there is no exchange yet
        return {}
    except _LOST as error:
        return {step: _words(error)}
    return {}


async def _answers(connection: Connection) -> bool:
    """Ask the scheduler for its policy: the answer comes once all is stored that was asked for before."""
    arrived = asyncio.Event()

    async def hear(_: AbstractIncomingMessage) -> None:
        arrived.set()

    async def ask(channel: AbstractChannel) -> None:
        name = f"elps.doctor.{secrets.token_hex(6)}"
        queue = await channel.declare_queue(name, exclusive=True, auto_delete=True)
        await queue.consume(hear, no_ack=True)
        exchange = await channel.get_exchange(JOBS, ensure=False)
        question = Message(encode(PolicyCommand()), message_id=name, reply_to=name)
        await exchange.publish(question, POLICY, mandatory=False)
        await arrived.wait()

    with contextlib.suppress(*_LOST):
        await _on_a_channel(connection, ask)
    return arrived.is_set()


async def _queue(connection: Connection, name: str) -> QueueReading | str | None:
    """How it is, or why nobody can tell; None when it is not there."""
    found: list[QueueReading] = []

    async def look(channel: AbstractChannel) -> None:
        queue = await channel.declare_queue(name, passive=True)
        result = queue.declaration_result
        found.append(QueueReading(result.message_count or 0, result.consumer_count or 0))

    try:
        await _on_a_channel(connection, look)
    except ChannelNotFoundEntity:
        return None
    except TimeoutError:
        return found[0] if found else f"no answer within {STEP_S:g} s"
    except CONNECTION_EXCEPTIONS as error:
        return found[0] if found else _words(error)
    return found[0]


async def _on_a_channel(
    connection: Connection,
    act: Callable[[AbstractChannel], Awaitable[None]],
    *,
    confirms: bool = True,
) -> None:
    """On one of its own: the broker closes a channel on which it refuses something.

    It ends with the connection: to close it, a broker that takes no messages would be waited for without a bound.
    """
    async with asyncio.timeout(STEP_S):
        channel = connection.channel(publisher_confirms=confirms)
        await channel.initialize()
        await act(channel)


def _words(error: BaseException) -> str:
    return str(error).strip() or type(error).__name__


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
