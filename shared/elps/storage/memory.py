"""The store within one process, for `elps run` and for tests: nothing outlives the process."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace

from elps.contracts.errors import RetryLater, Superseded
from elps.storage.port import Lease, check_value

REMEMBERED_UPDATES = 64
"""Update ids kept for each counter, as in Redis."""


class MemoryStore:
    """See `elps.storage.port.Store`. Several services of one process may share one."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._hashes: dict[str, dict[str, bytes]] = {}
        self._counters: dict[str, int] = {}
        self._updates: dict[
            str, OrderedDict[str, int]
        ] = {}  #: counter to its newest update ids and what they got
        self._leases: dict[str, tuple[Lease, float]] = {}  #: and until when, monotonic seconds
        self._outage = False
        self._closed = False

    def stop(self) -> None:
        """Play an outage: every call raises `RetryLater` until `start`."""
        self._outage = True

    def start(self) -> None:
        """End the outage."""
        self._outage = False

    async def get(self, key: str) -> bytes | None:
        """The value of a key."""
        self._available()
        return self._values.get(key)

    async def put(self, key: str, value: bytes | memoryview) -> None:
        """Set a key."""
        check_value(key, value)
        self._available()
        self._values[key] = bytes(value)

    async def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """Values of several keys."""
        self._available()
        return [self._values.get(key) for key in keys]

    async def present(self, keys: Sequence[str]) -> int:
        """How many of these keys there are."""
        self._available()
        kinds = (self._values, self._hashes, self._counters, self._leases)
        return sum(any(key in kind for kind in kinds) for key in keys)

    async def put_many(self, items: Mapping[str, bytes | memoryview]) -> None:
        """Set several keys."""
        for key, value in items.items():
            check_value(key, value)
        self._available()
        self._values.update((key, bytes(value)) for key, value in items.items())

    async def delete(self, keys: Sequence[str]) -> None:
        """Remove keys of any kind."""
        self._available()
        for key in keys:
            self._values.pop(key, None)
            self._hashes.pop(key, None)
            self._counters.pop(key, None)
            self._updates.pop(key, None)
            self._leases.pop(key, None)

    async def hash_get(self, key: str, field: str) -> bytes | None:
        """One field of a hash."""
        self._available()
        return self._hashes.get(key, {}).get(field)

    async def hash_all(self, key: str) -> dict[str, bytes]:
        """All fields of a hash."""
        self._available()
        return dict(self._hashes.get(key, {}))

    async def hash_put(self, key: str, field: str, value: bytes) -> None:
        """Set one field of a hash."""
        check_value(key, value)
        self._available()
        self._hashes.setdefault(key, {})[field] = bytes(value)

    async def hash_delete(self, key: str, fields: Sequence[str]) -> None:
        """Remove fields of a hash; the hash is gone with its last field."""
        self._available()
        found = self._hashes.get(key, {})
        for field in fields:
            found.pop(field, None)
        if not found:
            self._hashes.pop(key, None)

    async def raise_to(self, key: str, at_least: int, update_id: str) -> int:
        """Advance a counter; the same `update_id` returns the same number."""
        self._available()
        updates = self._updates.setdefault(key, OrderedDict())
        if update_id not in updates:
            updates[update_id] = self._counters[key] = max(self._counters.get(key, 0) + 1, at_least)
            while len(updates) > REMEMBERED_UPDATES:
                updates.popitem(last=False)
        return updates[update_id]

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
        """Hold a lease, or learn who does."""
        self._available()
        now = time.monotonic()
        last, until = self._leases.get(key, (Lease("", 0), 0.0))
        held = until > now
        if held and last.holder not in (holder, over):
            return last
        if last.number < known:
            return last if held else replace(last, holder="")
        if last.holder != holder or last.number < at_least:
            last = Lease(holder, max(last.number + 1, at_least), last.writes)
        self._leases[key] = last, now + ttl_s
        return last

    async def release(self, key: str, holder: str) -> None:
        """Let a lease run out now."""
        self._available()
        known, _ = self._leases.get(key, (Lease("", 0), 0.0))
        if known.holder == holder:
            self._leases[key] = known, 0.0

    async def hash_put_under(
        self, key: str, fields: Mapping[str, bytes], lease_key: str, lease: Lease
    ) -> int:
        """Set fields of a hash, under the newest lease."""
        for value in fields.values():
            check_value(key, value)
        known, until = self._hold(lease_key, lease)
        if known.writes < lease.writes:
            return known.writes
        self._hashes.setdefault(key, {}).update(fields)
        writes = known.writes + len(fields)
        self._leases[lease_key] = replace(known, writes=writes), until
        return writes

    async def delete_under(self, keys: Sequence[str], lease_key: str, lease: Lease) -> None:
        """Remove keys, under the newest lease."""
        self._hold(lease_key, lease)
        await self.delete(keys)

    async def hash_delete_under(
        self, key: str, fields: Sequence[str], lease_key: str, lease: Lease
    ) -> None:
        """Remove fields of a hash, under the newest lease."""
        self._hold(lease_key, lease)
        await self.hash_delete(key, fields)

    async def scan(self, prefix: str) -> AsyncIterator[str]:
        """Names of all keys with this prefix."""
        self._available()
        for key in [
            k
            for k in (*self._values, *self._hashes, *self._counters, *self._leases)
            if k.startswith(prefix)
        ]:
            yield key

    async def check(self) -> list[str]:
        """Nothing to configure: always empty."""
        self._available()
        return []

    async def refuses(self) -> str:
        """It takes what the process has memory for: always empty."""
        self._available()
        return ""

    async def close(self) -> None:
        """Refuse further calls of this object."""
        self._closed = True

    def _hold(self, lease_key: str, lease: Lease) -> tuple[Lease, float]:
        self._available()
        known, until = self._leases.get(lease_key, (Lease("", 0), 0.0))
        if (known.holder, known.number) != (lease.holder, lease.number):
            raise Superseded(f"{lease_key} is held by another one")
        return known, until

    def _available(self) -> None:
        if self._closed or self._outage:
            raise RetryLater("the store is closed" if self._closed else "the store does not answer")
