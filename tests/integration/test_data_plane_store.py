"""A job and its store: training goes on without it, and goes on from what it holds, or says why it cannot."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from elps.cli.progress import JobProgress
from elps.contracts.ids import ShardId
from elps.contracts.job import Checkpoint
from elps.contracts.state import Progress
from elps.monitor.core.history import History
from elps.storage.memory import MemoryStore
from elps.wire.frames import Header, Kind

sys.path.insert(0, str(Path(__file__).parents[1]))

from data_plane import eventually
from hosted import JOB, FakeTrainer, Stack, document
from leading import (
    EVERY_10,
    WITHIN_S,
    at_least,
    comes_to,
    final,
    manifests,
    quick,
    stacks,
    two_checkpoints,
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


def test_after_a_rollback_within_a_term_watchers_follow_and_void_rows_are_dropped(
    stack_of: Callable[..., Stack],
) -> None:
    stack, back = stack_of(), list[int]()

    def once_back_at_25(_: FakeTrainer, header: Header) -> bool:
        if header.kind is Kind.TRAIN and header.iteration == 25 and not back:
            # The one due at 20 is begun a little later if that of 10 was still being written.
            eventually(lambda: manifests(stack)[:1] and manifests(stack)[0].iteration >= 20)
            back.append(manifests(stack)[0].iteration)
            lead = stack.leader.hosting._jobs[JOB].lead
            assert lead is not None
            lead.reopen("a skip that came too late", must_restore=True)
        return True

    stack.trainer(stack.host(EVERY_10), 1, before=once_back_at_25)
    comes_to(stack, "finished")
    eventually(lambda: stack.leader.rows and stack.leader.rows[-1].iteration == 29)
    rows = stack.leader.rows
    again = [row for row in rows if row.iteration == back[0]]
    assert [row.term for row in again] == [1, 1]
    progress, history = JobProgress("job"), History()
    progress.take_row(rows[0])
    history.add(rows[0])
    for row, after in pairwise(rows):
        assert progress.take_row(after)
        assert progress.iteration == after.iteration + 1
        assert history.add(after)
        assert not history.add(row), "a repeat, or void"
    assert history.rows.at_or_before(back[0]) == again[1]


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
