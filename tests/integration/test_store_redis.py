"""What only a real Redis behind a real socket shows: cancelled commands, full pools, restarts and wrong set-ups."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import numpy as np
import pytest
import redis._parsers
import redis.asyncio
from structlog.testing import capture_logs

from elps.contracts.errors import RetryLater, SetupError
from elps.local.store import PrivateStore
from elps.storage import server as adapter
from elps.storage.port import CHUNK_BYTES
from elps.storage.redis import RedisStore
from elps.storage.server import CONNECTIONS

pytestmark = pytest.mark.integration

BOUND_S = 20.0

ProxyTo = Callable[[str], Awaitable[Any]]


@pytest.fixture
async def raw(private_store: PrivateStore) -> AsyncIterator[Any]:
    """A plain client, for setting the private store up in ways that ours does not."""
    client = redis.asyncio.Redis.from_url(private_store.url)
    yield client
    await client.aclose()


class TestSharedConnections:
    async def test_after_a_cancelled_get_the_next_one_has_its_own_value(
        self, fresh_redis_url: str, proxy_to: ProxyTo
    ) -> None:
        proxy = await proxy_to(fresh_redis_url)
        store = await RedisStore.connect(proxy.url, timeout_s=BOUND_S)
        keys = [f"k{n}" for n in range(8)]
        await store.put_many({key: key.encode() for key in keys})
        proxy.delay_s = 0.05
        for key in keys:
            task = asyncio.create_task(store.get("k0"))
            await asyncio.sleep(0.03)  # the request is on its way, the reply is not here
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await store.get(key) == key.encode()
        await store.close()

    async def test_more_callers_than_connections_wait_their_turn(
        self, fresh_redis_url: str, proxy_to: ProxyTo
    ) -> None:
        proxy = await proxy_to(fresh_redis_url)
        proxy.delay_s = 0.005
        store = await RedisStore.connect(proxy.url, timeout_s=BOUND_S)
        await store.put_many({f"k{n}": b"%d" % n for n in range(200)})
        assert await asyncio.gather(*(store.get(f"k{n}") for n in range(200))) == [
            b"%d" % n for n in range(200)
        ]
        assert proxy.connections <= CONNECTIONS
        await store.close()

    async def test_cancelled_pipelines_leak_no_connection(
        self, fresh_redis_url: str, proxy_to: ProxyTo
    ) -> None:
        proxy = await proxy_to(fresh_redis_url)
        store = await RedisStore.connect(proxy.url, timeout_s=BOUND_S)
        items = {f"k{n}": b"%d" % n for n in range(20)}
        await store.put_many(items)
        proxy.delay_s = 0.05
        tasks = [asyncio.create_task(store.put_many(items)) for _ in range(50)]
        await asyncio.sleep(0.08)  # some wait for a reply, some for a connection
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        proxy.delay_s = 0.0
        for _ in range(3):
            async with asyncio.timeout(BOUND_S):
                assert (
                    await asyncio.gather(*(store.get(f"k{n % 20}") for n in range(200)))
                    == list(items.values()) * 10
                )
        await store.close()

    async def test_concurrent_transfers_of_large_values_do_not_mix(
        self, fresh_redis_url: str
    ) -> None:
        store = await RedisStore.connect(fresh_redis_url, timeout_s=BOUND_S)
        groups = [
            {f"g{g}:{n}": bytes([g * 16 + n]) * CHUNK_BYTES for n in range(10)} for g in range(4)
        ]
        await asyncio.gather(*(store.put_many(group) for group in groups))
        found = await asyncio.gather(*(store.get_many(list(group)) for group in groups))
        assert found == [list(group.values()) for group in groups]
        await store.delete([key for group in groups for key in group])
        await store.close()

    @pytest.mark.parametrize("parser", ["_AsyncRESP2Parser", "_AsyncHiredisParser"])
    async def test_bytes_that_are_no_text_come_back_whoever_reads_the_replies(
        self, fresh_redis_url: str, parser: str
    ) -> None:
        """The client takes hiredis where that is installed, without being asked."""
        if "Hiredis" in parser:
            pytest.importorskip("hiredis")
        store = await RedisStore.connect(fresh_redis_url, timeout_s=BOUND_S)
        pool = store._server._client.connection_pool
        pool.connection_kwargs["parser_class"] = getattr(redis._parsers, parser)
        await pool.disconnect()
        value = np.arange(-500, 500, 0.25).astype(">f4").tobytes() + bytes(range(256))
        await store.put("k", value)
        await store.put_many({f"k{n}": value[n:] for n in range(40)})
        await store.hash_put("h", "f", value)
        assert await store.get("k") == value
        assert await store.get_many([f"k{n}" for n in range(40)]) == [value[n:] for n in range(40)]
        assert await store.hash_all("h") == {"f": value}
        assert await store.raise_to("c", 2**40, "u") == 2**40
        await store.close()

    async def test_a_time_out_around_calls_is_never_lost(self, fresh_redis_url: str) -> None:
        """Of several tries, since a loop that was busy meets the moment in which it can be."""
        store = await RedisStore.connect(fresh_redis_url, timeout_s=BOUND_S)

        def be_busy() -> None:
            time.sleep(0.003)

        async def ask_on() -> None:
            async with asyncio.timeout(0.02):
                until = time.monotonic() + BOUND_S
                while time.monotonic() < until:
                    await store.hash_all("h")
                    be_busy()

        for _ in range(10):
            with pytest.raises(TimeoutError):
                await ask_on()
        await store.close()


class TestOutages:
    async def test_a_cut_connection_is_replaced_without_the_caller_noticing(
        self, fresh_redis_url: str, proxy_to: ProxyTo
    ) -> None:
        proxy = await proxy_to(fresh_redis_url)
        store = await RedisStore.connect(proxy.url, timeout_s=BOUND_S)
        await store.put("k", b"v")
        await asyncio.gather(*(store.get("k") for _ in range(30)))
        for n in range(5):
            proxy.cut()
            assert await store.raise_to("c", 0, f"u{n}") == n + 1
            assert await store.get("k") == b"v"
        await store.close()

    def test_connections_that_were_reset_while_idle_are_replaced_under_uvloop(
        self, fresh_redis_url: str
    ) -> None:
        """Its closed transports raise what no other loop's do."""
        uvloop = pytest.importorskip("uvloop")

        async def use() -> None:
            store = await RedisStore.connect(fresh_redis_url, timeout_s=BOUND_S)
            await asyncio.gather(*(store.put(f"k{n}", b"v") for n in range(CONNECTIONS)))
            pool: Any = store._server._client.connection_pool
            for connection in list(pool._available_connections):
                if connection._writer is not None:
                    connection._writer.transport.abort()
            await asyncio.sleep(0)
            assert await store.get("k0") == b"v"
            assert await store.get_many(["k1", "k2"]) == [b"v", b"v"]
            await store.close()

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(use())

    async def test_a_counter_rises_once_though_its_replies_are_lost(
        self, fresh_redis_url: str, proxy_to: ProxyTo
    ) -> None:
        proxy = await proxy_to(fresh_redis_url)
        store = await RedisStore.connect(proxy.url, timeout_s=BOUND_S)
        numbers = []
        for n in range(10):
            proxy.delay_s = 0.05
            task = asyncio.create_task(store.raise_to("c", 0, f"u{n}"))
            await asyncio.sleep(0.08)  # the server has it, the reply is held back
            proxy.cut()
            proxy.delay_s = 0.0
            numbers.append(await task)
        assert numbers == list(range(1, 11))
        await store.close()

    async def test_a_silent_server_is_said_within_the_bound(
        self, fresh_redis_url: str, proxy_to: ProxyTo, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(adapter, "CALL_S", 0.5)
        proxy = await proxy_to(fresh_redis_url)
        store = await RedisStore.connect(proxy.url, timeout_s=BOUND_S)
        proxy.flowing.clear()
        start = time.monotonic()
        with pytest.raises(RetryLater, match=r"get: no answer within 0\.5 s"):
            await store.get("k")
        assert time.monotonic() - start < 5
        proxy.flowing.set()
        assert await store.get("k") is None
        await store.close()

    async def test_what_was_acknowledged_more_than_a_second_ago_survives_a_kill(
        self, private_store: PrivateStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = await RedisStore.connect(private_store.url, timeout_s=BOUND_S)
        await store.put("k", b"v")
        assert await store.raise_to("c", 7, "u") == 7
        await asyncio.sleep(1.5)  # appendfsync everysec: time itself is what is tested
        await asyncio.to_thread(private_store.kill)
        monkeypatch.setattr(adapter, "CALL_S", 1.0)
        with pytest.raises(RetryLater, match="no answer within 1 s"):
            await store.get("k")
        monkeypatch.setattr(adapter, "CALL_S", BOUND_S)
        waiting = asyncio.create_task(store.get("k"))
        await asyncio.to_thread(private_store.start)
        assert await waiting == b"v"
        assert await store.raise_to("c", 0, "u") == 7
        assert await store.raise_to("c", 0, "v") == 8
        await store.close()


class TestSetUp:
    async def test_eviction_and_missing_persistence_are_named_with_the_cure(
        self, private_store: PrivateStore, raw: Any
    ) -> None:
        store = await RedisStore.connect(private_store.url, timeout_s=BOUND_S)
        assert await store.check() == []
        await raw.config_set("maxmemory-policy", "allkeys-lru")
        await raw.config_set("appendonly", "no")
        policy, aof = await store.check()
        assert "allkeys-lru" in policy
        assert "noeviction" in policy
        assert "appendonly" in aof
        await store.close()

    async def test_memory_that_is_full_is_an_error_and_evicts_nothing(
        self, private_store: PrivateStore, raw: Any
    ) -> None:
        store = await RedisStore.connect(private_store.url, timeout_s=BOUND_S)
        await raw.config_set("maxmemory", "16mb")
        await store.put("k0", bytes(CHUNK_BYTES))
        with pytest.raises(RetryLater, match="OutOfMemory"):
            await store.put_many({f"k{n}": bytes(CHUNK_BYTES) for n in range(1, 30)})
        assert await store.get("k0") == bytes(CHUNK_BYTES)
        assert await store.refuses() == "", "there is room for little"
        await raw.config_set("maxmemory", "1mb")
        assert "raise its maxmemory" in await store.refuses()
        await raw.config_set("maxmemory", "0")
        assert await store.refuses() == ""
        await store.close()

    async def test_a_server_that_tells_nothing_of_its_set_up_is_used_and_that_is_logged(
        self, private_store: PrivateStore, raw: Any
    ) -> None:
        await raw.execute_command(
            "ACL", "SETUSER", "limited", "on", ">secret", "~*", "&*", "+@all", "-info", "-config"
        )
        url = private_store.url.replace("redis://", "redis://limited:secret@")
        store = await RedisStore.connect(url, timeout_s=BOUND_S)
        with capture_logs() as logs:
            assert await store.check() == []
        assert [entry["event"] for entry in logs if entry["log_level"] == "warning"] == [
            "store_setup_unknown"
        ]
        assert "secret" not in str(logs)
        await store.close()

    async def test_a_store_that_is_not_there_is_said_within_the_bound(self) -> None:
        start = time.monotonic()
        with pytest.raises(
            RetryLater, match=r"redis://:\*\*\*@127\.0\.0\.1:1/0, connect: no answer within 1 s"
        ):
            await RedisStore.connect("redis://:secret@127.0.0.1:1/0", timeout_s=1.0)
        assert time.monotonic() - start < 6

    async def test_a_wrong_password_is_refused_at_once(
        self, private_store: PrivateStore, raw: Any
    ) -> None:
        await raw.config_set("requirepass", "right")
        with pytest.raises(SetupError, match="store at") as caught:
            await RedisStore.connect(
                private_store.url.replace("redis://", "redis://:wrong@"), timeout_s=BOUND_S
            )
        assert "wrong@" not in str(caught.value)

    async def test_a_client_that_decodes_is_refused_at_once(self, fresh_redis_url: str) -> None:
        with pytest.raises(SetupError, match="decode_responses"):
            await RedisStore.connect(fresh_redis_url + "?decode_responses=True", timeout_s=BOUND_S)

    @pytest.mark.parametrize("url", ["", "127.0.0.1:6379", "http://127.0.0.1/"])
    async def test_a_url_that_is_none_is_refused_at_once(self, url: str) -> None:
        with pytest.raises(SetupError, match="store URL"):
            await RedisStore.connect(url, timeout_s=BOUND_S)


class Stopped:
    """Answers whatever is asked until it is told to stop; then it reads nothing, and last all that is there."""

    def __init__(self) -> None:
        self.stopped, self.resumed = False, asyncio.Event()
        self.received = bytearray()
        self.ended: asyncio.Queue[str] = asyncio.Queue()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not self.stopped:
            asked = await reader.read(65536)
            if not asked:
                return
            writer.write(b"+OK\r\n" * asked.count(b"*"))
        sock = writer.get_extra_info("socket")
        sock = socket.fromfd(sock.fileno(), socket.AF_INET, socket.SOCK_STREAM)
        writer.transport.pause_reading()
        await self.resumed.wait()
        self.ended.put_nowait(await asyncio.to_thread(self._drain, sock))
        sock.close()
        writer.transport.abort()

    def _drain(self, sock: socket.socket) -> str:
        sock.settimeout(10.0)
        try:
            while data := sock.recv(1 << 20):
                self.received += data
        except ConnectionResetError:
            return "reset"
        return "closed"


async def test_what_was_given_up_is_never_delivered_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that waits in a cut network would otherwise come over the one that was written since."""
    monkeypatch.setattr(adapter, "SOCKET_S", 0.5)
    monkeypatch.setattr(adapter, "CALL_S", 1.5)
    there = Stopped()
    server = await asyncio.start_server(there.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    store = await RedisStore.connect(f"redis://127.0.0.1:{port}/0", timeout_s=10.0)
    value = bytes(CHUNK_BYTES)
    try:
        await store.put("warm", b"1")
        there.stopped = True
        await store.put("last", b"1")
        with pytest.raises(RetryLater):
            await store.put_many({f"late{n}": value for n in range(8)})
        there.resumed.set()
        async with asyncio.timeout(20):
            assert await there.ended.get() == "reset"
        assert len(there.received) < 8 * len(value)
    finally:
        await store.close()
        server.close()
