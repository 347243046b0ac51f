"""A leader with scripted trainers: who may work, who is replaced, whose word counts, what is left at the end."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from elps.contracts.epoch import Term
from elps.contracts.ids import WorkerId
from elps.contracts.job import Checkpoint, Evaluate
from elps.contracts.messages import BatchPlan, DropJob
from elps.contracts.topology import manifests_key
from elps.psshard import lead
from elps.psshard.core import arriving
from elps.wire.frames import Header, Kind

sys.path.insert(0, str(Path(__file__).parents[1]))

from data_plane import Proxy, descriptors, eventually
from hosted import JOB, FakeTrainer, Stack, document, identity
from leading import (
    WITHIN_S,
    ask,
    at_least,
    comes_to,
    final,
    manifests,
    member_of,
    quick,
    stacks,
)

__all__ = ["quick", "stacks"]


def test_rows_tell_what_a_trainers_machine_has_left_if_it_says_so(
    stack_of: Callable[..., Stack],
) -> None:
    stack = stack_of(1)
    message = stack.host(document(), workers=2)
    told = {"cpu_process": 0.25, "cpu_host": 1.5, "memory_bytes": 4096}
    stack.trainer(message, 1, around=told)
    stack.trainer(message, 2)
    comes_to(stack, "finished")
    eventually(lambda: len(stack.leader.rows) == 30)
    found = {
        t.worker: (t.cpu_process, t.cpu_host, t.memory_bytes) for t in stack.leader.rows[-1].workers
    }
    for trainer in stack.trainers:
        expected = tuple(told.values()) if trainer.around else (None, None, None)
        assert found.get(trainer.worker, expected) == expected
    assert any(t.cpu_process == 0.25 for row in stack.leader.rows for t in row.workers)


@pytest.mark.parametrize("at", [Kind.MAP, Kind.INITIALISE])
def test_a_trainer_that_hangs_before_it_is_a_worker_is_given_up_and_another_goes_on(
    stack_of: Callable[..., Stack], monkeypatch: pytest.MonkeyPatch, at: Kind
) -> None:
    stack, over = stack_of(1), threading.Event()
    message = stack.host(document(), workers=2)

    def hangs(_: FakeTrainer, header: Header) -> bool:
        return header.kind is not at or not over.wait(60)

    with monkeypatch.context() as short:
        short.setattr(arriving.Arrivals, "_limits", (0.1, 0.1))
        hung = stack.trainer(message, 1, before=hangs)
        eventually(lambda: stack.status().dismissed, WITHIN_S)
    assert "hung" in stack.status().dismissed[hung.worker]
    stack.trainer(message, 2)
    over.set()
    comes_to(stack, "finished")
    assert (final(stack) == -30).all()


def test_where_the_machine_stood_still_no_trainer_is_given_up_for_it(
    stack_of: Callable[..., Stack], monkeypatch: pytest.MonkeyPatch
) -> None:
    stack, looks, goes_on = stack_of(1), iter(range(10**9)), threading.Event()
    message = stack.host(document())
    slept_s = 0.0

    def computes(_: FakeTrainer, header: Header) -> bool:
        return header.kind is not Kind.TRAIN or header.iteration < 5 or goes_on.wait(60)

    def monotonic() -> float:
        next(looks)
        return time.monotonic() + slept_s

    monkeypatch.setattr(lead, "time", SimpleNamespace(monotonic=monotonic))
    stack.trainer(message, 1, before=computes)
    at_least(stack, 5)
    slept_s = 10_000.0
    since = next(looks)
    eventually(lambda: next(looks) > since + 20)  # the leader has looked at its deadlines
    assert stack.status().dismissed == {}
    goes_on.set()
    comes_to(stack, "finished")
    assert (final(stack) == -30).all()


def test_after_going_back_to_a_checkpoint_it_is_known_how_long_leases_take(
    stack_of: Callable[..., Stack],
) -> None:
    stack = stack_of(1)
    message = stack.host(document(checkpoint=Checkpoint(every=5)))
    stack.trainer(message, 1)
    at_least(stack, 6)
    leader = stack.leader.hosting._jobs[JOB].lead
    assert leader is not None
    before = leader.clock
    assert before is not None
    leader.reopen("by hand", must_restore=False)
    eventually(lambda: leader.clock is not before)
    assert leader.clock is not None
    assert leader.clock._deadlines.limit_s("train") < 600
    comes_to(stack, "finished")
    assert (final(stack) == -30).all()


def test_rows_tell_what_the_machine_of_one_that_sits_out_has_left(
    stack_of: Callable[..., Stack], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lead, "BEAT_S", 0.05)
    stack = stack_of(1)
    message = stack.host(document(iterations=1_000_000), workers=2)
    stack.leader.hosting.plan_batches(
        BatchPlan(
            job=JOB, term=message.term, number=1,
            shares={WorkerId("job-w1"): 8, WorkerId("job-w2"): 0},
        )
    )  # fmt: skip
    stack.trainer(message, 1)
    stack.trainer(message, 2, around={"cpu_process": 0.25, "memory_bytes": 4096})
    idle = {WorkerId("job-w2"): 0.25}
    eventually(lambda: stack.leader.rows and stack.leader.rows[-1].waiting == idle, WITHIN_S)
    assert [t.worker for t in stack.leader.rows[-1].workers] == ["job-w1"]
    stack.trainers[1].die()
    eventually(lambda: not stack.leader.rows[-1].waiting, WITHIN_S)


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


def test_the_beat_names_whose_connection_has_ended_until_they_come_again(
    stack_of: Callable[..., Stack],
) -> None:
    stack = stack_of()
    message = stack.host(document(), workers=2)
    for number in (1, 2):
        dies = stack.trainer(message, number, before=lambda *_: False)
        dies.join(10)
    eventually(lambda: stack.status().gone == ["job-w1", "job-w2"])
    hold = threading.Event()
    stack.trainer(message, 1, before=lambda _, header: header.kind is not Kind.TRAIN or hold.wait())
    eventually(lambda: stack.status().gone == ["job-w2"])
    stack.direct(message, workers=["job-w1"])
    eventually(lambda: stack.status().gone == [])
    hold.set()
    comes_to(stack, "finished")


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
    trainer = stack.trainer(message, 1)
    eventually(lambda: Kind.INITIALISE in trainer.seen, what="the word to bring the first values")
    refused = "first values on shard-2", "cannot reach shard-2"  # the latter once it has lasted
    eventually(lambda: any(text in stack.status().reason for text in refused))
    member = member_of(stack.hosts[1])
    assert member._part is None
    right = msgspec.structs.replace(message, term=Term(2, 1))
    for host in stack.hosts:
        host.hosting.host(right)
    stack.trainer(right, 2)
    comes_to(stack, "finished")


def test_threads_are_bounded_and_nothing_of_a_job_is_left_when_its_shards_close() -> None:
    stack = Stack(2)
    port = stack.hosts[1].listener.port
    proxy = Proxy(port)
    stack.link_ports[port] = proxy.port
    threads, files = threading.active_count(), descriptors()
    try:
        for term in range(1, 4):
            doc = document(iterations=100_000, checkpoint=Checkpoint(every=5, every_s=0))
            message = stack.host(doc, term)
            trainers = [stack.trainer(message, n) for n in range(1, 5)]
            at_least(stack, 20)
            proxy.cut()
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
        proxy.close()
