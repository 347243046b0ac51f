"""A leader with scripted trainers: who may work, what is said again, what a job waits for and what ends it."""

from __future__ import annotations

import asyncio
import random
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import pytest

from elps.contracts.epoch import Epoch, Term
from elps.contracts.job import Batch, Checkpoint, Evaluate, JobDocument
from elps.contracts.messages import DropJob, HostJob
from elps.contracts.state import Progress
from elps.contracts.topology import chunk_key, manifests_key
from elps.psshard import keeping, lead, link, orders, peers, serving
from elps.psshard.core.part import Part
from elps.psshard.member import Member
from elps.storage.checkpoints import (
    Manifest,
    all_manifests,
    load_vector,
    read_manifest,
    write_manifest,
)
from elps.storage.memory import MemoryStore
from elps.wire.frames import Header, Kind
from elps.worker.trainer import shards as trainer_shards

sys.path.insert(0, str(Path(__file__).parents[1]))

from data_plane import Proxy, descriptors, eventually
from hosted import JOB, FakeTrainer, Host, Stack, document, identity

T = TypeVar("T")
WITHIN_S = 25.0


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses between tries are short, so that the tests are."""
    monkeypatch.setattr(orders, "RETRY_S", 0.05)
    monkeypatch.setattr(keeping, "RETRY_S", 0.05)
    monkeypatch.setattr(link, "LAST_RETRY_S", 0.05)
    monkeypatch.setattr(trainer_shards, "REACH_S", 1.0)
    monkeypatch.setattr(lead, "LAGS_S", 0.2)
    monkeypatch.setattr(peers, "UNREACHABLE_S", 0.2)


@pytest.fixture
def stack_of() -> Iterator[Callable[..., Stack]]:
    stacks: list[Stack] = []

    def make(*args: Any, **fields: Any) -> Stack:
        stacks.append(Stack(*args, **fields))
        return stacks[-1]

    yield make
    for stack in stacks:
        stack.close()


def ask(stack: Stack, call: Callable[[MemoryStore], Coroutine[Any, Any, T]]) -> T:
    """What the store holds; it has no loop of its own."""
    return asyncio.run(call(stack.store))


def manifests(stack: Stack) -> list[Manifest]:
    return ask(stack, lambda store: all_manifests(store, JOB))


def final(stack: Stack) -> np.ndarray:
    """The parameters of the newest checkpoint."""
    return ask(stack, lambda store: load_vector(store, manifests(stack)[0]))


def comes_to(stack: Stack, phase: str, within_s: float = WITHIN_S) -> str:
    """Wait for a phase; returns its reason."""
    deadline = time.monotonic() + within_s
    while (status := stack.status()).phase != phase:
        assert time.monotonic() < deadline, (status, [t.ended for t in stack.trainers])
        if status.phase in ("failed", "finished", "paused"):
            raise AssertionError(f"it came to {status.phase}: {status.reason}")
        time.sleep(0.01)
    return status.reason


def at_least(stack: Stack, iteration: int) -> None:
    def there() -> bool:
        progress = stack.status().progress
        return progress is not None and progress.iteration >= iteration

    eventually(there, WITHIN_S, f"iteration {iteration}")


@pytest.mark.parametrize(("trainers", "shards"), [(1, 1), (2, 1), (1, 2), (3, 3)])
def test_a_job_runs_to_its_end_exactly(
    stack_of: Callable[..., Stack], trainers: int, shards: int
) -> None:
    stack = stack_of(shards)
    message = stack.host(document(evaluate=Evaluate(every=10, at_end=True)), workers=trainers)
    says = identity(test_samples=10)
    for n in range(trainers):
        stack.trainer(message, n + 1, says=says)
    assert comes_to(stack, "finished") == "all iterations are done, at iteration 30"
    assert (final(stack) == -30).all()
    assert manifests(stack)[0].iteration == 30
    eventually(lambda: len(stack.leader.rows) == 30)
    assert [row.iteration for row in stack.leader.rows] == list(range(30))
    assert {row.samples for row in stack.leader.rows} == {8}
    assert {row.loss for row in stack.leader.rows} == {1.0}
    evaluated = [e for e in stack.leader.events if e.what == "evaluated"]
    assert [(e.iteration, e.metrics) for e in evaluated] == [
        (v, {"loss": float(v)}) for v in (10, 20, 30)
    ]
    for trainer in stack.trainers:
        trainer.join(10)
        assert "all iterations are done" in trainer.ended


# --- trainers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"samples": 9}, "number of samples: 8 and 9"),
        ({"test_samples": 3}, "held-out samples: 0 and 3"),
        ({"fingerprint": "other"}, "content of the data: data and other"),
        ({"code_hash": "other"}, "code of the task: code and other"),
        ({"layout": {"dtype": "float32", "parameters": [["v", [2]]]}}, "parameters"),
    ],
)
def test_a_trainer_that_sees_another_job_is_dismissed_with_the_difference(
    stack_of: Callable[..., Stack], changes: dict[str, Any], text: str
) -> None:
    stack = stack_of()
    message = stack.host(document())
    hold = threading.Event()

    def wait(trainer: FakeTrainer, header: Header) -> bool:
        return header.kind is not Kind.TRAIN or hold.wait(20)

    good = stack.trainer(message, 1, before=wait)
    eventually(lambda: Kind.MAP in good.seen)
    other = stack.trainer(message, 2, says=identity(**changes))
    other.join(10)
    assert text in other.ended
    assert text in stack.status().dismissed["job-w2"]
    again = stack.trainer(message, 2)
    again.join(10)
    assert "dismissed" in again.ended
    hold.set()
    comes_to(stack, "finished")
    assert (final(stack) == -30).all()


@pytest.mark.parametrize("at", [Kind.MAP, Kind.INITIALISE])
def test_who_dies_before_version_0_is_brought_is_replaced(
    stack_of: Callable[..., Stack], at: Kind
) -> None:
    stack = stack_of(2)
    message = stack.host(document())
    first = stack.trainer(message, 1, before=lambda trainer, header: header.kind is not at)
    first.join(10)
    second = stack.trainer(message, 2)
    comes_to(stack, "finished")
    assert Kind.INITIALISE in second.seen
    assert (final(stack) == -30).all()


def test_who_dies_while_bringing_version_0_is_replaced_by_one_that_was_there_already(
    stack_of: Callable[..., Stack],
) -> None:
    stack = stack_of(2)
    message = stack.host(document())
    there = threading.Event()

    def die_halfway(trainer: FakeTrainer, header: Header) -> bool:
        if header.kind is not Kind.INITIALISE:
            return True
        assert there.wait(10)
        assert trainer.shards is not None
        shard = trainer.shards.all()[0]  # one shard gets its values, the other does not
        for number, lo, hi in shard.partitions:
            values = Header(Kind.VALUES, header.epoch, partition=number)
            shard.pushing().send(values, body=bytes(4 * (hi - lo)))
        return False

    stack.trainer(message, 1, before=die_halfway)
    second = stack.trainer(message, 2)
    eventually(lambda: Kind.MAP in second.seen)
    there.set()
    comes_to(stack, "finished")
    assert (final(stack) == -30).all()


@pytest.mark.parametrize("shards", [1, 2])
def test_trainers_that_die_anywhere_lose_and_double_nothing(
    stack_of: Callable[..., Stack], shards: int
) -> None:
    stack = stack_of(shards)
    message = stack.host(document())
    rng = random.Random(shards)

    def mortal(trainer: FakeTrainer, header: Header) -> bool:
        if header.kind is Kind.TRAIN and rng.random() < 0.15:
            if rng.random() < 0.5:  # in the middle of its push
                threading.Timer(rng.random() * 0.004, trainer.die).start()
                return True
            return False
        return True

    steady = stack.trainer(message, 1)
    number = 1
    while steady.is_alive() and number < 9:
        number += 1
        stack.trainer(message, number, before=mortal).join(10)
    comes_to(stack, "finished")
    assert (final(stack) == -30).all()
    assert {row.samples for row in stack.leader.rows} == {8}


def test_what_a_task_fails_with_is_the_jobs_reason(stack_of: Callable[..., Stack]) -> None:
    stack = stack_of()
    message = stack.host(document())

    def fail(trainer: FakeTrainer, header: Header) -> bool:
        if header.kind is Kind.TRAIN and header.iteration == 3:
            assert trainer.leader is not None
            trainer.leader.send(Header(Kind.FAILED), {"what": "iteration 3: ZeroDivisionError"})
        return True

    other = stack.trainer(message, 2)
    stack.trainer(message, 1, before=fail)
    assert comes_to(stack, "failed") == "iteration 3: ZeroDivisionError"
    other.join(10)
    assert not other.is_alive()
    late = stack.trainer(message, 3)
    late.join(10)
    assert "the job has ended" in late.ended


# --- links ------------------------------------------------------------------------------------------------------------


def member_of(host: Host) -> Member:
    return host.hosting._jobs[JOB].member


def part_of(host: Host) -> Part:
    part = member_of(host)._part
    assert part is not None
    return part


def epoch_of(host: Host) -> Epoch:
    return part_of(host).epoch


class Linked:
    """Two shards; the leader reaches the other one through a proxy, the trainers reach it without."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        port = stack.hosts[1].listener.port
        self.proxy = Proxy(port)
        stack.link_ports[port] = self.proxy.port
        self.holding = threading.Event()

    def break_for(self, seconds: float) -> None:
        self.proxy.refusing = True
        self.proxy.cut()
        time.sleep(seconds)
        self.proxy.refusing = False

    def hold(self, from_iteration: int) -> Callable[[int, Any], bool]:
        """For a trainer: with this iteration in hand, what the leader says to the other shard goes nowhere.

        By then the other shard knows that it may leave the iteration.
        """

        def before_push(t: int, interval: Any) -> bool:
            if t == from_iteration and not self.holding.is_set():
                eventually(lambda: part_of(self.stack.hosts[1]).gate >= t)
                self.proxy.flowing_up.clear()
                self.holding.set()
            return False

        return before_push

    def restore_once(self, says: str) -> None:
        """Wait until the leader says what it waits for; then the link is cut, and it comes back."""
        assert self.holding.wait(WITHIN_S)
        eventually(lambda: says in self.stack.status().reason, 6, says)
        self.proxy.refusing = True
        self.proxy.cut()
        self.proxy.flowing_up.set()
        self.proxy.refusing = False


@pytest.fixture
def linked(stack_of: Callable[..., Stack]) -> Iterator[Linked]:
    linked = Linked(stack_of(2))
    yield linked
    linked.proxy.close()


def test_a_link_that_is_down_at_the_start_is_said_and_then_made(linked: Linked) -> None:
    linked.proxy.refusing = True
    message = linked.stack.host(document())
    linked.stack.trainer(message, 1)
    assert "cannot reach shard-2: " in comes_to(linked.stack, "waiting")
    linked.proxy.refusing = False
    comes_to(linked.stack, "finished")
    assert (final(linked.stack) == -30).all()


def test_values_brought_in_vain_while_a_link_was_down_are_brought_again(
    linked: Linked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other shard has no assignment, so it cannot take version 0: nobody may wait for it for ever."""
    monkeypatch.setattr(serving, "ASSIGN_WAIT_S", 0.2)
    linked.proxy.refusing = True
    message = linked.stack.host(document())
    trainer = linked.stack.trainer(message, 1)
    eventually(lambda: Kind.INITIALISE in trainer.seen)
    time.sleep(0.6)  # it has been told STALE by then
    linked.proxy.refusing = False
    comes_to(linked.stack, "finished")
    assert (final(linked.stack) == -30).all()


@pytest.mark.parametrize("at", [0, 1, 7, 29])
def test_a_link_cut_at_some_iteration_comes_back_and_the_job_goes_on(
    linked: Linked, at: int
) -> None:
    message = linked.stack.host(document(checkpoint=Checkpoint(every=5, every_s=0)))
    cut = threading.Event()

    def wait(trainer: FakeTrainer, header: Header) -> bool:
        if header.kind is Kind.TRAIN and header.iteration == at and not cut.is_set():
            linked.break_for(0.4)
            cut.set()
        return True

    linked.stack.trainer(message, 1, before=wait)
    linked.stack.trainer(message, 2)
    comes_to(linked.stack, "finished")
    assert cut.is_set()
    assert (final(linked.stack) == -30).all()


@pytest.mark.parametrize("seed", range(3))
def test_a_link_that_is_cut_again_and_again_costs_nothing_but_time(
    linked: Linked, seed: int
) -> None:
    rng = random.Random(seed)
    bad = {rng.randrange(60) for _ in range(4)}
    message = linked.stack.host(document(iterations=60, checkpoint=Checkpoint(every=4, every_s=0)))  # fmt: skip
    done = threading.Event()

    def cut() -> None:
        while not done.wait(rng.random() * 0.06):
            linked.proxy.cut()

    def is_bad(t: int, interval: Any) -> bool:
        return t in bad and interval.lo == t * 8

    cutter = threading.Thread(target=cut)
    cutter.start()
    try:
        linked.stack.trainer(message, 1, bad=is_bad)
        linked.stack.trainer(message, 2, bad=is_bad)
        comes_to(linked.stack, "finished", 40)
    finally:
        done.set()
        cutter.join()
    assert (final(linked.stack) == -60).all()
    skipped = manifests(linked.stack)[0].skips
    assert {lo // 8 for lo, _ in skipped} == bad


def test_a_freeze_lost_with_its_link_is_said_again(linked: Linked) -> None:
    stack = linked.stack
    message = stack.host(document())
    hold = linked.hold(5)

    def bad(t: int, interval: Any) -> bool:
        hold(t, interval)
        return (t, interval.lo) == (5, 40)

    stack.trainer(message, 1, bad=bad)
    linked.restore_once("a skip is being decided: waiting for shard-2")
    comes_to(stack, "finished")
    assert [tuple(s) for s in manifests(stack)[0].skips] == [(40, 48)]
    assert stack.status().progress.skipped_samples == 8  # type: ignore[union-attr]
    assert (final(stack) == -29).all()  # nothing of iteration 5 was counted, so no step was taken


def test_a_thaw_lost_with_its_link_is_said_again(linked: Linked) -> None:
    """A part is counted already on one shard, so the skip is not granted: the interval must be accepted again."""
    stack = linked.stack
    message = stack.host(document())
    tried: list[int] = []

    def bad(t: int, interval: Any) -> bool:
        if t != 5 or len(tried) == 2:
            return False
        tried.append(t)
        if len(tried) == 1:  # a zombie has pushed it to the first shard alone
            eventually(lambda: part_of(stack.hosts[0]).gate >= t)
            member = member_of(stack.hosts[0])
            for p in member.partitions:
                size = (member.partition_bytes(epoch_of(stack.hosts[0]), p) or 0) // 4
                one = np.full(size, 8, np.float32)
                member.push(epoch_of(stack.hosts[0]), t, interval, p, one)
        return True

    stack.trainer(message, 1, bad=bad)
    eventually(lambda: len(tried) == 1, WITHIN_S)
    linked.break_for(0.3)
    comes_to(stack, "finished")
    assert manifests(stack)[0].skips == []
    assert (final(stack) == -30).all()


def test_a_checkpoint_lost_with_its_link_is_said_again_or_given_up(linked: Linked) -> None:
    stack = linked.stack
    message = stack.host(document(checkpoint=Checkpoint(every=10, every_s=0)))
    stack.trainer(message, 1, bad=linked.hold(9))
    linked.restore_once("checkpoint of version 10 is not in the store")
    comes_to(stack, "finished")
    assert (final(stack) == -30).all()
    assert manifests(stack)[0].iteration == 30
    assert len(manifests(stack)) == 2


def test_a_gate_lost_with_its_link_is_said_again(linked: Linked) -> None:
    stack = linked.stack
    message = stack.host(document())
    stack.trainer(message, 1, bad=linked.hold(12))
    linked.restore_once("iteration 13 is computed: waiting for shard-2")
    comes_to(stack, "finished")
    assert (final(stack) == -30).all()


def test_a_call_back_lost_with_its_link_is_said_again(linked: Linked) -> None:
    """One trainer waits at the other shard for a version that cannot come before it takes a dead one's piece."""
    stack = linked.stack
    message = stack.host(document(), workers=2)
    waiting = threading.Event()

    def die(trainer: FakeTrainer, header: Header) -> bool:
        if header.kind is Kind.TRAIN and header.iteration == 12:
            assert waiting.wait(WITHIN_S)
            linked.proxy.flowing_up.clear()
            linked.holding.set()
            return False
        return True

    def wait(trainer: FakeTrainer, header: Header) -> bool:
        if header.kind is Kind.TRAIN and header.iteration == 13:
            waiting.set()
        return True

    stack.trainer(message, 1, before=die)
    stack.trainer(message, 2, before=wait)
    linked.restore_once("free")
    comes_to(stack, "finished")
    assert (final(stack) == -30).all()


def test_a_link_that_falls_silent_is_found_out_and_dialled_anew(
    linked: Linked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "SILENT_S", 0.5)
    monkeypatch.setattr(lead, "BEAT_S", 0.1)
    stack = linked.stack
    message = stack.host(document())
    stack.trainer(message, 1, bad=linked.hold(12))
    assert linked.holding.wait(WITHIN_S)
    assert "cannot reach shard-2" in comes_to(stack, "waiting")
    linked.proxy.flowing_up.set()
    comes_to(stack, "finished")
    assert (final(stack) == -30).all()


# --- the store --------------------------------------------------------------------------------------------------------


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
    assert "content of the data: data and other" in comes_to(stack, "failed")


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


# --- terms and ends ---------------------------------------------------------------------------------------------------


def test_a_newer_term_ends_the_older_one_and_a_lower_one_is_never_heard_again(
    stack_of: Callable[..., Stack],
) -> None:
    stack = stack_of(2)
    doc = document(iterations=100_000)
    old = stack.host(doc, 3)
    zombie = stack.trainer(old, 1)
    at_least(stack, 3)
    new = stack.host(document(), 4)
    zombie.join(10)
    assert not zombie.is_alive()
    stack.host(doc, 3)
    stack.host(doc, 2)
    stack.host(doc, term=4, secret="x")  # the same term again: nothing new
    other = msgspec.structs.replace(new, term=Term(4, 78))
    stack.leader.hosting.host(other)
    assert stack.status().term == Term(4, 77)
    again = stack.trainer(old, 2)
    again.join(10)
    assert "is over" in again.ended
    stack.trainer(new, 3)
    comes_to(stack, "finished")
    assert (final(stack) == -30).all()
    for host in stack.hosts:
        host.hosting.drop(DropJob(job=JOB, term=Term(3, 77)))  # of an older term: not this one
        assert len(host.hosting.status()) == 1


def test_a_leader_of_an_equal_term_that_is_not_the_shards_own_is_not_obeyed(
    stack_of: Callable[..., Stack],
) -> None:
    """The store forgot its newest second and handed the number out twice."""
    stack = stack_of(2)
    message = stack.message(document())
    stack.leader.hosting.host(message)
    stack.hosts[1].hosting.host(msgspec.structs.replace(message, term=Term(1, 78)))
    stack.trainer(message, 1)
    eventually(lambda: "first values on shard-2" in stack.status().reason)
    member = member_of(stack.hosts[1])
    assert member._part is None
    right = msgspec.structs.replace(message, term=Term(2, 1))
    for host in stack.hosts:
        host.hosting.host(right)
    stack.trainer(right, 2)
    comes_to(stack, "finished")


def test_threads_are_bounded_and_nothing_of_a_job_is_left_when_its_shards_close() -> None:
    stack = Stack(2)
    proxies = [Linked(stack).proxy]
    threads, files = threading.active_count(), descriptors()
    try:
        for term in range(1, 4):
            doc = document(iterations=100_000, checkpoint=Checkpoint(every=5, every_s=0))
            message = stack.host(doc, term)
            trainers = [stack.trainer(message, n) for n in range(1, 5)]
            at_least(stack, 20)
            proxies[0].cut()
            at_least(stack, 40)
            # of each trainer: itself, its lease and its four data connections; of the job: the leader's ticker, a link
            # with both its ends and the proxy between, what writes a checkpoint and a manifest
            assert threading.active_count() - threads <= 4 * 6 + 12
            if term == 2:
                stack.store.stop()
            for host in stack.hosts:
                host.hosting.close("the test ends the job")
            for trainer in trainers:
                trainer.join(10)
            stack.store.start()
            eventually(lambda: threading.active_count() <= threads, 15, "the end of all threads")
            eventually(lambda: descriptors() <= files, 15, "the end of all sockets")
            ask(stack, lambda store: store.delete([manifests_key(JOB)]))
    finally:
        stack.close()
        proxies[0].close()
