"""Reads the store, over a client of its own that asks for each thing once. It changes nothing there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from operator import methodcaller
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    RedisError,
    ResponseError,
)

from elps.contracts.errors import RetryLater, SetupError
from elps.contracts.ids import id_problem
from elps.contracts.topology import JOB_INDEX
from elps.contracts.urls import masked
from elps.doctor.core.readings import StoreReading
from elps.storage.redis import PROBE_KEY, RedisStore

CONNECT_S = 5.0
SCAN_S = 5.0
"""For the look at all keys; a store with very many is not looked through."""
SCAN_COUNT = 1000
STRAYS_TOLD = 100
SECTIONS = ("server", "memory", "persistence", "stats", "replication")
USED: Mapping[str, Callable[[Any], Any]] = {
    "GET": methodcaller("get", PROBE_KEY),
    "SETRANGE": methodcaller("setrange", PROBE_KEY, 0, b""),
    "MGET": methodcaller("mget", [PROBE_KEY]),
    "HGET": methodcaller("hget", PROBE_KEY, "f"),
    "HGETALL": methodcaller("hgetall", PROBE_KEY),
    "HDEL": methodcaller("hdel", PROBE_KEY, "f"),
    "UNLINK": methodcaller("unlink", PROBE_KEY),
    "EVAL": methodcaller("eval", "return redis.call('GET', KEYS[1])", 1, PROBE_KEY),
    "SCAN": methodcaller("scan", 0, match="elps:probe:*", count=1),
}
"""Commands that the services use, on a key that is never there: none of them leaves one."""


async def read_store(url: str) -> StoreReading:
    """What there is to know of the store; never raises for anything that is wrong with it."""
    shown = masked(url)
    try:
        client = Redis.from_url(
            url,
            socket_timeout=CONNECT_S,
            socket_connect_timeout=CONNECT_S,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
            client_name="elps-doctor",
        )
    except ValueError as error:
        return StoreReading(shown, error=str(error), refused=True)
    try:
        await client.ping()
        return await _read(client, url, shown)
    except (AuthenticationError, AuthorizationError) as error:
        return StoreReading(shown, error=str(error), refused=True)
    except (RedisError, OSError) as error:
        return StoreReading(shown, error=str(error) or type(error).__name__)
    finally:
        await client.aclose()


async def _read(client: Any, url: str, shown: str) -> StoreReading:
    denied: dict[str, str] = {}
    info: dict[str, str] = {}
    for section in SECTIONS:
        info |= _texts(await _ask(client, "INFO", methodcaller("info", section), denied) or {})
    for name, fact in (
        ("appendfsync", "appendfsync"),
        ("maxmemory-policy", "maxmemory_policy"),
        ("appendonly", "aof_enabled"),
    ):
        if fact not in info:  # many hosts of stores allow INFO and no CONFIG; nothing needs it
            found = _texts(await _ask(client, "CONFIG", methodcaller("config_get", name), {}) or {})
            info |= {fact: found[name]} if name in found else {}
    refuses = await _refuses(url)
    for name, act in USED.items():
        await _ask(client, name, act, denied)
    off_s, within_s = await _clock(client, denied)
    return StoreReading(
        shown,
        info=info,
        denied=denied,
        refuses=refuses,
        clock_off_s=off_s,
        clock_within_s=within_s,
        strays=None if denied else await _strays(client),
    )


async def _ask(
    client: Any, name: str, act: Callable[[Any], Any], denied: dict[str, str]
) -> Any | None:
    """The reply; None, with a word in `denied`, where the server does not allow or know the command."""
    try:
        return await act(client)
    except (AuthorizationError, ResponseError) as error:
        if not _passing(str(error)):
            denied.setdefault(name, str(error))
        return None


def _passing(words: str) -> bool:
    """Whether a refusal is of the moment: memory, disk, role. `RedisStore.refuses` tells those."""
    passing = ("OOM", "MISCONF", "READONLY", "LOADING", "BUSY", "NOREPLICAS", "MASTERDOWN")
    return words.startswith((*passing, "command not allowed when used memory", "You can't write"))


async def _refuses(url: str) -> str:
    """Why it takes no values, with what to do: as the services find it."""
    try:
        store = await RedisStore.connect(url, timeout_s=CONNECT_S)
    except (RetryLater, SetupError) as error:
        return str(error)
    try:
        return await store.refuses()
    finally:
        await store.close()


async def _clock(client: Any, denied: dict[str, str]) -> tuple[float | None, float]:
    before = time.time()
    told = await _ask(client, "TIME", methodcaller("time"), denied)
    after = time.time()
    if told is None:
        return None, 0.0
    seconds, microseconds = told
    return seconds + microseconds / 1e6 - (before + after) / 2, (after - before) / 2


async def _strays(client: Any) -> tuple[str, ...] | None:
    """Jobs of which there are keys and no record. Keys first: a job that comes meanwhile has its record before them."""
    head, jobs, cursor = "elps:job:", dict[str, None](), 0
    try:
        async with asyncio.timeout(SCAN_S):
            while True:
                cursor, keys = await client.scan(cursor, match=f"{head}*", count=SCAN_COUNT)
                for key in keys:
                    job = key.decode(errors="replace").removeprefix(head).partition(":")[0]
                    jobs[job] = None
                if not cursor:
                    break
            known = {name.decode(errors="replace") for name in await client.hkeys(JOB_INDEX)}
    except (TimeoutError, ResponseError):
        return None
    strays = sorted(job for job in jobs if job not in known and not id_problem(job))
    return tuple(strays[:STRAYS_TOLD])


def _texts(facts: Mapping[Any, Any]) -> dict[str, str]:
    return {_text(name): _text(value) for name, value in facts.items()}


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
