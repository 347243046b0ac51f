"""What every bus does. The same tests run on the bus of one process and on RabbitMQ."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from elps.contracts.codec import MAX_MESSAGE_BYTES
from elps.contracts.errors import InvalidDocument, RetryLater
from elps.messaging import receiving
from elps.messaging.amqp import AmqpBus
from elps.messaging.memory import MemoryBroker, MemoryBus
from elps.messaging.port import (
    DEAD_QUEUE,
    EXCHANGE_HEADER,
    QUEUE_HEADER,
    REASON_HEADER,
    Bus,
    Delivery,
    Queue,
)
from elps.messaging.receiving import DELIVERY_LIMIT

BOUND_S = 15.0

Connect = Callable[[], Awaitable[Bus]]


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


class Inbox:
    """A handler that keeps what it gets."""

    def __init__(self) -> None:
        self.got: asyncio.Queue[Delivery] = asyncio.Queue()

    async def __call__(self, delivery: Delivery) -> None:
        self.got.put_nowait(delivery)

    async def next(self) -> Delivery:
        async with asyncio.timeout(BOUND_S):
            return await self.got.get()

    async def bodies(self, count: int) -> list[bytes]:
        return [(await self.next()).body for _ in range(count)]


def queue(
    *bindings: tuple[str, str],
    durable: bool = False,
    prefetch: int = 64,
    max_length: int | None = None,
) -> Queue:
    return Queue(f"test.{uuid.uuid4().hex[:12]}", bindings, durable, max_length, prefetch)


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


class TestFailures:
    async def test_a_handler_that_raises_gets_the_message_again_with_the_same_id(
        self, bus: Bus
    ) -> None:
        inbox = Inbox()

        async def fails_once(delivery: Delivery) -> None:
            await inbox(delivery)
            if not delivery.redelivered:
                raise RuntimeError("not yet")

        await bus.subscribe(queue(("elps.events", "#")), fails_once)
        await bus.publish("elps.events", "a", b"x", message_id="same")
        first, second = await inbox.next(), await inbox.next()
        assert (first.message_id, second.message_id, second.redelivered) == ("same", "same", True)
        assert bus.stats.failed == 1

    @pytest.mark.parametrize("durable", [True, False])
    async def test_after_the_delivery_limit_a_message_is_dead_with_the_reason(
        self, bus: Bus, durable: bool
    ) -> None:
        tries, dead = Inbox(), Inbox()

        async def fails(delivery: Delivery) -> None:
            await tries(delivery)
            if delivery.body == b"poison":
                raise RuntimeError("no such thing")

        source = queue(("elps.jobs", "submit"), durable=durable, prefetch=1)
        await bus.subscribe(Queue(DEAD_QUEUE, durable=True), dead)
        await bus.subscribe(source, fails)
        await bus.publish("elps.jobs", "submit", b"poison", message_id="p")
        await bus.publish("elps.jobs", "submit", b"healthy")
        letter = await dead.next()
        assert (letter.body, letter.message_id, letter.routing_key) == (b"poison", "p", "submit")
        assert "RuntimeError: no such thing" in letter.headers[REASON_HEADER]
        assert letter.headers[QUEUE_HEADER] == source.name
        assert letter.headers[EXCHANGE_HEADER] == "elps.jobs"
        assert await tries.bodies(DELIVERY_LIMIT + 1) == [b"poison"] * DELIVERY_LIMIT + [b"healthy"]
        assert (bus.stats.failed, bus.stats.dead_lettered) == (DELIVERY_LIMIT, 1)

    async def test_an_invalid_document_is_dead_at_once_with_every_problem(self, bus: Bus) -> None:
        tries, dead = Inbox(), Inbox()

        async def refuses(delivery: Delivery) -> None:
            await tries(delivery)
            raise InvalidDocument("job document", ["task: missing", "lr: below 0"])

        await bus.subscribe(Queue(DEAD_QUEUE, durable=True), dead)
        await bus.subscribe(queue(("elps.jobs", "submit"), durable=True), refuses)
        await bus.publish("elps.jobs", "submit", b"bad")
        assert (await dead.next()).headers[
            REASON_HEADER
        ] == "job document: task: missing; lr: below 0"
        assert tries.got.qsize() == 1

    async def test_a_dead_letter_that_cannot_be_handled_does_not_come_back(self, bus: Bus) -> None:
        seen = Inbox()

        async def fails(delivery: Delivery) -> None:
            await seen(delivery)
            if delivery.body == b"poison":
                raise InvalidDocument("dead letter", ["worse"])

        await bus.subscribe(Queue(DEAD_QUEUE, durable=True, prefetch=1), fails)
        await bus.publish(DEAD_QUEUE, "x", b"poison")
        await bus.publish(DEAD_QUEUE, "x", b"after")
        assert await seen.bodies(2) == [b"poison", b"after"]

    async def test_a_repeat_of_a_message_at_work_joins_it(self, bus: Bus) -> None:
        started, gate, target = Inbox(), asyncio.Event(), queue(("elps.events", "#"))

        async def slow(delivery: Delivery) -> None:
            await started(delivery)
            if delivery.message_id == "same":
                await gate.wait()

        await bus.subscribe(target, slow)
        await bus.publish("elps.events", "a", b"1", message_id="same")
        await bus.publish("elps.events", "a", b"1", message_id="same")
        await bus.publish(
            "elps.events", "a", b"2", message_id="same"
        )  # another message, whatever its id says
        await bus.publish("elps.events", "a", b"3")
        assert await started.bodies(3) == [b"1", b"2", b"3"]
        gate.set()

    async def test_cancelling_finishes_what_is_being_handled(self, bus: Bus) -> None:
        started, gate, finished = asyncio.Event(), asyncio.Event(), []

        async def slow(delivery: Delivery) -> None:
            started.set()
            await gate.wait()
            finished.append(delivery.body)

        subscription = await bus.subscribe(queue(("elps.events", "#")), slow)
        await bus.publish("elps.events", "a", b"x")
        async with asyncio.timeout(BOUND_S):
            await started.wait()
            cancelling = asyncio.create_task(subscription.cancel())
            await bus.publish(
                "elps.telemetry", "a", b"elsewhere"
            )  # a round trip in which it could have ended
            assert not cancelling.done()
            gate.set()
            await cancelling
        assert finished == [b"x"]

    async def test_closing_between_two_tries_leaves_the_message_to_the_next_consumer(
        self, connect: Connect, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(receiving, "FIRST_PAUSE_S", 60.0)
        monkeypatch.setattr(receiving, "LONGEST_PAUSE_S", 60.0)
        one, two, tries, inbox = await connect(), await connect(), Inbox(), Inbox()
        kept = queue(("elps.jobs", "submit"), durable=True)

        async def fails(delivery: Delivery) -> None:
            await tries(delivery)
            raise RuntimeError("no")

        await one.subscribe(kept, fails)
        await one.publish("elps.jobs", "submit", b"job", message_id="j")
        await tries.next()
        async with asyncio.timeout(BOUND_S):
            await one.close()
        await two.subscribe(kept, inbox)
        again = await inbox.next()
        assert (again.body, again.message_id, again.redelivered) == (b"job", "j", True)


class TestRequests:
    async def test_a_request_is_answered_by_whoever_consumes(self, connect: Connect) -> None:
        server, client = await connect(), await connect()

        async def answer(delivery: Delivery) -> None:
            await server.respond(delivery, delivery.body[::-1])

        await server.subscribe(queue(("elps.query", "#")), answer)
        replies = await asyncio.gather(
            *(client.request("elps.query", "q", b"%03d" % n) for n in range(100, 150))
        )
        assert replies == [(b"%03d" % n)[::-1] for n in range(100, 150)]

    async def test_a_request_that_nobody_takes_fails_at_once(self, bus: Bus) -> None:
        with pytest.raises(RetryLater, match=r"elps\.query"):
            await bus.request("elps.query", "q", b"x", timeout_s=BOUND_S)

    async def test_a_request_that_nobody_answers_fails_at_its_time_out(self, bus: Bus) -> None:
        await bus.subscribe(queue(("elps.query", "#")), Inbox())
        with pytest.raises(RetryLater, match=r"no answer from elps\.query q within 0\.2 s"):
            await bus.request("elps.query", "q", b"x", timeout_s=0.2)

    async def test_a_late_answer_harms_nothing(self, bus: Bus) -> None:
        inbox = Inbox()
        await bus.subscribe(queue(("elps.query", "#")), inbox)
        with pytest.raises(RetryLater):
            await bus.request("elps.query", "q", b"late", timeout_s=0.2)
        await bus.respond(await inbox.next(), b"too late")
        asking = asyncio.create_task(bus.request("elps.query", "q", b"next", timeout_s=BOUND_S))
        await bus.respond(await inbox.next(), b"right")
        assert await asking == b"right"

    async def test_a_message_that_asks_for_no_answer_gets_none(self, bus: Bus) -> None:
        await bus.respond(Delivery(b"x", "elps.jobs", "submit", "m"), b"nobody reads this")


class TestState:
    async def test_a_closed_bus_refuses(self, connect: Connect) -> None:
        bus = await connect()
        assert bus.connected
        await bus.close()
        await bus.close()
        assert not bus.connected
        with pytest.raises(RetryLater, match="closed"):
            await bus.publish("elps.events", "a", b"x")

    async def test_unconfirmed_messages_arrive_too(self, bus: Bus) -> None:
        inbox = Inbox()
        await bus.subscribe(queue(("elps.members", "#")), inbox)
        for n in range(20):
            await bus.publish("elps.members", "shard", b"%d" % n, confirm=False)
        assert await inbox.bodies(20) == [b"%d" % n for n in range(20)]

    async def test_the_counters_count(self, bus: Bus) -> None:
        inbox = Inbox()
        subscription = await bus.subscribe(queue(("elps.events", "#")), inbox)
        for _ in range(3):
            await bus.publish("elps.events", "a", b"x")
        await inbox.bodies(3)
        await subscription.cancel()
        assert (bus.stats.published, bus.stats.handled, bus.stats.failed) == (3, 3, 0)
