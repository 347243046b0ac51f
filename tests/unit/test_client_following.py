"""What a program hears that follows a job."""

from __future__ import annotations

import asyncio

from elps.client.control import Client
from elps.contracts import topology
from elps.contracts.codec import encode
from elps.contracts.ids import JobId
from elps.contracts.messages import JobEvent
from elps.messaging.memory import MemoryBroker, MemoryBus

J = JobId("j")


async def test_a_message_that_comes_twice_is_told_once() -> None:
    broker = MemoryBroker()
    bus, other = MemoryBus(broker), MemoryBus(broker)
    told = [("a", "1"), ("a", "1"), ("b", "1"), ("a", "2"), ("a", "1"), ("end", "3")]
    async with asyncio.timeout(10), Client(bus).follow(J) as stream:
        for what, message_id in told:
            event = JobEvent(job=J, what=what, at=1.0)
            await other.publish(
                topology.EVENTS, topology.event_key(J, what), encode(event), message_id=message_id
            )
        heard = []
        async for item in stream:
            assert isinstance(item, JobEvent)
            heard.append(item.what)
            if item.what == "end":
                break
    assert heard == ["a", "b", "a", "end"]
    await bus.close()
    await other.close()
