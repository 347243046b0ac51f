"""What every bus does when something fails, with requests, and how it tells its state: on each kind of bus."""

from __future__ import annotations

import asyncio

import pytest
from buses import BOUND_S, Connect, Inbox, queue

from elps.contracts.errors import InvalidDocument, RetryLater
from elps.messaging import receiving
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
