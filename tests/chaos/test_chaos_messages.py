"""Hostile messages on every exchange while a job trains: nothing dies, nothing changes, dead letters say why."""

from __future__ import annotations

import asyncio
import json
import pickle
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aio_pika
import pytest
from realstack.site import Site
from realstack.training import Operator

from elps.contracts import topology
from elps.contracts.codec import MAX_MESSAGE_BYTES
from elps.messaging.port import DEAD_QUEUE, EXCHANGES, REASON_HEADER

KEYS: dict[str, tuple[str, ...]] = {
    topology.JOBS: ("submit", "kill", "pause", "resume", "scale"),
    topology.MEMBERS: ("agent", "shard", "scheduler"),
    topology.COMMANDS: ("shard-1", "shard-2", "agent-1", "agent-2"),
    topology.EVENTS: ("job.nobody.finished",),
    topology.TELEMETRY: ("job.nobody", "log.nobody"),
    topology.QUERY: ("jobs", "job"),
}
READERS = ("elps.scheduler", "elps.monitor", "elps.commands", "elps.query")
"""What the names of the queues begin with from which dead letters must have come."""


class Touch:
    """Its pickle leaves a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


def hostile(rng: random.Random, trap: Path, job: str) -> list[bytes]:
    """Bodies that no reader can want."""
    return [
        b"",
        b"not JSON",
        b"\xff\xfe\x00",
        rng.randbytes(200),
        pickle.dumps(Touch(trap)),
        b"null",
        b"[]",
        b"42",
        b'"text"',
        b"{}",
        b"[" * 2000 + b"1" + b"]" * 2000,
        b'{"job": 5}',
        b'{"job": "../../etc"}',
        json.dumps({"job": "a.#.*"}).encode(),
        json.dumps({"job": "x" * 300}).encode(),
        json.dumps({"job": "nobody", "reason": ["?"]}).encode(),
        json.dumps({"type": "shard", "shard": "shard-1", "seq": "high"}).encode(),
        json.dumps({"type": "agent", "agent": None, "slots": 10**30}).encode(),
        json.dumps({"type": "drop_job", "job": job, "term": {"number": -1, "nonce": 0}}).encode(),
        json.dumps({"type": "stop_trainer", "job": job, "term": 1, "worker": f"{job}-w1"}).encode(),
        json.dumps({"type": "event", "job": job, "what": "finished", "at": "now"}).encode(),
        json.dumps({"type": "iterations", "job": job, "rows": [{"iteration": -1}]}).encode(),
        json.dumps({"type": "no such type"}).encode(),
        json.dumps({"what": "job", "job": "nobody", "since": -5}).encode(),
        json.dumps({"task": "paced:Paced", "iterations": -3, "nonsense": {}}).encode(),
        json.dumps({"task": "os:system", "task_args": {"command": "true"}}).encode(),
        b'{"a":' + b"1" * (MAX_MESSAGE_BYTES + 10) + b"}",
    ]


@asynccontextmanager
async def foreign(site: Site) -> AsyncIterator[aio_pika.abc.AbstractChannel]:
    """A client that is none of ours."""
    connection = await aio_pika.connect(site.record.amqp_url)
    async with connection:
        yield await connection.channel()


async def dead_letters(channel: aio_pika.abc.AbstractChannel) -> list[Any]:
    """All that are there now."""
    queue = await channel.get_queue(DEAD_QUEUE)
    found = []
    while letter := await queue.get(no_ack=True, fail=False, timeout=10):
        found.append(letter)
    return found


@pytest.mark.timeout(180)
async def test_nothing_hostile_harms_a_training_job_or_a_service(
    site: Site, operator: Operator, rng: random.Random, tmp_path: Path
) -> None:
    assert set(KEYS) | {topology.DEAD} == set(EXCHANGES)
    training = await operator.submit(name="besieged", iterations=300)
    await training.reaches(5)
    before = dict(site.handles)
    trap = tmp_path / "executed"
    sent = 0
    async with foreign(site) as channel:
        await dead_letters(channel)
        shots = [
            (exchange, key, body)
            for exchange, keys in KEYS.items()
            for key in keys
            for body in hostile(rng, trap, training.id)
        ]
        rng.shuffle(shots)
        for exchange_name, key, body in shots:
            exchange = await channel.get_exchange(exchange_name, ensure=False)
            message = aio_pika.Message(
                body,
                message_id=rng.choice([None, "same", f"{sent}"]),
                reply_to=rng.choice([None, "nobody.listens", "elps.scheduler.jobs"]),
                correlation_id=rng.choice([None, "x"]),
                headers=rng.choice([{}, {"x-elps-reason": "forged", "n": 5}]),
            )
            await exchange.publish(message, key)
            sent += 1
        record = await training.equals_the_plain_loop()
        assert record.terms == 1
        assert not trap.exists()
        assert site.handles == before

        letters: list[Any] = []
        async with asyncio.timeout(30):
            while {r for r in READERS if any(_queue_of(x).startswith(r) for x in letters)} != set(
                READERS
            ):
                letters += await dead_letters(channel)
                await asyncio.sleep(0.2)
    reasons = [letter.headers.get(REASON_HEADER) for letter in letters]
    assert all(isinstance(r, str) and r and r != "forged" for r in reasons), reasons
    # Still at service, each of them.
    after = await operator.submit(name="after-the-siege", iterations=20)
    await after.equals_the_plain_loop()


def _queue_of(letter: Any) -> str:
    return str(letter.headers.get("x-elps-queue", ""))


async def test_replayed_messages_change_nothing(
    site: Site, operator: Operator, rng: random.Random
) -> None:
    """All that was said about one job is said again, several times and out of order, while another one trains."""
    async with foreign(site) as channel:
        tap = await channel.declare_queue(exclusive=True)
        for name in KEYS:
            await tap.bind(
                await channel.get_exchange(name, ensure=False),
                "#" if EXCHANGES[name] == "topic" else "",
            )
        for member in KEYS[topology.COMMANDS]:
            await tap.bind(await channel.get_exchange(topology.COMMANDS, ensure=False), member)
        first = await operator.submit(name="recorded", iterations=40)
        await first.equals_the_plain_loop()
        tape = []
        while message := await tap.get(no_ack=True, fail=False, timeout=10):
            tape.append(message)
        await tap.delete(if_empty=False)
        assert {m.exchange for m in tape} >= set(KEYS) - {topology.QUERY}

        second = await operator.submit(name="undisturbed", iterations=200)
        await second.reaches(5)
        again = tape * 3
        rng.shuffle(again)
        for old in again:
            exchange = await channel.get_exchange(old.exchange, ensure=False)
            await exchange.publish(
                aio_pika.Message(
                    old.body, message_id=old.message_id, correlation_id=old.correlation_id
                ),
                old.routing_key or "",
            )
        record = await second.equals_the_plain_loop()
        assert record.terms == 1
        assert (await first.record()).terms == 1
