"""A job and its store: training goes on without it, and goes on from what it holds, or says why it cannot."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from elps.cli.progress import JobProgress
from elps.contracts.errors import RetryLater
from elps.contracts.ids import ShardId
from elps.contracts.job import Batch, Checkpoint, JobDocument
from elps.contracts.messages import DropJob, HostJob
from elps.contracts.state import Progress
from elps.contracts.topology import chunk_key, manifests_key
from elps.monitor.core.history import History
from elps.psshard import orders
from elps.storage.checkpoints import (
    Manifest,
    load_partition,
    read_manifest,
    write_manifest,
)
from elps.storage.memory import MemoryStore
from elps.storage.port import Store
from elps.wire.frames import Header, Kind

sys.path.insert(0, str(Path(__file__).parents[1]))

from data_plane import eventually
from hosted import JOB, FakeTrainer, Stack, document, identity
from leading import (
    WITHIN_S,
    ask,
    at_least,
    comes_to,
    final,
    manifests,
    quick,
    stacks,
)

__all__ = ["quick", "stacks"]


def test_training_goes_on_while_the_store_is_down_and_the_lag_is_shown(
    stack_of: Callable[..., Stack],
) -> None:
    stack = stack_of(2)
    message = stack.host(document(iterations=400, checkpoint=Checkpoint(every=5, every_s=0)))

    def slowly(trainer: FakeTrainer, header: Header) -> bool:
        if header.kind is Kind.TRAIN:
            time.sleep(0.003)
        return True

    stack.trainer(message, 1, before=slowly)
    eventually(lambda: len(manifests(stack)) == 2)
    stack.store.stop()
    down_at = stack.status().progress.iteration  # type: ignore[union-attr]
    eventually(lambda: "is not in the store after" in stack.status().reason)
    status = stack.status()
    assert status.phase == "running"
    at_least(stack, down_at + 100)
    status = stack.status()
    assert status.progress is not None
    assert status.progress.checkpoint is not None
    assert status.progress.checkpoint < status.progress.iteration - 50  # the durable copy lags
    while stack.status().progress.iteration < 400:  # type: ignore[union-attr]
        time.sleep(0.01)
    eventually(lambda: "waiting for the store" in stack.status().reason)
    assert stack.status().phase == "running"  # not finished before its last version is safe
    time.sleep(0.3)
    assert stack.status().phase == "running"
    stack.store.start()
    comes_to(stack, "finished")
    assert (final(stack) == -400).all()
    assert manifests(stack)[0].iteration == 400


def test_a_job_waits_for_a_store_that_is_down_at_its_start_and_says_so(
    stack_of: Callable[..., Stack],
) -> None:
    stack = stack_of()
    stack.store.stop()
    message = stack.host(document())
    trainer = stack.trainer(message, 1)
    eventually(lambda: stack.status().reason == "the store does not answer")
    assert stack.status().phase == "loading"
    assert Kind.MAP not in trainer.seen
    stack.store.start()
    comes_to(stack, "finished")
    assert (final(stack) == -30).all()


def two_checkpoints(stack: Stack, doc: JobDocument) -> HostJob:
    """Train until two checkpoints are in the store, at versions 10 and 20, then end the term."""

    def stop_at_25(trainer: FakeTrainer, header: Header) -> bool:
        if header.kind is Kind.TRAIN and header.iteration in (11, 21):  # one is written at a time
            eventually(lambda: header.iteration - 1 in [m.iteration for m in manifests(stack)])
        return not (header.kind is Kind.TRAIN and header.iteration == 25)

    message = stack.host(doc)
    stack.trainer(message, 1, before=stop_at_25).join(WITHIN_S)
    eventually(lambda: [m.iteration for m in manifests(stack)] == [20, 10])
    for host in stack.hosts:
        host.hosting.drop(DropJob(job=JOB, term=message.term))
    return message


def damage(stack: Stack, name: str) -> None:
    """A byte of one chunk is another one."""

    async def change(store: MemoryStore) -> None:
        key = chunk_key(JOB, name, 0, "values")
        data = bytearray(await store.get(key) or b"")
        data[5] ^= 1
        await store.put(key, bytes(data))

    ask(stack, change)


EVERY_10 = document(checkpoint=Checkpoint(every=10, every_s=0))


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


def test_a_lost_shard_whose_checkpoint_is_in_a_store_that_is_away_waits_for_the_store_by_name(
    stack_of: Callable[..., Stack],
) -> None:
    stack = stack_of(2)
    message = stack.host(document(iterations=10**6, checkpoint=Checkpoint(every=5, every_s=0)))
    stack.trainer(message, 1)
    eventually(lambda: len(manifests(stack)) == 2, WITHIN_S)
    stack.store.stop()
    leader = stack.leader.hosting._jobs[JOB].lead
    assert leader is not None
    leader.lose({ShardId("shard-2")})
    eventually(lambda: stack.status().phase == "loading", WITHIN_S)
    eventually(lambda: stack.status().reason == "the store does not answer", WITHIN_S)
    stack.store.start()
    before = manifests(stack)[0].iteration
    at_least(stack, before + 1)


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


def test_after_a_rollback_within_a_term_watchers_follow_and_void_rows_are_dropped(
    stack_of: Callable[..., Stack],
) -> None:
    stack, back = stack_of(), threading.Event()

    def once_back_at_25(_: FakeTrainer, header: Header) -> bool:
        if header.kind is Kind.TRAIN and header.iteration == 25 and not back.is_set():
            back.set()
            eventually(lambda: 20 in [m.iteration for m in manifests(stack)])
            lead = stack.leader.hosting._jobs[JOB].lead
            assert lead is not None
            lead.reopen("a skip that came too late", must_restore=True)
        return True

    stack.trainer(stack.host(EVERY_10), 1, before=once_back_at_25)
    comes_to(stack, "finished")
    eventually(lambda: stack.leader.rows and stack.leader.rows[-1].iteration == 29)
    rows = stack.leader.rows
    again = [row for row in rows if row.iteration == 20]
    assert [row.term for row in again] == [1, 1]
    progress, history = JobProgress("job"), History()
    progress.take_row(rows[0])
    history.add(rows[0])
    for row, after in pairwise(rows):
        assert progress.take_row(after)
        assert progress.iteration == after.iteration + 1
        assert history.add(after)
        assert not history.add(row), "a repeat, or void"
    assert history.rows.at_or_before(20) == again[1]


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


class Losing(MemoryStore):
    """Comes back empty, once, in the middle of what the leader does with a checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = self.loads = (
            0  #: the manifest, or the chunk, after which that happens; 0: it does not
        )

    async def hash_put(self, key: str, field: str, value: bytes) -> None:
        self.writes = self._counted(self.writes)
        await super().hash_put(key, field, value)

    async def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        found = await super().get_many(keys)
        self.loads = self._counted(self.loads)
        return found

    def _counted(self, left: int) -> int:
        if left == 1:
            for kept in (self._values, self._hashes, self._counters):
                kept.clear()
        return max(0, left - 1)


@pytest.mark.parametrize("shards", [1, 2])
def test_the_last_checkpoint_is_written_again_if_the_store_lost_it_before_it_was_valid(
    stack_of: Callable[..., Stack], shards: int
) -> None:
    store = Losing()
    store.writes = 1
    stack = stack_of(shards, store)
    stack.trainer(stack.host(document()), 1)
    comes_to(stack, "finished")
    assert (final(stack) == -30).all()


def test_a_job_that_rests_where_it_began_writes_again_what_the_store_has_lost_since(
    stack_of: Callable[..., Stack],
) -> None:
    store = Losing()
    stack = stack_of(1, store)
    two_checkpoints(stack, EVERY_10)
    store.loads = len(manifests(stack)[0].partitions)
    progress = Progress(iteration=20, checkpoint=20)
    message = stack.host(EVERY_10, 2, progress=progress)
    leader = stack.leader.hosting._jobs[JOB].lead
    assert leader is not None
    eventually(lambda: leader.clock is not None)  # before it is opened there is nothing to rest at
    stack.direct(message, "pause")
    stack.trainer(message, 1)
    assert comes_to(stack, "paused") == "paused at iteration 20"
    assert store.loads == 0
    assert (final(stack) == -20).all()
    message = stack.host(EVERY_10, 3, progress=progress)
    stack.trainer(message, 3)
    comes_to(stack, "finished")
    assert (final(stack) == -30).all()


def test_a_pause_rests_on_a_checkpoint_and_resumes_from_it(stack_of: Callable[..., Stack]) -> None:
    stack = stack_of(2)
    doc = document(iterations=200)
    message = stack.host(doc)
    trainer = stack.trainer(message, 1)
    at_least(stack, 5)
    stack.direct(message, "pause")
    reason = comes_to(stack, "paused")
    version = manifests(stack)[0].iteration
    assert reason == f"paused at iteration {version}"
    assert 5 <= version < 200
    assert (final(stack) == -version).all()
    trainer.join(10)
    assert "paused" in trainer.ended
    progress = stack.status().progress
    message = stack.host(doc, 2, progress=progress)
    stack.trainer(message, 2)
    comes_to(stack, "finished")
    assert (final(stack) == -200).all()
