"""The store over Redis 6 to 8 or Valkey, through redis-py's asyncio client.

A command is repeated after a lost connection, which is sound because every write of `Store` is idempotent.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from operator import methodcaller
from typing import Any, Self

import structlog
from redis.asyncio import Redis

from elps.contracts.errors import RetryLater, SetupError, Superseded
from elps.contracts.urls import masked
from elps.storage.port import CHUNK_BYTES, Lease, check_value
from elps.storage.scripts import (
    CLAIM,
    DELETE_UNDER,
    HASH_DELETE_UNDER,
    HELD,
    PUT_UNDER,
    RAISE_TO,
    RELEASE,
)
from elps.storage.server import Server, client_of

log = structlog.get_logger(__name__)

PIPELINE_BYTES = 8 * 1024 * 1024
"""In flight for one call of `put_many` or `get_many`."""
PIPELINE_KEYS = 1000
SCAN_COUNT = 500
REMEMBERED_UPDATES = 64
"""Update ids kept for each counter: a repeat comes within seconds, a job's terms over its whole life."""

PROBE_KEY = "elps:probe"
"""Never there."""


class RedisStore:
    """See `elps.storage.port.Store`; made by `connect`."""

    def __init__(self, client: Redis, shown: str) -> None:
        """`client` must not decode replies; `shown` is its address for people."""
        self.shown = shown
        self._server = Server(client, shown)

    @classmethod
    async def connect(cls, url: str, *, timeout_s: float = 60.0) -> Self:
        """Connect, trying again until `timeout_s` has passed; then `RetryLater`.

        A wrong URL or password is a `SetupError` at once.
        """
        store = cls(client_of(url), masked(url))
        try:
            await store._server.call("connect", methodcaller("ping"), timeout_s)
        except BaseException:
            await store.close()
            raise
        return store

    async def get(self, key: str) -> bytes | None:
        """The value of a key."""
        found: bytes | None = await self._server.call("get", methodcaller("get", key))
        return found

    async def put(self, key: str, value: bytes | memoryview) -> None:
        """Set a key."""
        check_value(key, value)
        await self._server.call("put", methodcaller("set", key, _raw(value)))

    async def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """Values of several keys; of more than a few, the sizes are asked first, so that each fetch is bounded."""
        found: list[bytes | None] = []
        for batch in _batches(keys, [1] * len(keys), PIPELINE_KEYS):
            for part in _batches(batch, await self._sizes(batch), PIPELINE_BYTES):
                found += await self._server.call("get_many", methodcaller("mget", part))
        return found

    async def present(self, keys: Sequence[str]) -> int:
        """How many of these keys there are."""
        batches = _batches(keys, [1] * len(keys), PIPELINE_KEYS)
        found: list[int] = [
            await self._server.call("present", methodcaller("exists", *batch)) for batch in batches
        ]
        return sum(found)

    async def put_many(self, items: Mapping[str, bytes | memoryview]) -> None:
        """Set several keys."""
        raw = {}
        for key, value in items.items():
            check_value(key, value)
            raw[key] = _raw(value)
        for part in _batches(list(raw), [len(k) + len(v) for k, v in raw.items()], PIPELINE_BYTES):
            await self._server.call_together("put_many", [("set", key, raw[key]) for key in part])

    async def delete(self, keys: Sequence[str]) -> None:
        """Remove keys of any kind; large ones are freed in the background of the server."""
        for batch in _batches(keys, [1] * len(keys), PIPELINE_KEYS):
            await self._server.call("delete", methodcaller("unlink", *batch))

    async def hash_get(self, key: str, field: str) -> bytes | None:
        """One field of a hash."""
        found: bytes | None = await self._server.call("hash_get", methodcaller("hget", key, field))
        return found

    async def hash_all(self, key: str) -> dict[str, bytes]:
        """All fields of a hash."""
        found: dict[bytes, bytes] = await self._server.call(
            "hash_all", methodcaller("hgetall", key)
        )
        return {field.decode(): value for field, value in found.items()}

    async def hash_put(self, key: str, field: str, value: bytes) -> None:
        """Set one field of a hash."""
        check_value(key, value)
        await self._server.call("hash_put", methodcaller("hset", key, field, value))

    async def hash_delete(self, key: str, fields: Sequence[str]) -> None:
        """Remove fields of a hash."""
        if fields:
            await self._server.call("hash_delete", methodcaller("hdel", key, *fields))

    async def raise_to(self, key: str, at_least: int, update_id: str) -> int:
        """Advance a counter; the same `update_id` returns the same number."""
        arguments = (str(at_least), update_id, str(REMEMBERED_UPDATES))
        return int(
            await self._server.call("raise_to", methodcaller("eval", RAISE_TO, 1, key, *arguments))
        )

    async def claim(
        self,
        key: str,
        holder: str,
        ttl_s: float,
        *,
        at_least: int = 0,
        over: str = "",
        known: int = 0,
    ) -> Lease:
        """Hold a lease, or learn who does; its time is that of the server."""
        arguments = (holder, str(round(ttl_s * 1000)), str(at_least), over, str(known))
        act = methodcaller("eval", CLAIM, 2, key, key + HELD, *arguments)
        found, number, writes = await self._server.call("claim", act)
        return Lease(_text(found), int(number), int(writes))

    async def release(self, key: str, holder: str) -> None:
        """Let a lease run out now."""
        await self._server.call("release", methodcaller("eval", RELEASE, 1, key + HELD, holder))

    async def hash_put_under(
        self, key: str, fields: Mapping[str, bytes], lease_key: str, lease: Lease
    ) -> int:
        """Set fields of a hash, under the newest lease: in one step, unless the server stood still for it."""
        for value in fields.values():
            check_value(key, value)
        writes = lease.writes
        for most in _batches(list(fields), [1] * len(fields), PIPELINE_KEYS):
            sizes = [len(name) + len(fields[name]) for name in most]
            for part in _batches(most, sizes, PIPELINE_BYTES):
                pairs = [text for name in part for text in (name, fields[name])]
                given = (str(writes), *pairs)
                found = await self._under("hash_put", PUT_UNDER, lease_key, lease, [key], given)
                if found < lease.writes:
                    return found
                if found < writes:  # no more than the steps before: what was known is all there
                    raise RetryLater(
                        f"store at {self.shown}, hash_put: it has forgotten a part of what is being put"
                    )
                writes = found
        return writes

    async def delete_under(self, keys: Sequence[str], lease_key: str, lease: Lease) -> None:
        """Remove keys, under the newest lease; large ones are freed in the background of the server."""
        for batch in _batches(keys, [1] * len(keys), PIPELINE_KEYS):
            await self._under("delete", DELETE_UNDER, lease_key, lease, batch, [])

    async def hash_delete_under(
        self, key: str, fields: Sequence[str], lease_key: str, lease: Lease
    ) -> None:
        """Remove fields of a hash, under the newest lease."""
        for batch in _batches(fields, [1] * len(fields), PIPELINE_KEYS):
            await self._under("hash_delete", HASH_DELETE_UNDER, lease_key, lease, [key], batch)

    async def scan(self, prefix: str) -> AsyncIterator[str]:
        """Names of all keys with this prefix, each once."""
        pattern = "".join(f"\\{c}" if c in "\\*?[]^" else c for c in prefix) + "*"
        seen: set[bytes] = set()  # the server may name a key twice
        cursor = 0
        while True:
            step = methodcaller("scan", cursor, match=pattern, count=SCAN_COUNT)
            cursor, keys = await self._server.call("scan", step)
            for key in keys:
                if key not in seen:
                    seen.add(key)
                    yield key.decode()
            if not cursor:
                return

    async def check(self) -> list[str]:
        """What is wrong with the store's set-up. What the server does not tell is logged and held to be right."""
        facts = await self._facts()
        problems = []
        policy, aof = facts.get("maxmemory_policy"), facts.get("aof_enabled")
        if policy is None or aof is None:
            log.warning(
                "store_setup_unknown",
                url=self.shown,
                hint="neither INFO nor CONFIG is allowed here",
            )
        if policy not in (None, "noeviction"):
            problems.append(
                f"maxmemory-policy is {policy}, which throws parameters away when memory is short; "
                "set it to noeviction (redis-cli config set maxmemory-policy noeviction)"
            )
        if aof not in (None, "1", "yes"):
            problems.append(
                "appendonly is off, so that a crash loses everything; "
                "set it to yes (redis-cli config set appendonly yes)"
            )
        return problems

    async def refuses(self) -> str:
        """See `Store.refuses`: the writing of nothing to a key that is not there, which leaves none."""
        try:
            await self._server.call("write", methodcaller("setrange", PROBE_KEY, 0, b""))
        except RetryLater as error:
            return str(error)
        except SetupError as error:  # this user may not; what else is wrong, its real writes tell
            log.debug("store_command_refused", error=str(error))
        return ""

    async def close(self) -> None:
        """Release the connections."""
        await self._server.close()

    async def _facts(self) -> dict[str, str]:
        """The two settings that matter, from INFO or, where that is not allowed, from CONFIG."""
        facts: dict[str, str] = {}
        for section in ("memory", "persistence"):
            facts.update(await self._ask(methodcaller("info", section)))
        for name, fact in (("maxmemory-policy", "maxmemory_policy"), ("appendonly", "aof_enabled")):
            if fact not in facts:
                config = await self._ask(methodcaller("config_get", name))
                if name in config:
                    facts[fact] = config[name]
        return facts

    async def _ask(self, act: Callable[[Redis], Awaitable[Any]]) -> dict[str, str]:
        """The reply as texts; empty when the server does not allow or know the command."""
        try:
            reply = await self._server.call("check", act)
        except SetupError as error:
            log.debug("store_command_refused", error=str(error))
            return {}
        return {_text(name): _text(value) for name, value in reply.items()}

    async def _under(
        self,
        what: str,
        script: str,
        lease_key: str,
        lease: Lease,
        keys: Sequence[str],
        arguments: Sequence[str | bytes],
    ) -> int:
        """Run a script that begins with `UNDER`; `Superseded` where it went no further."""
        given = (lease_key, *keys, lease.holder, str(lease.number), *arguments)
        answer = int(
            await self._server.call(what, methodcaller("eval", script, 1 + len(keys), *given))
        )
        if answer < 0:
            raise Superseded(f"{lease_key} is held by another one")
        return answer

    async def _sizes(self, keys: Sequence[str]) -> list[int]:
        if len(keys) * CHUNK_BYTES <= PIPELINE_BYTES:
            return [CHUNK_BYTES] * len(keys)
        sizes: list[int] = await self._server.call_together(
            "get_many", [("strlen", key) for key in keys]
        )
        return sizes


def _raw(value: bytes | memoryview) -> bytes | memoryview:
    """Bytes as the client counts them: it takes the length of a memoryview for its size."""
    if isinstance(value, memoryview):
        return value.cast("B") if value.c_contiguous else value.tobytes()
    return value


def _batches(keys: Sequence[str], sizes: Sequence[int], bound: int) -> Iterator[list[str]]:
    """Cut into runs whose sizes sum to `bound` at most (or that hold a single key)."""
    batch: list[str] = []
    total = 0
    for key, size in zip(keys, sizes, strict=True):
        if batch and total + size > bound:
            yield batch
            batch, total = [], 0
        batch.append(key)
        total += size
    if batch:
        yield batch


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
