"""What every bus does with messages that go well: the same tests on the bus of one process and on RabbitMQ."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
from buses import Connect, Inbox, queue

from elps.contracts.codec import MAX_MESSAGE_BYTES
from elps.contracts.errors import InvalidDocument, RetryLater
from elps.messaging.port import (
    Bus,
    Delivery,
)


class TestRouting:
    async def test_a_message_arrives_with_everything_its_sender_gave(self, bus: Bus) -> None:
        inbox = Inbox()
        await bus.subscribe(queue(("elps.events", "job.#")), inbox)
        await bus.publish(
            "elps.events",
            "job.a.queued",
            b"\x00body\xff",
            message_id="m1",
            reply_to="somewhere",
            correlation_id="c1",
        )
        got = await inbox.next()
        assert (got.body, got.exchange, got.routing_key) == (
            b"\x00body\xff",
            "elps.events",
            "job.a.queued",
        )
        assert (got.message_id, got.reply_to, got.correlation_id) == ("m1", "somewhere", "c1")
        assert not got.redelivered

    async def test_a_message_without_an_id_is_given_one(self, bus: Bus) -> None:
        inbox = Inbox()
        await bus.subscribe(queue(("elps.events", "#")), inbox)
        await bus.publish("elps.events", "a", b"1")
        await bus.publish("elps.events", "a", b"2")
        assert len({(await inbox.next()).message_id, (await inbox.next()).message_id, ""}) == 3

    @pytest.mark.parametrize(
        ("pattern", "matching", "other"),
        [
            ("job.*", "job.a", "job.a.b"),
            ("job.#", "job.a.b", "jobs.a"),
            ("#", "anything.at.all", None),
            ("job.*.failed", "job.x.failed", "job.failed"),
            ("#.failed", "failed", "failed.x"),
            ("job.#.failed", "job.failed", "job.failed.x"),
        ],
    )
    async def test_topics_match_star_as_one_word_and_hash_as_any_number(
        self, bus: Bus, pattern: str, matching: str, other: str | None
    ) -> None:
        inbox = Inbox()
        await bus.subscribe(queue(("elps.events", pattern), ("elps.telemetry", "end")), inbox)
        if other is not None:
            await bus.publish("elps.events", other, b"other")
        await bus.publish("elps.events", matching, b"matching")
        await bus.publish("elps.telemetry", "end", b"end")
        assert await inbox.bodies(2) == [b"matching", b"end"]

    async def test_a_direct_exchange_takes_the_key_literally(self, bus: Bus) -> None:
        inbox = Inbox()
        await bus.subscribe(queue(("elps.commands", "shard-1")), inbox)
        await bus.publish("elps.commands", "#", b"hash")
        await bus.publish("elps.commands", "shard-2", b"2")
        await bus.publish("elps.commands", "shard-1", b"1")
        assert await inbox.bodies(1) == [b"1"]

    async def test_each_queue_gets_its_copy(self, connect: Connect) -> None:
        one, two = await connect(), await connect()
        inboxes = Inbox(), Inbox()
        await one.subscribe(queue(("elps.members", "#")), inboxes[0])
        await two.subscribe(queue(("elps.members", "shard")), inboxes[1])
        await one.publish("elps.members", "shard", b"beat")
        assert [await i.bodies(1) for i in inboxes] == [[b"beat"], [b"beat"]]

    async def test_the_empty_exchange_addresses_a_queue_by_its_name(self, bus: Bus) -> None:
        inbox, target = Inbox(), queue()
        await bus.subscribe(target, inbox)
        await bus.publish("", target.name, b"direct")
        assert await inbox.bodies(1) == [b"direct"]

    async def test_two_consumers_of_a_durable_queue_share_its_messages(
        self, connect: Connect
    ) -> None:
        one, two = await connect(), await connect()
        shared, seen = queue(("elps.jobs", "submit"), durable=True, prefetch=1), Inbox()
        await one.subscribe(shared, seen)
        await two.subscribe(shared, seen)
        for n in range(10):
            await one.publish("elps.jobs", "submit", b"%d" % n)
        assert sorted(await seen.bodies(10)) == [b"%d" % n for n in range(10)]
        assert one.stats.handled + two.stats.handled <= 10

    async def test_of_two_consumers_the_one_with_the_higher_priority_is_served_while_it_has_room(
        self, connect: Connect
    ) -> None:
        durable = queue(("elps.jobs", "#"), durable=True, prefetch=2)
        low, high = Inbox(), asyncio.Queue[Delivery]()
        hold = asyncio.Event()

        async def keep(delivery: Delivery) -> None:
            high.put_nowait(delivery)
            await hold.wait()

        first, second = await connect(), await connect()
        await first.subscribe(durable, low)
        await second.subscribe(dataclasses.replace(durable, priority=3), keep)
        for n in range(3):
            await first.publish("elps.jobs", "submit", b"%d" % n)
        async with asyncio.timeout(10):
            assert [(await high.get()).body for _ in range(2)] == [b"0", b"1"]
        assert (await low.next()).body == b"2"
        hold.set()

    async def test_must_route_fails_when_no_queue_takes_the_message(self, bus: Bus) -> None:
        with pytest.raises(RetryLater, match="no queue takes"):
            await bus.publish("elps.commands", "nobody", b"x", must_route=True)
        await bus.publish("elps.commands", "nobody", b"x")  # without it the message is dropped

    async def test_an_exchange_that_does_not_exist_is_a_fault_of_the_caller(self, bus: Bus) -> None:
        with pytest.raises(ValueError, match=r"elps\.nothing"):
            await bus.publish("elps.nothing", "a", b"x")
        with pytest.raises(ValueError, match=r"elps\.nothing"):
            await bus.subscribe(queue(("elps.nothing", "a")), Inbox())

    async def test_a_body_above_the_limit_is_refused_before_it_is_sent(self, bus: Bus) -> None:
        inbox = Inbox()
        await bus.subscribe(queue(("elps.events", "#")), inbox)
        with pytest.raises(InvalidDocument, match=str(MAX_MESSAGE_BYTES)):
            await bus.publish("elps.events", "a", b"x" * (MAX_MESSAGE_BYTES + 1))
        with pytest.raises(InvalidDocument, match="routing key"):
            await bus.publish("elps.events", "k" * 256, b"x")
        largest = b"x" * MAX_MESSAGE_BYTES
        await bus.publish("elps.events", "a", largest)
        assert await inbox.bodies(1) == [largest]


class TestQueues:
    async def test_messages_of_a_queue_start_in_order(self, bus: Bus) -> None:
        inbox = Inbox()
        await bus.subscribe(queue(("elps.events", "#"), prefetch=1), inbox)
        for n in range(50):
            await bus.publish("elps.events", "a", b"%d" % n)
        assert await inbox.bodies(50) == [b"%d" % n for n in range(50)]

    async def test_a_durable_queue_keeps_messages_while_nobody_consumes(
        self, connect: Connect
    ) -> None:
        first, second = await connect(), await connect()
        kept = queue(("elps.jobs", "submit"), durable=True)
        subscription = await first.subscribe(kept, Inbox())
        await subscription.cancel()
        await first.close()
        for n in range(3):
            await second.publish("elps.jobs", "submit", b"%d" % n, must_route=True)
        inbox = Inbox()
        await second.subscribe(kept, inbox)
        assert await inbox.bodies(3) == [b"0", b"1", b"2"]

    async def test_a_queue_that_is_not_durable_ends_with_its_consumer(self, bus: Bus) -> None:
        subscription = await bus.subscribe(queue(("elps.events", "a")), Inbox())
        await bus.publish("elps.events", "a", b"x", must_route=True)
        await subscription.cancel()
        with pytest.raises(RetryLater, match="no queue takes"):
            await bus.publish("elps.events", "a", b"x", must_route=True)

    async def test_a_queue_that_is_not_durable_ends_with_its_connection(
        self, connect: Connect
    ) -> None:
        one, two = await connect(), await connect()
        await one.subscribe(queue(("elps.events", "a")), Inbox())
        await one.close()
        with pytest.raises(RetryLater, match="no queue takes"):
            await two.publish("elps.events", "a", b"x", must_route=True)

    async def test_a_queue_that_is_not_durable_has_one_connection_and_one_consumer(
        self, connect: Connect, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("elps.messaging.amqp.SUBSCRIBE_S", 1.0)
        one, two = await connect(), await connect()
        mine = queue(("elps.events", "a"))
        await one.subscribe(mine, Inbox())
        with pytest.raises(ValueError, match="consumer already"):
            await one.subscribe(mine, Inbox())
        with pytest.raises(RetryLater, match=mine.name):
            await two.subscribe(mine, Inbox())

    async def test_beyond_its_length_the_oldest_messages_are_dropped(self, bus: Bus) -> None:
        inbox, gate, short = (
            Inbox(),
            asyncio.Event(),
            queue(("elps.events", "#"), prefetch=1, max_length=3),
        )

        async def slow(delivery: Delivery) -> None:
            await inbox(delivery)
            await gate.wait()

        await bus.subscribe(short, slow)
        await bus.publish("elps.events", "a", b"first")
        assert await inbox.bodies(1) == [b"first"]  # taken, and no longer in the queue
        for n in range(6):
            await bus.publish("elps.events", "a", b"%d" % n)
        gate.set()
        assert await inbox.bodies(3) == [b"3", b"4", b"5"]

    async def test_no_more_than_prefetch_messages_are_handled_at_once(self, bus: Bus) -> None:
        started, gate = Inbox(), asyncio.Event()

        async def slow(delivery: Delivery) -> None:
            await started(delivery)
            await gate.wait()

        await bus.subscribe(queue(("elps.events", "#"), prefetch=3), slow)
        for n in range(10):
            await bus.publish("elps.events", "a", b"%d" % n)
        assert await started.bodies(3) == [b"0", b"1", b"2"]
        await bus.publish(
            "elps.events", "a", b"10"
        )  # a round trip in which a fourth would have come
        assert started.got.empty()
        gate.set()
        assert len(await started.bodies(8)) == 8

    async def test_a_queue_that_no_bus_can_offer_is_a_fault_of_the_caller(self, bus: Bus) -> None:
        with pytest.raises(ValueError, match="max_length"):
            await bus.subscribe(queue(durable=True, max_length=10), Inbox())
        with pytest.raises(ValueError, match="prefetch"):
            await bus.subscribe(queue(prefetch=0), Inbox())
