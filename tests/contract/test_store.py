"""What every store does. The same tests run on the store of one process, on a fake of Redis and on Redis."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

import fakeredis
import numpy as np
import pytest

from elps.contracts.errors import RetryLater, Superseded
from elps.storage.memory import MemoryStore
from elps.storage.port import CHUNK_BYTES, Lease, Store
from elps.storage.redis import PIPELINE_KEYS, RedisStore


@pytest.fixture(
    params=["memory", "fakeredis", pytest.param("redis", marks=pytest.mark.integration)]
)
async def store(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    """An empty store."""
    made: Store
    if request.param == "memory":
        made = MemoryStore()
    elif request.param == "fakeredis":
        made = RedisStore(
            fakeredis.FakeAsyncRedis(server=fakeredis.FakeServer(), protocol=2), "fakeredis"
        )
    else:
        made = await RedisStore.connect(request.getfixturevalue("fresh_redis_url"), timeout_s=10.0)
        await made.delete([key async for key in made.scan("")])
    yield made
    await made.close()


async def names(store: Store, prefix: str) -> list[str]:
    return sorted([key async for key in store.scan(prefix)])


class TestValues:
    async def test_an_absent_key_is_none(self, store: Store) -> None:
        assert await store.get("nothing") is None

    @pytest.mark.parametrize("value", [b"", b"x", bytes(range(256)), b"\xff" * CHUNK_BYTES])
    async def test_bytes_come_back_as_they_were(self, store: Store, value: bytes) -> None:
        await store.put("key", value)
        assert await store.get("key") == value

    async def test_a_later_value_replaces_an_earlier_one(self, store: Store) -> None:
        await store.put("key", b"long value")
        await store.put("key", b"new")
        assert await store.get("key") == b"new"

    @pytest.mark.parametrize("dtype", ["f4", "f8", "i8"])
    async def test_the_memory_of_an_array_is_stored_whole(self, store: Store, dtype: str) -> None:
        array = np.arange(1000).astype(dtype)
        await store.put("array", memoryview(array))
        await store.put_many({"again": memoryview(array), "strided": memoryview(array[::2])})
        for key, expected in (("array", array), ("again", array), ("strided", array[::2])):
            raw = await store.get(key)
            assert raw is not None
            np.testing.assert_array_equal(np.frombuffer(raw, dtype), expected)

    async def test_what_is_stored_does_not_follow_the_buffer_it_came_from(
        self, store: Store
    ) -> None:
        array = np.zeros(10, np.float32)
        await store.put("array", memoryview(array))
        array += 1
        assert await store.get("array") == bytes(40)

    async def test_a_value_above_the_chunk_size_is_refused(self, store: Store) -> None:
        too_large = bytes(CHUNK_BYTES + 1)
        for put in (
            lambda: store.put("k", too_large),
            lambda: store.put_many({"a": b"x", "k": too_large}),
            lambda: store.hash_put("k", "f", too_large),
            lambda: store.put("k", memoryview(np.zeros(CHUNK_BYTES // 8 + 1))),
        ):
            with pytest.raises(ValueError, match="at most"):
                await put()
        assert await store.get_many(["a", "k"]) == [None, None]

    async def test_many_keys_keep_their_order_and_their_gaps(self, store: Store) -> None:
        items = {f"k{n}": b"%d" % n for n in range(2500)}
        await store.put_many(items)
        keys = ["absent", *reversed(items), "absent", "k7"]
        assert await store.get_many(keys) == [None, *reversed(items.values()), None, b"7"]

    async def test_many_large_values_pass_in_pieces(self, store: Store) -> None:
        items = {f"k{n}": bytes([n]) * (CHUNK_BYTES - n) for n in range(20)}
        await store.put_many(items)
        assert await store.get_many(list(items)) == list(items.values())

    async def test_keys_of_every_kind_are_counted(self, store: Store) -> None:
        await store.put_many({f"k{n}": b"" for n in range(2500)})
        await store.hash_put("hash", "f", b"")
        keys = [*(f"k{n}" for n in range(0, 3000, 2)), "hash", "absent"]
        assert await store.present(keys) == 1251
        assert await store.present([]) == 0

    async def test_nothing_at_all_is_no_error(self, store: Store) -> None:
        await store.put_many({})
        await store.delete([])
        await store.hash_delete("hash", [])
        assert await store.get_many([]) == []


class TestHashes:
    async def test_fields_are_set_read_and_removed(self, store: Store) -> None:
        await store.hash_put("jobs", "a", b"1")
        await store.hash_put("jobs", "b", b"\xff\x00")
        await store.hash_put("jobs", "a", b"2")
        assert await store.hash_get("jobs", "a") == b"2"
        assert await store.hash_get("jobs", "c") is None
        assert await store.hash_get("other", "a") is None
        assert await store.hash_all("jobs") == {"a": b"2", "b": b"\xff\x00"}
        await store.hash_delete("jobs", ["a", "never"])
        assert await store.hash_all("jobs") == {"b": b"\xff\x00"}
        await store.hash_delete("jobs", ["b"])
        assert await store.hash_all("jobs") == {}
        assert await names(store, "") == []


class TestKeys:
    async def test_a_scan_names_all_kinds_of_keys_with_the_prefix_once(self, store: Store) -> None:
        await store.put_many({f"elps:job:a:{n}": b"" for n in range(1200)})
        await store.hash_put("elps:job:a:hash", "f", b"")
        await store.raise_to("elps:job:a:term", 0, "u")
        await store.put("elps:job:ab:1", b"")
        found = await names(store, "elps:job:a:")
        assert found == sorted(
            [f"elps:job:a:{n}" for n in range(1200)] + ["elps:job:a:hash", "elps:job:a:term"]
        )

    @pytest.mark.parametrize("prefix", ["a*", "a?", "a[b]", "a\\", "a^", "a[", "a-"])
    async def test_a_prefix_is_taken_literally(self, store: Store, prefix: str) -> None:
        await store.put_many({prefix + "1": b"", "ab1": b"", "abc1": b""})
        assert await names(store, prefix) == [prefix + "1"]

    async def test_delete_removes_keys_of_every_kind(self, store: Store) -> None:
        await store.put("value", b"x")
        await store.hash_put("hash", "f", b"x")
        assert await store.raise_to("counter", 5, "u") == 5
        await store.delete(["value", "hash", "counter", "absent"])
        assert await names(store, "") == []
        assert await store.raise_to("counter", 0, "u") == 1

    async def test_names_may_hold_any_text(self, store: Store) -> None:
        await store.put("schlüssel ☃", b"x")
        await store.hash_put("hash ☃", "feld ☃", b"y")
        assert await names(store, "") == ["hash ☃", "schlüssel ☃"]
        assert await store.hash_all("hash ☃") == {"feld ☃": b"y"}


class TestCounters:
    async def test_a_counter_starts_at_one_and_rises_by_one(self, store: Store) -> None:
        assert [await store.raise_to("c", 0, f"u{n}") for n in range(3)] == [1, 2, 3]

    async def test_a_counter_jumps_to_what_is_asked_at_the_least(self, store: Store) -> None:
        assert await store.raise_to("c", 10, "a") == 10
        assert await store.raise_to("c", 10, "b") == 11
        assert await store.raise_to("c", 3, "c") == 12

    async def test_the_same_update_gets_the_same_number(self, store: Store) -> None:
        assert await store.raise_to("c", 0, "a") == 1
        assert await store.raise_to("c", 0, "b") == 2
        assert await store.raise_to("c", 0, "a") == 1
        assert await store.raise_to("c", 99, "b") == 2
        assert await store.raise_to("c", 0, "c") == 3

    async def test_many_updates_leave_a_bounded_record(self, store: Store) -> None:
        numbers = [await store.raise_to("c", 0, f"u{n}") for n in range(200)]
        assert numbers == list(range(1, 201))
        assert await store.raise_to("c", 0, "u199") == 200
        assert await store.raise_to("c", 0, "u150") == 151

    async def test_concurrent_callers_get_different_numbers(self, store: Store) -> None:
        numbers = await asyncio.gather(*(store.raise_to("c", 0, f"u{n}") for n in range(50)))
        assert sorted(numbers) == list(range(1, 51))

    async def test_large_numbers_are_exact(self, store: Store) -> None:
        assert await store.raise_to("c", 2**53 - 2, "a") == 2**53 - 2
        assert await store.raise_to("c", 0, "b") == 2**53 - 1

    async def test_counters_do_not_touch_each_other(self, store: Store) -> None:
        for key, update in itertools.product(("c1", "c2"), ("a", "b")):
            await store.raise_to(key, 0, update)
        assert [await store.raise_to(key, 0, "z") for key in ("c1", "c2")] == [3, 3]


class TestLeases:
    async def test_one_holds_it_until_its_time_is_over_and_its_number_tells_changes(
        self, store: Store
    ) -> None:
        first = await store.claim("lease", "a", 60)
        assert first == Lease("a", 1) == await store.claim("lease", "b", 60)
        assert await store.claim("lease", "a", 0.1) == first, "again, for less"
        second = first
        async with asyncio.timeout(10):
            while second == first:
                await asyncio.sleep(0.02)
                second = await store.claim("lease", "b", 60)
        assert second == Lease("b", 2) == await store.claim("lease", "a", 60)

    async def test_it_may_be_released_by_its_holder_alone(self, store: Store) -> None:
        await store.claim("lease", "a", 60)
        await store.release("lease", "b")
        assert (await store.claim("lease", "b", 60)).holder == "a"
        await store.release("lease", "a")
        await store.release("lease", "a")
        assert await store.claim("lease", "b", 60) == Lease("b", 2)

    async def test_whoever_took_it_up_again_before_anybody_else_did_keeps_the_number(
        self, store: Store
    ) -> None:
        await store.claim("lease", "a", 60)
        await store.release("lease", "a")
        assert await store.claim("lease", "a", 60) == Lease("a", 1)

    async def test_it_is_taken_from_one_who_is_known_to_have_ended(self, store: Store) -> None:
        await store.claim("lease", "a", 60)
        assert (await store.claim("lease", "b", 60, over="c")).holder == "a"
        assert await store.claim("lease", "b", 60, over="a") == Lease("b", 2)

    async def test_the_number_is_raised_above_what_the_store_has_forgotten(
        self, store: Store
    ) -> None:
        await store.claim("lease", "a", 60)
        assert await store.claim("lease", "a", 60, at_least=7) == Lease("a", 7)
        assert await store.claim("lease", "a", 60, at_least=3) == Lease("a", 7)

    async def test_nobody_gets_it_from_a_store_that_has_forgotten_a_number_known_to_him(
        self, store: Store
    ) -> None:
        assert await store.claim("lease", "b", 60, known=3) == Lease("", 0)
        await store.claim("lease", "a", 60)
        assert await store.claim("lease", "b", 60, known=3) == Lease("a", 1)
        assert (await store.claim("lease", "b", 60, known=3, over="a")).holder == "a"
        await store.release("lease", "a")
        assert await store.claim("lease", "b", 60, known=2) == Lease("", 1)
        assert await store.claim("lease", "b", 60, known=1) == Lease("b", 2)

    async def test_what_is_written_under_an_older_lease_is_refused(self, store: Store) -> None:
        old = await store.claim("lease", "a", 60)
        await store.hash_put_under("hash", {"f": b"1"}, "lease", old)
        await store.release("lease", "a")
        await store.hash_put_under(
            "hash", {"f": b"2"}, "lease", old
        )  # nobody else had it meanwhile
        new = await store.claim("lease", "b", 60)
        with pytest.raises(Superseded, match="lease is held by another"):
            await store.hash_put_under("hash", {"f": b"3"}, "lease", old)
        await store.hash_put_under("hash", {"g": b"4"}, "lease", new)
        assert await store.hash_all("hash") == {"f": b"2", "g": b"4"}

    async def test_what_is_removed_under_an_older_lease_stays(self, store: Store) -> None:
        old = await store.claim("lease", "a", 60)
        await store.put_many({"k1": b"1", "k2": b"2"})
        await store.hash_put_under("hash", {"f": b"1"}, "lease", old)
        await store.hash_put_under("hash", {"g": b"2"}, "lease", old)
        await store.delete_under(["k1", "never there"], "lease", old)
        await store.hash_delete_under("hash", ["f", "never there"], "lease", old)
        await store.release("lease", "a")
        new = await store.claim("lease", "b", 60)
        with pytest.raises(Superseded, match="lease is held by another"):
            await store.delete_under(["k2"], "lease", old)
        with pytest.raises(Superseded, match="lease is held by another"):
            await store.hash_delete_under("hash", ["g"], "lease", old)
        assert await store.get_many(["k1", "k2"]) == [None, b"2"]
        assert await store.hash_all("hash") == {"g": b"2"}
        await store.delete_under([], "lease", new)
        await store.hash_delete_under("hash", [], "lease", new)
        await store.delete_under(["k2"], "lease", new)
        await store.hash_delete_under("hash", ["g"], "lease", new)
        assert await store.get("k2") is None
        assert await store.hash_all("hash") == {}

    async def test_what_is_written_under_it_is_counted_over_all_its_holders(
        self, store: Store
    ) -> None:
        lease = await store.claim("lease", "a", 60)
        assert [await store.hash_put_under("h", {"f": b"1"}, "lease", lease) for _ in "12"] == [
            1,
            2,
        ]
        assert (await store.claim("lease", "a", 60)).writes == 2
        assert (await store.claim("lease", "b", 60)).writes == 2
        lease = await store.claim("lease", "b", 60, over="a")
        assert lease == Lease("b", 2, writes=2)
        assert await store.hash_put_under("h", {"f": b"2"}, "lease", lease) == 3

    async def test_nothing_is_written_while_what_was_written_before_is_missing(
        self, store: Store
    ) -> None:
        lease = await store.claim("lease", "a", 60)
        await store.hash_put_under("h", {"f": b"1"}, "lease", lease)
        more = Lease("a", 1, writes=2)
        assert [await store.hash_put_under("h", {"f": b"2"}, "lease", more) for _ in "12"] == [1, 1]
        assert await store.hash_all("h") == {"f": b"1"}
        assert await store.hash_put_under("h", {"f": b"2"}, "lease", Lease("a", 1, writes=1)) == 2

    async def test_several_fields_are_set_in_one_step_and_each_is_counted(
        self, store: Store
    ) -> None:
        lease = await store.claim("lease", "a", 60)
        assert await store.hash_put_under("h", {"f": b"1", "g": b"2"}, "lease", lease) == 2
        most = {f"n{n}": str(n).encode() for n in range(2500)}
        assert await store.hash_put_under("h", most, "lease", lease) == 2502
        assert await store.hash_all("h") == {"f": b"1", "g": b"2", **most}
        ahead = Lease("a", 1, writes=2503)
        assert await store.hash_put_under("h", {"f": b"3", "g": b"4"}, "lease", ahead) == 2502
        assert await store.hash_get("h", "f") == b"1"

    async def test_fields_larger_than_a_step_takes_are_all_set(self, store: Store) -> None:
        lease = await store.claim("lease", "a", 60)
        large = {f"n{n}": bytes([n]) * (CHUNK_BYTES - 8) for n in range(11)}
        assert await store.hash_put_under("h", large, "lease", lease) == 11
        assert await store.hash_all("h") == large
        with pytest.raises(ValueError, match="at most"):
            await store.hash_put_under("h", {"f": bytes(CHUNK_BYTES + 1)}, "lease", lease)

    async def test_a_step_that_is_lost_before_the_next_is_not_taken_for_done(
        self, store: Store
    ) -> None:
        """The server was killed between two steps, and has all that was known before them."""
        if not isinstance(store, RedisStore):
            pytest.skip("in one step")
        lease = await store.claim("lease", "a", 60)
        await store.hash_put_under("h", {"f": b"1"}, "lease", lease)
        lease = await store.claim("lease", "a", 60)
        most = {f"n{n}": b"2" for n in range(PIPELINE_KEYS + 1)}
        kept = await store.hash_all("lease")
        call, calls = store._server.call, itertools.count()

        async def forgetful(what: str, act: Any, timeout_s: float | None = None) -> Any:
            if what == "hash_put" and next(calls) == 1:
                await store.hash_put("lease", "writes", kept["writes"])
                await store.hash_delete("h", list(most))
            return await call(what, act, timeout_s)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(store._server, "call", forgetful)
            with pytest.raises(RetryLater, match="forgotten"):
                await store.hash_put_under("h", most, "lease", lease)
        assert await store.hash_put_under("h", most, "lease", lease) == lease.writes + len(most)
        assert await store.hash_all("h") == {"f": b"1", **most}

    async def test_under_a_lease_of_which_nothing_is_known_nothing_is_written(
        self, store: Store
    ) -> None:
        with pytest.raises(Superseded):
            await store.hash_put_under("hash", {"f": b"1"}, "lease", Lease("a", 1))
        assert await store.hash_all("hash") == {}


class TestState:
    async def test_a_fit_store_has_nothing_to_complain_about(self, store: Store) -> None:
        assert await store.check() == []
        assert await store.refuses() == ""
        assert [key async for key in store.scan("")] == [], "nothing is left of having asked"

    async def test_many_callers_at_once_all_get_their_own_value(self, store: Store) -> None:
        await store.put_many({f"k{n}": b"%d" % n for n in range(200)})
        assert await asyncio.gather(*(store.get(f"k{n}") for n in range(200))) == [
            b"%d" % n for n in range(200)
        ]


async def test_a_memory_store_refuses_after_close_and_during_an_outage() -> None:
    store = MemoryStore()
    store.stop()
    with pytest.raises(RetryLater, match="does not answer"):
        await store.get("k")
    store.start()
    assert await store.get("k") is None
    await store.close()
    with pytest.raises(RetryLater, match="closed"):
        await store.get("k")
