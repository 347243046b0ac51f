"""What stays of a job's checkpoints in the store, and what goes."""

from __future__ import annotations

import numpy as np

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


async def test_only_what_has_a_manifest_is_left_by_a_sweep() -> None:
    store = MemoryStore()
    for name in ("1.1-5", "1.1-10"):
        await checkpoints.publish(store, manifest(name, await written(store, name)))
    for stray in ("1.1-7", "2.1-15", "nonsense"):
        await written(store, stray)
    await written(store, "1.1-7", OTHER)
    assert await checkpoints.sweep(store, JOB) == 3
    assert await names(store) == {"1.1-5", "1.1-10"}
    assert await names(store, OTHER) == {"1.1-7"}
    assert await checkpoints.sweep(store, JOB) == 0


async def test_what_another_version_has_published_is_left_by_a_sweep() -> None:
    store = MemoryStore()
    await written(store, "1.1-5")
    await store.hash_put(manifests_key(JOB), "1.1-5", b"of another version")
    assert await checkpoints.sweep(store, JOB) == 0
    assert await names(store) == {"1.1-5"}


async def test_what_a_leader_of_an_earlier_job_of_the_id_has_published_is_not_of_this_one() -> None:
    store = MemoryStore()
    for name in ("3.1-900", "5.1-10"):
        await checkpoints.publish(store, manifest(name, await written(store, name)))
    assert [m.name for m in await checkpoints.all_manifests(store, JOB)] == ["5.1-10", "3.1-900"]
    assert [m.name for m in await checkpoints.all_manifests(store, JOB, 4)] == ["5.1-10"]
    assert not await checkpoints.all_manifests(store, JOB, 6)
