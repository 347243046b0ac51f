"""Many jobs handed in at once, and the accounts of what they have at each moment, by what is told of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from elps.client.control import Client
from elps.contracts.codec import decode
from elps.contracts.messages import AgentBeat, JobEvent
from elps.contracts.state import Allocation, JobRecord
from elps.contracts.topology import AGENT_BEAT, EVENTS, MEMBERS
from elps.messaging.amqp import AmqpBus
from elps.messaging.port import Delivery, Queue

AT_ONCE = 50
"""Submissions that wait for their answers."""
WHOLE_S = 240.0
QUEUE = "elps.follow.crowd"


@dataclass
class Accounts:
    """Who has what, as the scheduler tells it with each change and as the agents show it."""

    worker_slots: int
    """Of each agent."""
    shard_slots: int
    held: dict[str, Allocation] = field(default_factory=dict)
    ended: dict[str, JobRecord] = field(default_factory=dict)
    fed_at: dict[str, float] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    most: int = 0
    """Worker slots that were given out at the same time."""
    changes: int = 0

    def told(self, event: JobEvent) -> None:
        """The scheduler tells of a change, with what the job has from then on; shards tell of other things."""
        record = event.record
        if record is None:
            return
        self.changes += 1
        if event.what == "feedback":
            self.fed_at[event.job] = event.at
        self.held.pop(event.job, None)
        if record.allocation is not None:
            self.held[event.job] = record.allocation
        if record.state.ended:
            self.ended[event.job] = record
        workers = Counter(a for held in self.held.values() for a in held.workers.values())
        shards = Counter(s for held in self.held.values() for s in held.shards)
        self.most = max(self.most, workers.total())
        for given, slots in ((workers, self.worker_slots), (shards, self.shard_slots)):
            self.problems += [
                f"{member} has {count} of {slots} slots given, after {event.job} was {event.what}"
                for member, count in given.items()
                if count > slots
            ]

    def shown(self, beat: AgentBeat) -> None:
        """An agent shows its trainers."""
        alive = [t for t in beat.trainers if t.state != "exited"]
        if len(alive) > self.worker_slots:
            names = [f"{t.job} {t.worker}" for t in alive]
            self.problems.append(f"{beat.agent} runs {names} in {self.worker_slots} slots")


async def crowd(
    amqp_url: str, documents: Sequence[Mapping[str, Any]], *, worker_slots: int, shard_slots: int
) -> tuple[Accounts, float]:
    """Hand all of them in and wait for their ends; the accounts, and how long it took until all were accepted, s."""
    bus = await AmqpBus.connect(amqp_url, name="crowd", timeout_s=20.0)
    accounts, came = Accounts(worker_slots, shard_slots), asyncio.Condition()

    async def hear(delivery: Delivery) -> None:
        async with came:
            if delivery.exchange == EVENTS:
                accounts.told(decode(delivery.body, JobEvent))
            else:
                accounts.shown(decode(delivery.body, AgentBeat))
            came.notify_all()

    try:
        bindings = ((EVENTS, "job.#"), (MEMBERS, AGENT_BEAT))
        # one at a time: the order is what the accounts go by
        await bus.subscribe(Queue(QUEUE, bindings, max_length=100_000, prefetch=1), hear)
        client, limit = Client(bus, timeout_s=60.0), asyncio.Semaphore(AT_ONCE)

        async def submit(document: Mapping[str, Any]) -> None:
            async with limit:
                reply = await client.submit(dict(document))
            assert reply.ok, reply

        loop = asyncio.get_running_loop()
        began = loop.time()
        await asyncio.gather(*(submit(document) for document in documents))
        accepted_s = loop.time() - began
        async with asyncio.timeout(WHOLE_S), came:
            await came.wait_for(lambda: len(accounts.ended) == len(documents))
    except TimeoutError:
        left = sorted({str(d["id"]) for d in documents} - accounts.ended.keys())
        raise AssertionError(f"not ended within {WHOLE_S:g} s: {left}; {accounts.held}") from None
    finally:
        await bus.close()
    return accounts, accepted_s


async def delete_all(amqp_url: str, jobs: Sequence[str]) -> None:
    """Have nothing kept of them."""
    bus = await AmqpBus.connect(amqp_url, name="crowd", timeout_s=20.0)
    try:
        client = Client(bus, timeout_s=60.0)
        for job in jobs:
            reply = await client.delete(job)
            assert reply.ok, reply
    finally:
        await bus.close()
