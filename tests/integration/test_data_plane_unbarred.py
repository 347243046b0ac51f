"""A shard without a barrier behind real sockets: what pulls wait for, what they give, what a push is answered."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from elps.contracts.errors import ElpsError
from elps.contracts.job import Optimizer
from elps.stream.interval import Interval
from elps.wire.frames import Flag, Status

sys.path.insert(0, str(Path(__file__).parents[1]))

from data_plane import (
    EPOCH,
    Shard,
    bring_zeros,
    cut_into,
    document,
    eventually,
    pull,
    push,
    running,
    shards_of,
)

SIZES = [[4, 4], [100_000, 100_000]]


@pytest.fixture(params=SIZES, ids=["one send", "many"])
def shard(request: pytest.FixtureRequest) -> Iterator[Shard]:
    """Iterations of 4 samples; each sample's gradient of -1 adds 1. Nothing is opened yet."""
    doc = document(sync="ssp", staleness=1, optimizer=Optimizer(name="sgd", lr=4.0))
    one = Shard(doc, cut_into(request.param))
    bring_zeros(one.member, EPOCH, one.partitions)
    yield one
    one.close()


def elements(shard: Shard) -> int:
    return shard.partitions[-1][2]


def test_a_pull_for_training_waits_for_the_gate_then_for_the_bound_and_gives_the_newest(
    shard: Shard,
) -> None:
    doc, size = shard.member.document, elements(shard)
    places = [(shard.listener.port, shard.partitions)]
    trainer, other = shards_of(doc, places, "job-w1"), shards_of(doc, places, "job-w2")
    got, come = np.full(size, -1, np.float32), threading.Event()

    def take(version: int, ticket: int) -> None:
        assert trainer.pull(version, ticket, got, Flag.NEWEST).status is Status.OK
        come.set()

    with running(lambda: take(0, 1)):
        assert not come.wait(0.2)
        shard.member.gate(EPOCH, 2)
    np.testing.assert_array_equal(got, 0)
    come.clear()
    gradient = np.full(size, -1, np.float32)
    assert push(other, 1, Interval(4, 6), 2 * gradient) is Status.OK
    with running(lambda: take(2, 2)):
        assert not come.wait(0.2)
        assert push(other, 0, Interval(0, 4), 4 * gradient) is Status.OK
    np.testing.assert_array_equal(got, 6)
    assert push(other, 0, Interval(0, 4), 4 * gradient) is Status.OK  # it is there already
    assert push(other, 1, Interval(4, 8), 4 * gradient) is Status.OK  # a part of it is
    take(2, 3)
    np.testing.assert_array_equal(got, 6)
    eventually(lambda: shard.version == 1)
    trainer.close()
    other.close()


def test_a_version_is_given_where_the_job_rests_and_is_gone_when_it_goes_on(shard: Shard) -> None:
    doc, size = shard.member.document, elements(shard)
    trainer = shards_of(doc, [(shard.listener.port, shard.partitions)])
    got = np.zeros(size, np.float32)
    shard.member.gate(EPOCH, 0)
    push(trainer, 0, Interval(0, 4), np.full(size, -4, np.float32), staged=True)
    assert pull(trainer, 1, 1, got) is Status.OK
    np.testing.assert_array_equal(got, 4)
    aside = shard.member.checkpoint(EPOCH, 1)
    assert aside is not None
    shard.member.gate(EPOCH, 1)
    assert pull(trainer, 1, 2, got) is Status.GONE
    push(trainer, 1, Interval(4, 6), np.full(size, -2, np.float32))
    np.testing.assert_array_equal(aside.take(aside.partitions[0])["values"], 4)
    trainer.close()


def test_the_newest_values_of_a_job_with_a_barrier_are_not_to_be_had() -> None:
    shard = Shard(document(), cut_into([4]))
    shard.begin()
    trainer = shards_of(document(), [(shard.listener.port, shard.partitions)])
    with pytest.raises(ElpsError, match="lost"):
        trainer.pull(0, 1, np.zeros(4, np.float32), Flag.NEWEST)
    trainer.close()
    shard.close()
