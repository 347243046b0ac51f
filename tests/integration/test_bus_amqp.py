"""What only a real broker shows: lost connections, restarts, alarms and full queues."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aio_pika import Message
from aio_pika.connection import connect
from buses import Inbox

from elps.contracts.codec import MAX_MESSAGE_BYTES
from elps.contracts.errors import RetryLater, SetupError
from elps.doctor.broker import read_broker
from elps.local.broker import PrivateBroker
from elps.messaging import consuming
from elps.messaging.amqp import MAX_BURIED_BYTES, AmqpBus
from elps.messaging.port import DEAD_QUEUE, REASON_HEADER, Delivery, Queue
from elps.runtime.processes import rss_bytes

pytestmark = pytest.mark.integration

BOUND_S = 30.0

ProxyTo = Callable[[str], Awaitable[Any]]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(BOUND_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(
                0.02
            )  # the condition is a state of the network, not an event of ours


class TestLostConnections:
    async def test_a_message_handled_but_not_acknowledged_comes_again_with_its_id(
        self, fresh_amqp_url: str, proxy_to: ProxyTo
    ) -> None:
        proxy = await proxy_to(fresh_amqp_url)
        bus = await AmqpBus.connect(proxy.url, name="test", timeout_s=BOUND_S)
        inbox = Inbox(BOUND_S)

        async def cuts_after_the_work(delivery: Delivery) -> None:
            await inbox(delivery)
            if not delivery.redelivered:
                proxy.cut()
                await until(lambda: not bus.connected)

        await bus.subscribe(
            Queue("work", (("elps.jobs", "submit"),), durable=True), cuts_after_the_work
        )
        await bus.publish("elps.jobs", "submit", b"job", message_id="m")
        first, second = await inbox.next(), await inbox.next()
        assert (first.message_id, second.message_id, second.redelivered) == ("m", "m", True)
        assert bus.stats.lost_acks == 1
        await until(lambda: bus.stats.handled == 2)
        await bus.close()

    async def test_work_goes_on_over_a_lost_connection_and_its_repeat_joins_it(
        self, fresh_amqp_url: str, proxy_to: ProxyTo
    ) -> None:
        proxy = await proxy_to(fresh_amqp_url)
        bus = await AmqpBus.connect(proxy.url, name="test", timeout_s=BOUND_S)
        inbox, gate = Inbox(BOUND_S), asyncio.Event()

        async def slow(delivery: Delivery) -> None:
            await inbox(delivery)
            if delivery.body == b"slow":
                await gate.wait()

        subscription = await bus.subscribe(
            Queue("work", (("elps.jobs", "submit"),), durable=True), slow
        )
        await bus.publish("elps.jobs", "submit", b"slow")
        assert (await inbox.next()).body == b"slow"
        proxy.cut()
        await until(lambda: bus.stats.reconnects == 1)
        await bus.publish("elps.jobs", "submit", b"next")
        assert (await inbox.next()).body == b"next"  # in order: the repeat of `slow` was before it
        gate.set()
        await subscription.cancel()
        again = Inbox(BOUND_S)
        await bus.subscribe(Queue("work", durable=True), again)
        await bus.publish("", "work", b"end")
        assert (await again.next()).body == b"end"  # the repeat was acknowledged
        await bus.close()

    async def test_every_consumer_is_back_after_a_cut(
        self, fresh_amqp_url: str, proxy_to: ProxyTo
    ) -> None:
        proxy = await proxy_to(fresh_amqp_url)
        bus = await AmqpBus.connect(proxy.url, name="test", timeout_s=BOUND_S)
        inbox = Inbox(BOUND_S)
        for n in range(5):
            await bus.subscribe(
                Queue(f"q{n}", (("elps.members", f"k{n}.#"),), durable=n % 2 == 0), inbox
            )
        for _ in range(2):
            before = bus.stats.reconnects
            proxy.cut()
            await until(lambda before=before: bus.connected and bus.stats.reconnects > before)  # type: ignore[misc]
            for n in range(5):
                await bus.publish("elps.members", f"k{n}.x", b"%d" % n, must_route=True)
            assert sorted([(await inbox.next()).body for _ in range(5)]) == [
                b"0",
                b"1",
                b"2",
                b"3",
                b"4",
            ]
        await bus.close()

    async def test_a_channel_that_the_broker_closes_is_opened_again(
        self, fresh_amqp_url: str
    ) -> None:
        bus = await AmqpBus.connect(fresh_amqp_url, name="test", timeout_s=BOUND_S)
        inbox = Inbox(BOUND_S)
        subscription = await bus.subscribe(Queue("q", (("elps.events", "#"),)), inbox)
        assert subscription._channel is not None
        underlay = await subscription._channel.get_underlay_channel()
        await underlay.basic_ack(
            delivery_tag=999
        )  # unknown: the broker answers with 406 and closes the channel
        await until(lambda: bus.stats.reconnects == 1)
        await bus.publish("elps.events", "a", b"x", must_route=True)
        assert (await inbox.next()).body == b"x"
        await bus.close()

    async def test_a_consumer_whose_queue_is_deleted_declares_it_again(
        self, fresh_amqp_url: str
    ) -> None:
        bus = await AmqpBus.connect(fresh_amqp_url, name="test", timeout_s=BOUND_S)
        inbox = Inbox(BOUND_S)
        await bus.subscribe(Queue("q", (("elps.jobs", "#"),), durable=True), inbox)
        async with await connect(fresh_amqp_url) as other, other.channel() as channel:
            await channel.queue_delete("q")
        await until(lambda: bus.stats.reconnects == 1)
        await bus.publish("elps.jobs", "a", b"x", must_route=True)
        assert (await inbox.next()).body == b"x"
        await bus.close()

    async def test_a_silent_broker_makes_publishing_fail_in_time(
        self, fresh_amqp_url: str, proxy_to: ProxyTo
    ) -> None:
        proxy = await proxy_to(fresh_amqp_url)
        bus = await AmqpBus.connect(proxy.url, name="test", timeout_s=BOUND_S)
        proxy.flowing.clear()
        start = time.monotonic()
        with pytest.raises(RetryLater, match=r"did not confirm within 0\.5 s"):
            await bus.publish("elps.events", "a", b"x", timeout_s=0.5)
        assert time.monotonic() - start < 5
        proxy.flowing.set()
        await bus.publish("elps.events", "a", b"x")
        await bus.close()


@pytest.mark.timeout(240)  # a broker takes some ten seconds to start, here five times
class TestRestarts:
    async def test_confirmed_messages_and_consumers_survive_restart_and_kill(
        self, private_broker: PrivateBroker
    ) -> None:
        bus = await AmqpBus.connect(private_broker.url, name="test", timeout_s=BOUND_S)
        durable, exclusive, server = (
            Inbox(BOUND_S),
            Inbox(BOUND_S),
            await AmqpBus.connect(private_broker.url, name="server"),
        )

        async def answer(delivery: Delivery) -> None:
            await server.respond(delivery, b"answer")

        await server.subscribe(Queue("elps.query", (("elps.query", "#"),)), answer)
        await bus.subscribe(Queue("exclusive", (("elps.members", "#"),)), exclusive)
        kept = Queue("durable", (("elps.jobs", "#"),), durable=True)
        subscription = await bus.subscribe(kept, durable)
        assert await bus.request("elps.query", "q", b"") == b"answer"
        for round_, end in enumerate((private_broker.stop, private_broker.kill)):
            await subscription.cancel()
            await bus.publish("elps.jobs", "submit", b"kept %d" % round_, must_route=True)
            await asyncio.to_thread(end)
            await until(lambda: not bus.connected)

            start = time.monotonic()
            with pytest.raises(RetryLater, match="did not confirm within 1 s"):
                await bus.publish("elps.jobs", "submit", b"lost", timeout_s=1.0)
            assert 0.9 < time.monotonic() - start < 5
            with pytest.raises(RetryLater, match="away"):
                await bus.publish("elps.members", "shard", b"lost", confirm=False)
            with pytest.raises(RetryLater, match="no answer"):
                await bus.request("elps.query", "q", b"", timeout_s=0.5)

            waiting = asyncio.create_task(
                bus.publish("elps.jobs", "submit", b"patient", timeout_s=60.0)
            )
            await asyncio.to_thread(private_broker.start)
            await waiting
            await until(lambda: bus.connected and server.connected)
            subscription = await bus.subscribe(kept, durable)
            assert [(await durable.next()).body for _ in range(2)] == [
                b"kept %d" % round_,
                b"patient",
            ]
            await bus.publish("elps.members", "shard", b"beat", must_route=True)
            assert (await exclusive.next()).body == b"beat"
            assert await bus.request("elps.query", "q", b"") == b"answer"
        await bus.close()
        await server.close()

    async def test_a_memory_alarm_blocks_publishing_visibly_and_consuming_not_at_all(
        self, private_broker: PrivateBroker
    ) -> None:
        bus = await AmqpBus.connect(private_broker.url, name="test", timeout_s=BOUND_S)
        started, gate = Inbox(BOUND_S), asyncio.Event()

        async def gated(delivery: Delivery) -> None:
            await started(delivery)
            await gate.wait()

        await bus.subscribe(Queue("q", (("elps.jobs", "#"),), durable=True, prefetch=1), gated)
        for n in range(3):
            await bus.publish("elps.jobs", "submit", b"%d" % n)
        await started.next()
        await asyncio.to_thread(private_broker.control, "set_vm_memory_high_watermark", "0")
        with pytest.raises(RetryLater, match="alarm"):
            await bus.publish("elps.jobs", "submit", b"blocked", timeout_s=1.0)
        with pytest.raises(RetryLater, match="taken no messages for"):
            await bus.publish("elps.members", "shard", b"beat", confirm=False)
        assert "rabbitmq-diagnostics alarms" in bus.blocked
        assert bus.connected
        reading = await read_broker(private_broker.url)
        assert (reading.blocked, reading.stuck, reading.error) == (True, {}, "")
        gate.set()
        assert [(await started.next()).body for _ in range(2)] == [
            b"1",
            b"2",
        ]  # acknowledged meanwhile
        await asyncio.to_thread(private_broker.control, "set_vm_memory_high_watermark", "0.4")
        await bus.publish("elps.jobs", "submit", b"free", timeout_s=BOUND_S)
        bodies = {
            (await started.next()).body,
            (await started.next()).body,
        }  # the timed out one arrives as well
        assert bodies == {b"blocked", b"free"}
        await until(lambda: not bus.blocked)
        await bus.close()


class TestBounds:
    async def test_a_full_durable_queue_refuses_and_drops_nothing(
        self, fresh_amqp_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(consuming, "DURABLE_MAX_LENGTH", 10)
        bus = await AmqpBus.connect(fresh_amqp_url, name="test", timeout_s=BOUND_S)
        kept = Queue("short", (("elps.jobs", "#"),), durable=True)
        await (await bus.subscribe(kept, Inbox(BOUND_S))).cancel()
        taken: list[bytes] = []

        async def fill() -> None:
            for n in range(100):
                await bus.publish("elps.jobs", "submit", b"%d" % n)
                taken.append(b"%d" % n)

        with pytest.raises(RetryLater, match="full"):
            await fill()
        assert len(taken) >= 10
        inbox = Inbox(BOUND_S)
        await bus.subscribe(kept, inbox)
        assert [(await inbox.next()).body for _ in taken] == taken
        await bus.close()

    async def test_a_slow_consumer_holds_no_more_than_its_prefetch_in_memory(
        self, fresh_amqp_url: str, proxy_to: ProxyTo
    ) -> None:
        proxy = await proxy_to(fresh_amqp_url)
        sender = await AmqpBus.connect(fresh_amqp_url, name="sender", timeout_s=BOUND_S)
        bus = await AmqpBus.connect(proxy.url, name="slow", timeout_s=BOUND_S)
        gate, started = asyncio.Event(), 0

        async def slow(_: Delivery) -> None:
            nonlocal started
            started += 1
            await gate.wait()

        await bus.subscribe(Queue("q", (("elps.telemetry", "#"),), prefetch=4), slow)
        body = bytes(1024 * 1024)
        for _ in range(8):
            await sender.publish("elps.telemetry", "x", body)
        await until(lambda: started == 4)
        before = rss_bytes()
        for _ in range(150):
            await sender.publish("elps.telemetry", "x", body)
        assert rss_bytes() - before < 40 * 1024 * 1024
        assert started == 4
        proxy.cut()  # exclusive: its messages are gone with it, its prefetch is not
        await until(lambda: bus.connected and bus.stats.reconnects == 1)
        for _ in range(20):
            await sender.publish("elps.telemetry", "x", body, must_route=True)
        await until(lambda: started == 8)
        await sender.publish("elps.events", "x", b"a round trip in which a ninth would have come")
        assert started == 8
        gate.set()
        await until(lambda: started == 24)
        await asyncio.gather(bus.close(), sender.close())

    async def test_a_body_too_large_to_be_read_is_dead_with_its_beginning_kept(
        self, fresh_amqp_url: str
    ) -> None:
        bus = await AmqpBus.connect(fresh_amqp_url, name="test", timeout_s=BOUND_S)
        dead, seen = Inbox(BOUND_S), Inbox(BOUND_S)
        await bus.subscribe(Queue(DEAD_QUEUE, durable=True), dead)
        await bus.subscribe(Queue("q", (("elps.jobs", "submit"),), durable=True), seen)
        async with await connect(fresh_amqp_url) as other, other.channel() as channel:
            exchange = await channel.get_exchange("elps.jobs", ensure=False)
            await exchange.publish(Message(b"[" * (MAX_MESSAGE_BYTES + 1)), "submit")
            await exchange.publish(Message(b"small"), "submit")  # neither has a message id
        letter = await dead.next()
        assert letter.body == b"[" * MAX_BURIED_BYTES
        assert f"{MAX_MESSAGE_BYTES + 1} bytes" in letter.headers[REASON_HEADER]
        assert (await seen.next()).body == b"small"
        await bus.close()


class TestConnecting:
    async def test_a_broker_that_is_not_there_is_said_within_the_bound(self) -> None:
        start = time.monotonic()
        with pytest.raises(
            RetryLater,
            match=r"amqp://user:\*\*\*@127\.0\.0\.1:1/ did not answer within 1 s.*Connect call failed",
        ):
            await AmqpBus.connect("amqp://user:secret@127.0.0.1:1/", name="test", timeout_s=1.0)
        assert time.monotonic() - start < 8

    async def test_a_wrong_password_is_named_as_the_reason(self, fresh_amqp_url: str) -> None:
        wrong = "amqp://nobody:wrong@" + fresh_amqp_url.rpartition("@")[2]
        with pytest.raises(RetryLater, match=r"ACCESS_REFUSED") as caught:
            await AmqpBus.connect(wrong, name="test", timeout_s=3.0)
        assert "wrong" not in str(caught.value)

    @pytest.mark.parametrize("url", ["", "127.0.0.1:5672", "http://127.0.0.1/", "amqp://"])
    async def test_a_url_that_is_none_is_refused_at_once(self, url: str) -> None:
        with pytest.raises(SetupError, match="expected amqp://"):
            await AmqpBus.connect(url, name="test", timeout_s=BOUND_S)

    async def test_a_queue_declared_otherwise_is_an_error_that_says_so(
        self, fresh_amqp_url: str
    ) -> None:
        bus = await AmqpBus.connect(fresh_amqp_url, name="test", timeout_s=BOUND_S)
        async with await connect(fresh_amqp_url) as other, other.channel() as channel:
            await channel.declare_queue("taken", durable=True)  # a classic one
        with pytest.raises(SetupError, match=r"taken cannot be declared.*inequivalent"):
            await bus.subscribe(Queue("taken", durable=True), Inbox(BOUND_S))
        await bus.publish("elps.events", "a", b"x")
        assert bus.connected
        assert bus.stats.reconnects == 0
        await bus.close()
