"""Connections made before they are needed, and a worker that says that it will go."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from elps.contracts.job import Batch, Optimizer
from elps.wire.frames import Header, Kind, Status
from elps.worker.trainer import reaching
from elps.worker.trainer.reaching import Ahead

sys.path.insert(0, str(Path(__file__).parents[1]))

from data_plane import Proxy, Shard, cut_into, document, eventually, pull, shards_of, start_trainer
from hosted import FakeTrainer, Stack, tell
from hosted import document as job_document
from leading import comes_to, final, quick, stacks

__all__ = ["quick", "stacks"]
NOBODY = 1
"""A port that nobody listens on."""


@pytest.fixture
def shard() -> Iterator[Shard]:
    doc = document(batch=Batch(global_=4), optimizer=Optimizer(name="sgd", lr=4.0))
    shard = Shard(doc, cut_into([500, 70]), samples=4, batch=4)
    shard.begin()
    yield shard
    shard.close()


def place(port: int) -> reaching.Place:
    return "shard-1", "127.0.0.1", port


def test_a_connection_made_ahead_is_the_one_that_is_used(shard: Shard) -> None:
    trainer = shards_of(shard.member.document, [(shard.listener.port, shard.partitions)])
    trainer.connect()
    eventually(lambda: shard.listener.connections == 2)
    into = np.ones(570, np.float32)
    assert pull(trainer, 0, 1, into) is Status.OK
    trainer.all()[0].pushing()
    assert not into.any()
    assert shard.listener.connections == 2
    trainer.close()
    eventually(lambda: shard.listener.connections == 0)


def test_one_that_broke_before_it_was_needed_is_made_again(shard: Shard) -> None:
    proxy = Proxy(shard.listener.port)
    trainer = shards_of(shard.member.document, [(proxy.port, shard.partitions)])
    trainer.connect()
    eventually(lambda: shard.listener.connections == 2)
    proxy.cut()
    assert pull(trainer, 0, 1, np.ones(570, np.float32)) is Status.OK
    trainer.close()
    proxy.close()


def test_what_cannot_be_made_is_not_there_and_is_tried_again_when_told_again(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reaching, "AHEAD_S", 0.05)
    ahead = Ahead(start_trainer(shard.member.document))
    ahead.connect([place(NOBODY)])
    assert ahead.take(place(NOBODY), "pull") is None
    ahead.connect([place(NOBODY)])
    eventually(lambda: all(d.failed for d in ahead._dialled.values()))
    before = dict(ahead._dialled)
    ahead.connect([place(NOBODY)])
    assert all(ahead._dialled[key] is not before[key] for key in before)
    ahead.close()


def test_what_is_not_wanted_any_more_is_hung_up_on(shard: Shard) -> None:
    ahead = Ahead(start_trainer(shard.member.document))
    ahead.connect([place(shard.listener.port)])
    eventually(lambda: shard.listener.connections == 2)
    connection = ahead.take(place(shard.listener.port), "pull")
    assert connection is not None
    ahead.connect([])
    eventually(lambda: shard.listener.connections == 1)
    assert not connection.closed
    connection.close()


def test_one_that_is_not_wanted_while_it_is_made_ends_at_once(shard: Shard) -> None:
    ahead, threads = Ahead(start_trainer(shard.member.document)), threading.active_count()
    ahead.connect([place(NOBODY)])
    ahead.close()
    eventually(lambda: threading.active_count() <= threads)


def test_a_worker_that_will_go_ends_its_lease_is_lent_nothing_more_and_loses_nothing(
    stack_of: Callable[..., Stack],
) -> None:
    stack = stack_of()
    message = stack.host(job_document(), workers=2)
    told: list[int] = []

    def will_go(trainer: FakeTrainer, header: Header) -> bool:
        if header.kind is Kind.TRAIN and header.iteration >= 5 and not told:
            assert trainer.leader is not None
            tell(trainer.leader, Header(Kind.RETIRING, header.epoch))
            told.append(header.iteration)
        return True

    stack.trainer(message, 1)
    going = stack.trainer(message, 2, before=will_go)
    assert comes_to(stack, "finished") == "all iterations are done, at iteration 30"
    assert [lease.iteration for lease in going.leases][-1:] == told
    assert going.ended == "its agent ends it"
    assert (final(stack) == -30).all()
    assert {row.samples for row in stack.leader.rows} == {8}
