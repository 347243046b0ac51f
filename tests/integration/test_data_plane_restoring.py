"""A job goes on from a checkpoint that is whole and of this job; from others it does not, and says why."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from elps.contracts.errors import RetryLater
from elps.contracts.job import Batch, Checkpoint, JobDocument
from elps.contracts.state import Progress
from elps.contracts.topology import chunk_key, manifests_key
from elps.psshard import orders
from elps.storage.checkpoints import (
    Manifest,
    load_partition,
    read_manifest,
    write_manifest,
)
from elps.storage.memory import MemoryStore
from elps.storage.port import Store
from elps.wire.frames import Kind

sys.path.insert(0, str(Path(__file__).parents[1]))

from data_plane import eventually
from hosted import JOB, Stack, document, identity
from leading import (
    EVERY_10,
    WITHIN_S,
    ask,
    comes_to,
    final,
    manifests,
    quick,
    stacks,
    two_checkpoints,
)

__all__ = ["quick", "stacks"]


@pytest.mark.parametrize("shards", [1, 2])
def test_a_job_goes_on_from_its_newest_checkpoint(
    stack_of: Callable[..., Stack], shards: int
) -> None:
    stack = stack_of(shards)
    two_checkpoints(stack, EVERY_10)
    message = stack.host(EVERY_10, 2, progress=Progress(iteration=25, checkpoint=20))
    trainer = stack.trainer(message, 2)
    comes_to(stack, "finished")
    assert trainer.leases[0].iteration == 20
    assert Kind.INITIALISE not in trainer.seen
    assert (final(stack) == -30).all()
    assert stack.status().progress.redone_iterations == 5  # type: ignore[union-attr]


def test_while_shards_load_a_checkpoint_the_store_is_named_if_it_refuses(
    stack_of: Callable[..., Stack], monkeypatch: pytest.MonkeyPatch
) -> None:
    stack, away = stack_of(), threading.Event()
    two_checkpoints(stack, EVERY_10)
    away.set()

    async def load(store: Store, manifest: Manifest, number: int) -> dict[str, Any]:
        if away.is_set():
            raise RetryLater("the store is away")
        return await load_partition(store, manifest, number)

    monkeypatch.setattr(orders, "load_partition", load)
    message = stack.host(EVERY_10, 2, progress=Progress(iteration=25, checkpoint=20))
    stack.trainer(message, 2)
    said = "waiting for the first values on shard-1; the store refuses them: the store is away"
    eventually(lambda: said in stack.status().reason, WITHIN_S)
    away.clear()
    comes_to(stack, "finished")
    assert (final(stack) == -30).all()


def damage(stack: Stack, name: str) -> None:
    """A byte of one chunk is another one."""

    async def change(store: MemoryStore) -> None:
        key = chunk_key(JOB, name, 0, "values")
        data = bytearray(await store.get(key) or b"")
        data[5] ^= 1
        await store.put(key, bytes(data))

    ask(stack, change)


@pytest.mark.parametrize("shards", [1, 2])
def test_a_damaged_chunk_sends_the_job_back_to_the_older_checkpoint(
    stack_of: Callable[..., Stack], shards: int
) -> None:
    stack = stack_of(shards)
    two_checkpoints(stack, EVERY_10)
    damage(stack, manifests(stack)[0].name)
    message = stack.host(EVERY_10, 2, progress=Progress(iteration=25, checkpoint=20))
    trainer = stack.trainer(message, 2)
    comes_to(stack, "finished")
    assert trainer.leases[0].iteration == 10
    assert (final(stack) == -30).all()
    eventually(lambda: any(e.what == "rolled_back" for e in stack.leader.events))
    [back] = [e for e in stack.leader.events if e.what == "rolled_back"]
    assert "cannot be loaded by shard-" in back.reason
    assert "partition 0, values: the chunk is not what was written" in back.reason


def test_two_damaged_checkpoints_end_the_job_with_that_reason(
    stack_of: Callable[..., Stack],
) -> None:
    stack = stack_of()
    two_checkpoints(stack, EVERY_10)
    for manifest in manifests(stack):
        damage(stack, manifest.name)
    message = stack.host(EVERY_10, 2, progress=Progress(iteration=25, checkpoint=20))
    stack.trainer(message, 2)
    reason = comes_to(stack, "failed")
    assert "the chunk is not what was written" in reason
    assert "no older checkpoint is left to go back to" in reason


def test_a_chunk_that_is_gone_is_damage_too(stack_of: Callable[..., Stack]) -> None:
    stack = stack_of()
    two_checkpoints(stack, EVERY_10)
    newest = manifests(stack)[0].name
    ask(stack, lambda store: store.delete([chunk_key(JOB, newest, 0, "values")]))
    message = stack.host(EVERY_10, 2, progress=Progress(iteration=25, checkpoint=20))
    trainer = stack.trainer(message, 2)
    comes_to(stack, "finished")
    assert trainer.leases[0].iteration == 10


def test_checkpoints_that_are_gone_end_a_job_that_must_restore_from_them(
    stack_of: Callable[..., Stack],
) -> None:
    stack = stack_of()
    two_checkpoints(stack, EVERY_10)
    ask(stack, lambda store: store.delete([manifests_key(JOB)]))
    message = stack.host(EVERY_10, 2, progress=Progress(iteration=25, checkpoint=20))
    stack.trainer(message, 2)
    reason = comes_to(stack, "failed")
    assert reason == "the checkpoint of iteration 20 is gone from the store"


@pytest.mark.parametrize(
    ("doc", "text"),
    [
        (
            document(batch=Batch(global_=4), checkpoint=Checkpoint(every=10, every_s=0)),
            "batch.global 8, the job says 4",
        ),
        (
            document(batch=Batch(global_=8, granule=2), checkpoint=Checkpoint(every=10, every_s=0)),
            "batch.granule 1, the job says 2",
        ),
        (
            document(dtype="float64", checkpoint=Checkpoint(every=10, every_s=0)),
            "dtype float32, the job says float64",
        ),
    ],
)
def test_a_checkpoint_of_another_job_description_ends_the_job_and_is_kept(
    stack_of: Callable[..., Stack], doc: JobDocument, text: str
) -> None:
    stack = stack_of()
    two_checkpoints(stack, EVERY_10)
    message = stack.host(doc, 2, progress=Progress(iteration=25, checkpoint=20))
    stack.trainer(message, 2)
    assert text in comes_to(stack, "failed")
    assert [m.iteration for m in manifests(stack)] == [20, 10]


def test_other_data_than_at_the_checkpoint_ends_the_job_with_the_difference(
    stack_of: Callable[..., Stack],
) -> None:
    stack = stack_of()
    two_checkpoints(stack, EVERY_10)
    message = stack.host(EVERY_10, 2, progress=Progress(iteration=25, checkpoint=20))
    stack.trainer(message, 2, says=identity(fingerprint="other"))
    told = comes_to(stack, "failed")
    assert "content of the data: data and other" in told
    assert "save it with elps export, and start a job with another id from it with init" in told
    assert [m.iteration for m in manifests(stack)] == [20, 10]


@pytest.mark.parametrize("what", ["fingerprint", "code_hash"])
def test_other_data_or_code_are_accepted_where_the_document_says_so(
    stack_of: Callable[..., Stack], what: str
) -> None:
    stack = stack_of()
    two_checkpoints(stack, EVERY_10)
    doc = msgspec.structs.replace(EVERY_10, on_change="accept")
    message = stack.host(doc, 2, workers=2, progress=Progress(iteration=25, checkpoint=20))
    stack.trainer(message, 2, says=identity(**{what: "other"}))
    eventually(lambda: any(e.what == "changed" for e in stack.leader.events), what="its word")
    stale = stack.trainer(message, 3)  # as it was: only the first one's word is taken
    comes_to(stack, "finished")
    assert (final(stack) == -30).all()
    (changed,) = [e for e in stack.leader.events if e.what == "changed"]
    assert "and other" in changed.reason
    assert getattr(manifests(stack)[0], what) == "other"
    stale.join(10)
    assert "another job than the first trainer" in stale.ended


def test_another_number_of_samples_is_never_accepted(stack_of: Callable[..., Stack]) -> None:
    stack = stack_of()
    two_checkpoints(stack, EVERY_10)
    doc = msgspec.structs.replace(EVERY_10, on_change="accept")
    message = stack.host(doc, 2, progress=Progress(iteration=25, checkpoint=20))
    stack.trainer(message, 2, says=identity(samples=9))
    assert "number of samples: 8 and 9" in comes_to(stack, "failed")


@pytest.mark.parametrize("change", [{"partitions": []}, {"dtype": "float32 "}, {"layout": {}}])
def test_a_manifest_that_makes_no_sense_ends_the_job_in_words(
    stack_of: Callable[..., Stack], change: dict[str, Any]
) -> None:
    stack = stack_of()
    two_checkpoints(stack, EVERY_10)

    async def spoil(store: MemoryStore) -> None:
        for name, data in (await store.hash_all(manifests_key(JOB))).items():
            whole = msgspec.to_builtins(read_manifest(data)) | change
            await store.hash_put(
                manifests_key(JOB), name, write_manifest(msgspec.convert(whole, Manifest))
            )

    ask(stack, spoil)
    message = stack.host(EVERY_10, 2, progress=Progress(iteration=25, checkpoint=20))
    stack.trainer(message, 2)
    assert comes_to(stack, "failed")
