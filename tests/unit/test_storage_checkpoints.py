"""What stays of a job's checkpoints in the store, and what goes."""

from __future__ import annotations

import numpy as np
import pytest

from elps.contracts.ids import JobId
from elps.contracts.topology import chunk_key, manifests_key
from elps.storage import checkpoints
from elps.storage.checkpoints import Manifest, PartitionEntry
from elps.storage.memory import MemoryStore

JOB, OTHER = JobId("j"), JobId("j2")
VALUES = np.arange(3, dtype=np.float32)


async def written(store: MemoryStore, name: str, job: JobId = JOB) -> dict[str, int]:
    return await checkpoints.write_partition(store, job, name, 0, {"values": VALUES})


def manifest(name: str, digests: dict[str, int]) -> Manifest:
    entry = PartitionEntry(start=0, stop=3, steps=1, digests=digests)
    return Manifest(
        job=JOB, name=name, term=int(name.split(".")[0]), iteration=int(name.split("-")[1]), at=0.0, dtype="float32",
        layout={"parameters": [["x", [3]]]}, partitions=[entry], samples=3, batch=1, granule=1,
        test_samples=0, skips=[], fingerprint="f", code_hash="c",
    )  # fmt: skip


async def names(store: MemoryStore, job: JobId = JOB) -> set[str]:
    prefix = chunk_key(job, "", 0, "")[: -len(":0:")]
    return {key[len(prefix) :].split(":")[0] for key in [k async for k in store.scan(prefix)]}


class Emptied(MemoryStore):
    """Loses all it has just before, or just after, a manifest is written."""

    def __init__(self, *, before: bool) -> None:
        super().__init__()
        self.before = before
        self.left = 1  #: how often

    async def hash_put(self, key: str, field: str, value: bytes) -> None:
        before, self.left = self.left > 0, self.left - 1
        if before and self.before:
            self.lose()
        await super().hash_put(key, field, value)
        if before and not self.before:
            self.lose()

    def lose(self) -> None:
        self._values.clear()
        self._hashes.clear()


@pytest.mark.parametrize("before", [True, False])
async def test_a_checkpoint_that_the_store_loses_while_it_becomes_valid_does_not(
    before: bool,
) -> None:
    store = Emptied(before=before)
    first = manifest("1.1-5", await written(store, "1.1-5"))
    assert not await checkpoints.publish(store, first)
    assert await checkpoints.all_manifests(store, JOB) == []
    assert not await checkpoints.is_there(store, JOB, 5)
    assert await checkpoints.publish(store, manifest("1.1-5", await written(store, "1.1-5")))
    assert await checkpoints.is_there(store, JOB, 5)
    assert not await checkpoints.is_there(store, JOB, 4)


async def test_a_checkpoint_of_which_a_chunk_is_gone_neither_becomes_valid_nor_counts() -> None:
    store = MemoryStore()
    whole = manifest("1.1-5", await written(store, "1.1-5"))
    await store.delete([chunk_key(JOB, "1.1-5", 0, "values")])
    assert not await checkpoints.publish(store, whole)
    assert await checkpoints.all_manifests(store, JOB) == []
    await written(store, "1.1-5")
    assert await checkpoints.publish(store, whole)
    await store.delete([chunk_key(JOB, "1.1-5", 0, "values")])
    assert not await checkpoints.is_there(store, JOB, 5)


async def test_only_what_has_a_manifest_is_no_stray() -> None:
    store = MemoryStore()
    for name in ("1.1-5", "1.1-10"):
        await checkpoints.publish(store, manifest(name, await written(store, name)))
    for stray in ("1.1-7", "2.1-15", "nonsense"):
        await written(store, stray)
    await written(store, "1.1-7", OTHER)
    strays = await checkpoints.strays(store, JOB)
    assert len(strays) == 3
    await store.delete(strays)
    assert await names(store) == {"1.1-5", "1.1-10"}
    assert await names(store, OTHER) == {"1.1-7"}
    assert not await checkpoints.strays(store, JOB)


async def test_what_another_version_has_published_is_no_stray() -> None:
    store = MemoryStore()
    await written(store, "1.1-5")
    await store.hash_put(manifests_key(JOB), "1.1-5", b"of another version")
    assert not await checkpoints.strays(store, JOB)
    assert await names(store) == {"1.1-5"}


async def test_what_a_leader_of_an_earlier_job_of_the_id_has_published_is_not_of_this_one() -> None:
    store = MemoryStore()
    for name in ("3.1-900", "5.1-10"):
        await checkpoints.publish(store, manifest(name, await written(store, name)))
    assert [m.name for m in await checkpoints.all_manifests(store, JOB)] == ["5.1-10", "3.1-900"]
    assert [m.name for m in await checkpoints.all_manifests(store, JOB, 4)] == ["5.1-10"]
    assert not await checkpoints.all_manifests(store, JOB, 6)
