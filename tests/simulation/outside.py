"""The broker and the store as each process reaches them: slowly, not always, and not once it is dead."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from simulation.clockwork import Process, current

from elps.contracts.errors import RetryLater
from elps.messaging.memory import MemoryBroker, MemoryBus
from elps.messaging.port import Delivery
from elps.messaging.receiving import Receiver, Settle
from elps.storage.memory import MemoryStore

NOTICED_S = 8.0
"""The broker takes back what a client has after two heartbeats that did not come."""
STORE_S = 2e-3
"""The longest that a call of the store takes."""


class AtHome(Receiver):
    """Handles messages as a part of the process that subscribed, not of the one that published."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._process = current()

    def receive(self, delivery: Delivery, settle: Settle) -> None:
        self._process.run_in(super().receive, delivery, settle)


class Bus(MemoryBus):
    """One process's connection to the broker."""

    def __init__(self, broker: MemoryBroker, process: Process) -> None:
        super().__init__(broker, process.name)
        self._process = process
        self._heard = asyncio.Event()  #: clear while it is cut off from the broker
        self._heard.set()
        self._silences = 0
        process.at_death.append(self.vanish)

    @property
    def connected(self) -> bool:
        return self._heard.is_set() and super().connected

    async def _available(self, timeout_s: float, what: str) -> None:
        if not self._heard.is_set():
            try:
                async with asyncio.timeout(timeout_s):
                    await self._heard.wait()
            except TimeoutError:
                raise RetryLater(f"{what}: the broker does not answer") from None
        await super()._available(timeout_s, what)

    def fall_silent(self) -> None:
        """Nothing goes to the broker or comes from it."""
        self._heard.clear()
        self._silences += 1
        loop = asyncio.get_running_loop()
        loop.call_later(NOTICED_S, self._missed, self._silences)

    def _missed(self, silence: int) -> None:
        if silence == self._silences and not self._heard.is_set() and not self._process.dead:
            self._take_back()

    def _take_back(self) -> None:
        for subscription in self.subscriptions:
            queue, consumer = subscription._queue, subscription._consumer
            queue.release(consumer)
            if queue.queue.durable:
                queue.dispatch()
            else:
                queue.ready.clear()

    def speak_again(self) -> None:
        """It is connected again."""
        self._heard.set()
        for subscription in self.subscriptions:
            subscription._queue.dispatch()

    def vanish(self) -> None:
        """Its process is dead: the broker takes back what it had, and drops its queues."""
        self._closed = True
        for subscription in list(self.subscriptions):
            queue, consumer = subscription._queue, subscription._consumer
            queue.consumers.remove(consumer)
            queue.release(consumer)
            if queue.queue.durable:
                queue.dispatch()
            else:
                self.broker.remove(queue.queue.name)
        self.subscriptions.clear()


class Store:
    """One process's connection to the store. A call may fail before it took effect, or after."""

    def __init__(self, shared: MemoryStore, process: Process, rng: random.Random) -> None:
        self._shared, self._process, self._rng = shared, process, rng

    async def _call(self, name: str, *args: Any, **named: Any) -> Any:
        await self._wait()
        if self._process.dead:
            raise RetryLater("the process is dead")
        result = await getattr(self._shared, name)(*args, **named)
        await self._wait()
        if self._shared._outage:
            raise RetryLater("the store was lost before it answered")
        return result

    async def _wait(self) -> None:
        await asyncio.sleep(self._rng.random() * STORE_S if self._rng.random() < 0.3 else 0)

    async def get(self, key: str) -> Any:
        return await self._call("get", key)

    async def put(self, key: str, value: Any) -> None:
        await self._call("put", key, value)

    async def get_many(self, keys: Sequence[str]) -> Any:
        return await self._call("get_many", keys)

    async def present(self, keys: Sequence[str]) -> Any:
        return await self._call("present", keys)

    async def put_many(self, items: Mapping[str, Any]) -> None:
        await self._call("put_many", items)

    async def delete(self, keys: Sequence[str]) -> None:
        await self._call("delete", keys)

    async def hash_get(self, key: str, field: str) -> Any:
        return await self._call("hash_get", key, field)

    async def hash_all(self, key: str) -> Any:
        return await self._call("hash_all", key)

    async def hash_put(self, key: str, field: str, value: bytes) -> None:
        await self._call("hash_put", key, field, value)

    async def hash_delete(self, key: str, fields: Sequence[str]) -> None:
        await self._call("hash_delete", key, fields)

    async def raise_to(self, key: str, at_least: int, update_id: str) -> Any:
        return await self._call("raise_to", key, at_least, update_id)

    async def claim(self, key: str, holder: str, ttl_s: float, **terms: Any) -> Any:
        return await self._call("claim", key, holder, ttl_s, **terms)

    async def release(self, key: str, holder: str) -> None:
        await self._call("release", key, holder)

    async def hash_put_under(
        self, key: str, fields: Mapping[str, bytes], lease_key: str, lease: Any
    ) -> Any:
        return await self._call("hash_put_under", key, fields, lease_key, lease)

    async def delete_under(self, keys: Sequence[str], lease_key: str, lease: Any) -> None:
        await self._call("delete_under", keys, lease_key, lease)

    async def hash_delete_under(
        self, key: str, fields: Sequence[str], lease_key: str, lease: Any
    ) -> None:
        await self._call("hash_delete_under", key, fields, lease_key, lease)

    async def scan(self, prefix: str) -> AsyncIterator[str]:
        await self._call("check")
        async for key in self._shared.scan(prefix):
            yield key

    async def check(self) -> Any:
        return await self._call("check")

    async def close(self) -> None:
        """The shared one stays."""
