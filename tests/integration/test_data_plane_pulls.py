"""Pulls that wait, are called back or overtaken, and trainers of an epoch that is over or still to come."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elps.contracts.epoch import Epoch
from elps.contracts.errors import ElpsError
from elps.contracts.ids import WorkerId
from elps.psshard import serving
from elps.stream.interval import Interval
from elps.wire.frames import Header, Kind, Status
from elps.worker.trainer import shards as trainer_shards
from elps.worker.trainer.reaching import ShardUnreachable

sys.path.insert(0, str(Path(__file__).parents[1]))

from data_plane import (
    EPOCH,
    assignment,
    bring_zeros,
    cut_into,
    pull,
    push,
    running,
    shards_of,
)
from planes import Plane, by_hand, planes, sums_of

__all__ = ["planes"]


WHOLE = Interval(0, 4)


@pytest.mark.parametrize("sizes", [[4, 4], [200_000, 200_000]], ids=["one send", "many"])
def test_a_pull_of_a_version_overwritten_on_its_way_is_never_said_to_be_ok(
    plane_of: Callable[..., Plane], sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forced: the shard is held between reading the values and saying that they are whole."""
    plane = plane_of(sums_of(), cut_into(sizes)).begin()
    shard = plane.shards[0]
    member, trainer = shard.member, plane.trainer("job-w2")
    reading, go_on = threading.Event(), threading.Event()
    still_readable = member.still_readable

    def held(*args: Any, **named: Any) -> bool:
        reading.set()
        assert go_on.wait(10)
        return still_readable(*args, **named)

    member.still_readable = held  # type: ignore[method-assign]
    got: list[Status] = []

    def read() -> None:
        reader, into = plane.trainer(), plane.vector()
        got.append(pull(reader, 0, 1, into))

    with running(read):
        assert reading.wait(10)
        for t in range(2):
            assert push(trainer, t, Interval(4 * t, 4 * t + 4), plane.vector(4.0)) is Status.OK
        go_on.set()
    assert got == [Status.GONE]
    assert pull(trainer, 2, 1, plane.vector()) is Status.OK


def test_a_reader_slower_than_two_iterations_is_told_that_its_version_is_gone(
    plane_of: Callable[..., Plane],
) -> None:
    plane = plane_of(
        sums_of(), cut_into([262_144] * 20)
    ).begin()  # 20 MiB: more than the socket holds
    shard, trainer = plane.shards[0], plane.trainer()
    slow = by_hand(shard, "pull")
    slow.send(Header(Kind.PULL, EPOCH, iteration=0, ticket=9))
    assert slow.receive(idle_s=10).kind is Kind.PART
    for t in range(2):
        assert push(trainer, t, Interval(4 * t, 4 * t + 4), plane.vector(4.0)) is Status.OK
    scratch = memoryview(bytearray(1 << 20))
    slow.body(Header(Kind.PART, body_bytes=1 << 20), scratch)
    while (header := slow.receive(idle_s=10)).kind is Kind.PART:
        slow.discard(header, scratch)
    assert (header.kind, header.status, header.ticket) == (Kind.END, Status.GONE, 9)
    slow.close()


def test_a_pull_waits_for_its_version_and_hears_that_the_shard_is_still_there(
    plane_of: Callable[..., Plane], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "PULL_WAIT_S", 0.05)
    plane = plane_of(sums_of(), cut_into([5, 5])).begin()
    reader = by_hand(plane.shards[0], "pull")
    reader.send(Header(Kind.PULL, EPOCH, iteration=1, ticket=3))
    for _ in range(3):
        header = reader.receive(idle_s=10)
        assert (header.kind, header.ticket) == (Kind.WAIT, 3)
    assert push(plane.trainer(), 0, WHOLE, plane.vector(4.0)) is Status.OK
    while (header := reader.receive(idle_s=10)).kind is Kind.WAIT:
        pass
    kinds = []
    scratch = memoryview(bytearray(1 << 20))
    while header.kind is Kind.PART:
        kinds.append(header.partition)
        reader.discard(header, scratch)
        header = reader.receive(idle_s=10)
    assert (kinds, header.kind, header.status) == ([0, 1], Kind.END, Status.OK)
    reader.close()


def test_a_pull_is_called_back_from_every_shard(plane_of: Callable[..., Plane]) -> None:
    plane = plane_of(sums_of(), cut_into([5, 5, 5]), 3).begin()
    trainer = plane.trainer()
    for shard in plane.shards[1:]:
        for number, _, _ in shard.partitions:
            shard.member.push(EPOCH, 0, WHOLE, number, None)  # these come to version 1
    for shard in plane.shards:
        shard.member.call_back(EPOCH, WorkerId("job-w1"), 4)
    assert pull(trainer, 1, 4, plane.vector()) is Status.CALLED_BACK
    for number, _, _ in plane.shards[0].partitions:
        plane.shards[0].member.push(EPOCH, 0, WHOLE, number, None)
    assert pull(trainer, 1, 5, plane.vector()) is Status.OK


def test_a_trainer_of_an_epoch_that_is_over_is_told_at_once(
    plane_of: Callable[..., Plane],
) -> None:
    """Not after the time that one who is ahead of the leader's word is given."""
    plane = plane_of(sums_of(), cut_into([5])).begin()
    trainer, shard = plane.trainer(), plane.shards[0]
    trainer.connect()
    later = Epoch(EPOCH.term, 1)
    assert shard.member.assign(later, assignment(shard.partitions))
    began = time.monotonic()
    assert pull(trainer, 0, 1, plane.vector()) is Status.STALE
    assert push(trainer, 0, WHOLE, plane.vector(1.0)) is Status.STALE
    assert push(trainer, 0, WHOLE, plane.vector(1.0), staged=True) is Status.STALE
    assert trainer.push_values(plane.vector(1.0)) is Status.STALE
    assert time.monotonic() - began < 2


def test_a_trainer_ahead_of_the_leaders_word_waits_for_it_a_bounded_time(
    plane_of: Callable[..., Plane], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "PULL_WAIT_S", 0.05)
    plane = plane_of(sums_of(), cut_into([5] * 20)).begin()
    shard, later = plane.shards[0], Epoch(EPOCH.term, 1)
    ahead = plane.trainer(epoch=later)
    first = plane.vector(3.0)
    with running(lambda: ahead.push_values(first)):
        time.sleep(0.1)
        shard.member.assign(later, assignment(shard.partitions))
    assert pull(ahead, 0, 1, plane.vector()) is Status.OK
    monkeypatch.setattr(serving, "ASSIGN_WAIT_S", 0.3)
    far = plane.trainer(epoch=Epoch(EPOCH.term, 2))
    began = time.monotonic()
    assert far.push_values(first) is Status.STALE  # it waits once, not for each partition
    assert 0.25 < time.monotonic() - began < 3
    assert pull(far, 0, 1, plane.vector()) is Status.STALE


@pytest.mark.parametrize("seed", range(3))
def test_a_rollback_while_trainers_push_and_pull_ends_exactly(
    plane_of: Callable[..., Plane], seed: int
) -> None:
    """Large parts, other partitions after than before: no answer of the old epoch may use arrays of the new one."""
    plane = plane_of(sums_of(), cut_into([90_000, 30_000])).begin()
    shard, later = plane.shards[0], Epoch(EPOCH.term, 1)
    other = cut_into([40_000, 5, 79_995])
    rolled = threading.Event()
    rng = random.Random(seed)

    def work(me: int) -> None:
        trainer, got = plane.trainer(f"job-w{me}"), plane.vector()
        for t in range(10_000):
            status = pull(trainer, t, t + 1, got)
            if status is Status.OK:
                assert (got == -4.0 * t).all()
                lease = Interval(4 * t + 2 * me, 4 * t + 2 * me + 2)
                status = push(trainer, t, lease, plane.vector(2.0), staged=rng.random() < 0.5)
            if status is not Status.OK:
                assert status in (Status.STALE, Status.GONE)
                break
        assert rolled.wait(10)
        again = shards_of(plane.document, [(shard.listener.port, other)], f"job-w{me}", later)
        for t in range(5):
            assert pull(again, t, t + 1, got) is Status.OK
            assert (got == -4.0 * t).all()
            lease = Interval(4 * t + 2 * me, 4 * t + 2 * me + 2)
            assert push(again, t, lease, plane.vector(2.0)) is Status.OK
        again.close()

    def back() -> None:
        time.sleep(rng.random() * 0.2)
        shard.member.assign(later, assignment(other))
        rolled.set()
        bring_zeros(shard.member, later, other)
        shard.member.gate(later, 100)

    with running(back, lambda: work(0), lambda: work(1)):
        pass
    assert shard.version >= 5


def test_an_answer_that_is_no_status_is_a_protocol_error_and_not_a_crash(
    plane_of: Callable[..., Plane], monkeypatch: pytest.MonkeyPatch
) -> None:
    plane = plane_of(sums_of(), cut_into([5])).begin()
    monkeypatch.setattr(
        serving.PullConnection, "_end_head",
        staticmethod(lambda ask, status: Header(Kind.END, ask.epoch, status=77, ticket=ask.ticket)),
    )  # fmt: skip
    with pytest.raises(ElpsError, match="shard-1 sent END with status 77"):
        pull(plane.trainer(), 0, 1, plane.vector())


def test_a_shard_that_is_not_there_is_named_within_a_bounded_time(
    plane_of: Callable[..., Plane], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer_shards, "REACH_S", 0.5)
    plane = plane_of(sums_of(), cut_into([5, 5]), 2).begin()
    plane.shards[1].listener.close()
    began = time.monotonic()
    with pytest.raises(ShardUnreachable, match="shard-2"):
        push(plane.trainer(), 0, WHOLE, plane.vector(1.0))
    assert time.monotonic() - began < 5
