"""A private broker and store answer as the stack and the tests need it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import aio_pika
import pytest

from elps.local.broker import PrivateBroker

pytestmark = pytest.mark.integration


def test_virtual_hosts_are_made_by_several_callers_at_once(shared_broker: PrivateBroker) -> None:
    names = [f"at-once-{n}" for n in range(16)]
    with ThreadPoolExecutor(8) as callers:
        urls = list(callers.map(shared_broker.new_virtual_host, names))
    assert urls == [shared_broker.url + name for name in names]
    assert set(names) <= set(shared_broker.control("list_vhosts").split())


def test_a_virtual_host_that_is_there_already_is_left_as_it_is(
    shared_broker: PrivateBroker,
) -> None:
    assert shared_broker.new_virtual_host("twice") == shared_broker.new_virtual_host("twice")


async def test_a_queue_that_lost_its_process_is_found_and_can_be_made_anew(
    shared_broker: PrivateBroker,
) -> None:
    connection = await aio_pika.connect(shared_broker.url)
    async with connection:
        channel = await connection.channel()
        quorum = {"x-queue-type": "quorum"}
        await channel.declare_queue("lost", durable=True, arguments=quorum)
        kept = await channel.declare_queue("kept", durable=True, arguments=quorum)
        await channel.default_exchange.publish(aio_pika.Message(b"here"), "kept")
        assert not shared_broker.lost_queues() & {"lost", "kept"}
        server = f"{{'%2F_lost', '{shared_broker.node}'}}"
        shared_broker._evaluate(f"ra:stop_server(quorum_queues, {server})")
        assert shared_broker.lost_queues() & {"lost", "kept"} == {"lost"}
        shared_broker.forget_queue("lost")
        assert not shared_broker.lost_queues()
        other = await connection.channel()
        again = await other.declare_queue("lost", durable=True, arguments=quorum)
        await other.default_exchange.publish(aio_pika.Message(b"new"), "lost")
        assert (await again.get(timeout=10)).body == b"new"
        assert (await kept.get(timeout=10)).body == b"here"
        await kept.delete(if_unused=False, if_empty=False)
        await again.delete(if_unused=False, if_empty=False)
