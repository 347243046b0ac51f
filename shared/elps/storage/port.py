"""What services ask of a store. `RedisStore` and `MemoryStore` both pass the same tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

CHUNK_BYTES = 1024 * 1024
"""Largest single value handed to the store: larger ones are several times slower in Redis (measured)."""


@dataclass(frozen=True)
class Lease:
    """Who holds something that one at a time may hold."""

    holder: str
    number: int
    """Grows with each change of the holder."""
    writes: int = 0
    """Values that were ever set under it, by all its holders. Lower than before: the store has forgotten some."""


class Store(Protocol):
    """A durable map. Every wait is bounded and raises `RetryLater`; writes are idempotent, so a repeat does no harm."""

    async def get(self, key: str) -> bytes | None:
        """The value of a key."""

    async def put(self, key: str, value: bytes | memoryview) -> None:
        """Set a key. At most `CHUNK_BYTES`, else `ValueError`."""

    async def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """Values of several keys, fetched in bounded pipelines."""

    async def present(self, keys: Sequence[str]) -> int:
        """How many of these keys there are; each is to be named once."""

    async def put_many(self, items: Mapping[str, bytes | memoryview]) -> None:
        """Set several keys, in bounded pipelines."""

    async def delete(self, keys: Sequence[str]) -> None:
        """Remove keys; absent ones are no error."""

    async def hash_get(self, key: str, field: str) -> bytes | None:
        """One field of a hash."""

    async def hash_all(self, key: str) -> dict[str, bytes]:
        """All fields of a hash."""

    async def hash_put(self, key: str, field: str, value: bytes) -> None:
        """Set one field of a hash."""

    async def hash_delete(self, key: str, fields: Sequence[str]) -> None:
        """Remove fields of a hash."""

    async def raise_to(self, key: str, at_least: int, update_id: str) -> int:
        """Advance a counter by one, to `at_least` at the least, and return it.

        The same `update_id` returns the same number. A counter is read by this alone.

        One Lua script: exact under repeats and concurrent callers.
        """

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
        """Hold a lease for `ttl_s` from now, or learn who does.

        It goes to `holder` if it has it already, if it has run out, and from `over`, who is known to have ended. Its
        number rises when the holder is another than the last one, and to `at_least`. Repeats change the time only.

        `known` is a number that was given already: where the store knows of lower ones only it has forgotten that, and
        nobody gets it by this claim; the holder that is returned may be empty then.
        """

    async def release(self, key: str, holder: str) -> None:
        """Let a lease run out now, if it is held by `holder`."""

    async def hash_put_under(
        self, key: str, fields: Mapping[str, bytes], lease_key: str, lease: Lease
    ) -> int:
        """Set fields of a hash, at least one; `Superseded` unless this lease is the newest, run out or not.

        Returns the lease's writes, each of these fields counted. If the store knows of fewer than `lease.writes`,
        nothing is set and that smaller number is returned, however often it is asked: what is missing must be noticed
        first. Many fields are set in several steps, in their order, and any of these may find that out. What only the
        steps before had set is missed by `RetryLater`: all are to be set again.
        """

    async def delete_under(self, keys: Sequence[str], lease_key: str, lease: Lease) -> None:
        """Remove keys, absent ones without error; `Superseded` as above, with those that are left untouched."""

    async def hash_delete_under(
        self, key: str, fields: Sequence[str], lease_key: str, lease: Lease
    ) -> None:
        """Remove fields of a hash; `Superseded` as above."""

    def scan(self, prefix: str) -> AsyncIterator[str]:
        """Names of all keys with this prefix, in no order, without blocking the store."""

    async def check(self) -> list[str]:
        """What is wrong with the store's own set-up (eviction policy, persistence), for people; empty: nothing is."""

    async def refuses(self) -> str:
        """Why the store takes no values at present though it answers (memory or disk full), and what to do, for people.

        Empty when it takes them. Changes nothing in it.
        """

    async def close(self) -> None:
        """Release the connections."""


def check_value(key: str, value: bytes | memoryview) -> None:
    """Raise `ValueError` for a value that is too large for one key."""
    size_bytes = value.nbytes if isinstance(value, memoryview) else len(value)
    if size_bytes > CHUNK_BYTES:
        raise ValueError(f"{key}: {size_bytes} bytes, at most {CHUNK_BYTES} go under one key")
