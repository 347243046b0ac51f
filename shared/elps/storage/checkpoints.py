"""Checkpoints: a job's parameters, optimizer state and decisions at one version.

Chunks are written first, each under a key that names term and iteration; the manifest is written last and makes the
checkpoint valid. A checkpoint whose writing was cut off has no manifest and is swept away with the next one. The newest
two are kept: the older one is the way back should a chunk of the newer one be damaged.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
import numpy as np
import orjson
import structlog
from msgspec import Meta
from numpy.typing import NDArray

from elps.contracts.codec import encode
from elps.contracts.errors import ElpsError, InvalidDocument
from elps.contracts.ids import JobId
from elps.contracts.topology import chunk_key, job_prefix, manifests_key
from elps.storage.port import Store

log = structlog.get_logger()

VALUES = "values"
"""Name of the array that holds the parameters; the others are optimizer state."""
KEPT = 2
_FETCHED_AT_ONCE = 8

Number = Annotated[int, Meta(ge=0, le=2**62)]


class DamagedCheckpoint(ElpsError):
    """A chunk is missing or is not what the manifest says."""


class PartitionEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One partition in a checkpoint."""

    start: Number
    """First element in the job's flat vector."""
    stop: Number
    steps: Number
    """Optimizer steps taken."""
    digests: dict[str, Number]
    """Array name to the CRC-32 of its chunk."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What makes a checkpoint valid, and all that a resumed job needs beside the chunks."""

    job: JobId
    name: str
    term: Number
    iteration: Number
    at: float
    """Unix time, s."""
    layout: dict[str, Any]
    """Names and shapes (`elps.tasks.layout.Layout.to_wire`)."""
    dtype: str
    partitions: list[PartitionEntry]
    samples: Number
    batch: Number
    granule: Number
    test_samples: Number
    skips: list[tuple[int, int]]
    """Intervals of the sample stream whose gradients were not finite and were left out."""
    fingerprint: str
    """Of the data."""
    code_hash: str
    """Of the task's code."""
    metrics: dict[str, float | None] = {}
    metrics_iteration: int | None = None
    loss: float | None = None
    best: float | None = None
    """The metric that may end the job; see `elps.contracts.state.Progress`."""
    best_iteration: int | None = None
    stale: int = 0


def checkpoint_name(term: int, n: int, iteration: int) -> str:
    """Name of a checkpoint: no two writers use the same one."""
    return f"{term}.{n}-{iteration}"


async def write_partition(
    store: Store, job: JobId, name: str, partition: int, arrays: Mapping[str, NDArray[Any]]
) -> dict[str, int]:
    """Write one partition's arrays and return their digests."""
    raw = {array: values.data.cast("B") for array, values in arrays.items()}
    await store.put_many({chunk_key(job, name, partition, a): data for a, data in raw.items()})
    return {array: zlib.crc32(data) for array, data in raw.items()}


async def publish(store: Store, manifest: Manifest) -> bool:
    """Make a checkpoint valid, then let go of those beyond the newest two and of what was never finished.

    False if the store has lost some of it, by a crash since it was written: then it does not become valid.
    """
    key = manifests_key(manifest.job)
    if not await _has_chunks(store, manifest):
        return False
    await store.hash_put(key, manifest.name, write_manifest(manifest))
    # It may have crashed just now, and this alone was written again.
    if not await _is_whole(store, manifest):
        await store.hash_delete(key, [manifest.name])
        return False
    kept = await all_manifests(store, manifest.job)
    old = [m.name for m in kept[KEPT:]]
    if old:
        await store.hash_delete(key, old)
    names = {m.name for m in kept[:KEPT]}
    await store.delete(await _chunks_beside(store, manifest.job, names, _age(manifest.name)))
    return True


async def is_there(store: Store, job: JobId, iteration: int) -> bool:
    """Whether the newest checkpoint is of this iteration, with all its chunks."""
    found = await newest(store, job)
    return found is not None and found.iteration == iteration and await _has_chunks(store, found)


async def _is_whole(store: Store, manifest: Manifest) -> bool:
    known = await store.hash_get(manifests_key(manifest.job), manifest.name)
    return known is not None and await _has_chunks(store, manifest)


async def _has_chunks(store: Store, manifest: Manifest) -> bool:
    chunks = [
        chunk_key(manifest.job, manifest.name, number, array)
        for number, entry in enumerate(manifest.partitions)
        for array in entry.digests
    ]
    return await store.present(chunks) == len(chunks)


async def strays(store: Store, job: JobId) -> list[str]:
    """The chunks of all checkpoints without a manifest, to be removed. Nobody may be writing one."""
    return await _chunks_beside(store, job, set(await store.hash_all(manifests_key(job))))


async def all_manifests(store: Store, job: JobId, first_term: int = 0) -> list[Manifest]:
    """All valid checkpoints of terms from `first_term` on, newest first. One that cannot be read is left out."""
    found = []
    for name, data in (await store.hash_all(manifests_key(job))).items():
        try:
            found.append(read_manifest(data))
        except InvalidDocument as error:
            log.error("manifest_unreadable", job=job, checkpoint=name, reason=str(error))
    found = [manifest for manifest in found if manifest.term >= first_term]
    return sorted(found, key=lambda m: (m.term, m.iteration, m.at), reverse=True)


async def newest(store: Store, job: JobId) -> Manifest | None:
    """The newest valid checkpoint, or None."""
    found = await all_manifests(store, job)
    return found[0] if found else None


async def load_partition(
    store: Store, manifest: Manifest, partition: int
) -> dict[str, NDArray[Any]]:
    """One partition's arrays, each of shape (stop - start,); `DamagedCheckpoint` if a chunk is not what was written."""
    entry = manifest.partitions[partition]
    names = sorted(entry.digests)
    chunks = await store.get_many(
        [chunk_key(manifest.job, manifest.name, partition, a) for a in names]
    )
    return {
        a: _checked(manifest, partition, a, chunk) for a, chunk in zip(names, chunks, strict=True)
    }


async def load_vector(store: Store, manifest: Manifest) -> NDArray[Any]:
    """All parameters as the job's flat vector."""
    vector = np.empty(max(p.stop for p in manifest.partitions), manifest.dtype)
    numbers = range(len(manifest.partitions))
    for first in range(0, len(numbers), _FETCHED_AT_ONCE):
        some = numbers[first : first + _FETCHED_AT_ONCE]
        chunks = await store.get_many(
            [chunk_key(manifest.job, manifest.name, p, VALUES) for p in some]
        )
        for p, chunk in zip(some, chunks, strict=True):
            entry = manifest.partitions[p]
            vector[entry.start : entry.stop] = _checked(manifest, p, VALUES, chunk)
    return vector


async def load_values(store: Store, manifest: Manifest) -> dict[str, NDArray[Any]]:
    """All parameters by name, in the order of the layout; the arrays share one vector."""
    vector, at, arrays = await load_vector(store, manifest), 0, {}
    for name, shape in manifest.layout["parameters"]:
        size = math.prod(shape)
        arrays[name] = vector[at : at + size].reshape(shape)
        at += size
    return arrays


def _checked(manifest: Manifest, partition: int, array: str, chunk: bytes | None) -> NDArray[Any]:
    entry = manifest.partitions[partition]
    what = f"checkpoint {manifest.name} of job {manifest.job}, partition {partition}, {array}"
    if chunk is None:
        raise DamagedCheckpoint(f"{what}: the chunk is gone from the store")
    dtype = np.dtype(manifest.dtype)
    if (
        len(chunk) != (entry.stop - entry.start) * dtype.itemsize
        or zlib.crc32(chunk) != entry.digests[array]
    ):
        raise DamagedCheckpoint(f"{what}: the chunk is not what was written")
    return np.frombuffer(chunk, dtype)


def write_manifest(manifest: Manifest) -> bytes:
    """A manifest as it is stored: compressed, since it may name very many partitions and parameters."""
    return zlib.compress(encode(manifest))


def read_manifest(data: bytes) -> Manifest:
    """Read a stored manifest; `InvalidDocument` when it is none."""
    try:
        return msgspec.convert(orjson.loads(zlib.decompress(data)), Manifest)
    except (zlib.error, orjson.JSONDecodeError, msgspec.ValidationError) as error:
        raise InvalidDocument("manifest", [str(error)]) from None


def _age(name: str) -> tuple[int, ...]:
    """Term, openings within it, and iteration of a checkpoint, from its name; nothing for a name that is not ours."""
    try:
        reign, iteration = name.split("-")
        term, n = reign.split(".")
        return int(term), int(n), int(iteration)
    except ValueError:
        return ()


async def _chunks_beside(
    store: Store, job: JobId, kept: set[str], older_than: tuple[int, ...] | None = None
) -> list[str]:
    """Chunks of checkpoints that are not kept, of those only that are older than one's own.

    A leader whose time is over must not sweep away what a later one is writing.
    """
    prefix = job_prefix(job) + "ckpt:"
    found = []
    async for key in store.scan(prefix):
        name = key[len(prefix) :].split(":", 1)[0]
        if name not in kept and (older_than is None or _age(name) < older_than):
            found.append(key)
    return found


__all__: Sequence[str] = (
    "VALUES",
    "DamagedCheckpoint",
    "Manifest",
    "PartitionEntry",
    "all_manifests",
    "checkpoint_name",
    "is_there",
    "load_partition",
    "load_values",
    "load_vector",
    "newest",
    "publish",
    "read_manifest",
    "strays",
    "write_manifest",
    "write_partition",
)
