"""The buses that the contract tests run on: that of one process, and RabbitMQ."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from buses import BOUND_S, Connect

from elps.messaging import receiving
from elps.messaging.amqp import AmqpBus
from elps.messaging.memory import MemoryBroker, MemoryBus
from elps.messaging.port import (
    Bus,
)


@pytest.fixture(params=["memory", pytest.param("amqp", marks=pytest.mark.integration)])
async def connect(request: pytest.FixtureRequest) -> AsyncIterator[Connect]:
    """Makes clients of one empty broker; all are closed at the end."""
    buses: list[Bus] = []
    memory = request.param == "memory"
    broker = MemoryBroker() if memory else None
    url = "" if memory else request.getfixturevalue("fresh_amqp_url")

    async def make() -> Bus:
        name = f"test-{len(buses)}"
        bus: Bus = (
            MemoryBus(broker, name)
            if broker is not None
            else await AmqpBus.connect(url, name=name, timeout_s=BOUND_S)
        )
        buses.append(bus)
        return bus

    yield make
    for bus in buses:
        await bus.close()


@pytest.fixture
async def bus(connect: Connect) -> Bus:
    return await connect()


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tries follow each other at once."""
    monkeypatch.setattr(receiving, "FIRST_PAUSE_S", 0.001)
