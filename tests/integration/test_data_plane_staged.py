"""Pushes spoken frame by frame: parts that are staged, cut off, refused; each lease counts whole or not at all."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from elps.contracts.epoch import Epoch
from elps.stream.interval import Interval
from elps.wire.connection import Connection, ConnectionEnded
from elps.wire.frames import Flag, Header, Kind, Status

sys.path.insert(0, str(Path(__file__).parents[1]))

from data_plane import (
    EPOCH,
    Shard,
    cut_into,
    eventually,
)
from planes import Plane, by_hand, planes, sums_of

__all__ = ["planes"]


def part(
    number: int, lease: Interval, fill: float, size: int, flags: Flag = Flag.NONE, t: int = 0
) -> tuple[Header, bytes]:
    body = np.full(size, fill, np.float32).tobytes()
    return Header(Kind.PUSH, EPOCH, flags, partition=number, iteration=t, interval=lease), body


def word(kind: Kind, lease: Interval, flags: Flag = Flag.NONE, t: int = 0) -> Header:
    return Header(kind, EPOCH, flags, iteration=t, interval=lease)


def acknowledged(connection: Connection) -> Status:
    header = connection.receive(idle_s=10)
    assert header.kind is Kind.ACK
    return Status(header.status)


WHOLE = Interval(0, 4)


@pytest.fixture
def shard(plane_of: Callable[..., Plane]) -> Shard:
    return plane_of(sums_of(), cut_into([3, 3])).begin().shards[0]


def accepted(shard: Shard) -> bool:
    assert shard.member._part is not None
    return any(shard.member._part.missing(p) != [WHOLE] for p in shard.member.partitions)


def test_staged_parts_count_with_their_commit_and_not_before(shard: Shard) -> None:
    connection = by_hand(shard)
    for number in (0, 1):
        head, body = part(number, WHOLE, 4.0, 3, Flag.STAGED | Flag.LAST)
        connection.send(head, body=body)
        assert acknowledged(connection) is Status.OK
    assert not accepted(shard)
    connection.send(word(Kind.COMMIT, WHOLE, Flag.LAST))
    assert acknowledged(connection) is Status.OK
    assert shard.version == 1
    assert [v.tolist() for v in shard.values(1)] == [[-4.0] * 3] * 2
    connection.send(word(Kind.COMMIT, WHOLE, Flag.LAST))  # nothing is staged any more
    assert acknowledged(connection) is Status.OK
    assert shard.version == 1
    connection.close()


def test_staged_parts_vanish_with_their_connection_and_with_an_abort(shard: Shard) -> None:
    first = by_hand(shard)
    head, body = part(0, WHOLE, 1e9, 3, Flag.STAGED | Flag.LAST)
    first.send(head, body=body)
    assert acknowledged(first) is Status.OK
    first.close()
    second = by_hand(shard)
    second.send(head, body=body)
    assert acknowledged(second) is Status.OK
    second.send(word(Kind.ABORT, WHOLE, Flag.LAST))
    assert acknowledged(second) is Status.OK
    second.send(word(Kind.COMMIT, WHOLE, Flag.LAST))
    assert acknowledged(second) is Status.OK
    assert not accepted(shard)
    for number in (0, 1):
        head, body = part(number, WHOLE, 4.0, 3, Flag.STAGED)
        second.send(head, body=body)
    second.send(word(Kind.COMMIT, WHOLE, Flag.LAST))
    assert acknowledged(second) is Status.OK
    assert [v.tolist() for v in shard.values(1)] == [[-4.0] * 3] * 2
    second.close()


def test_a_commit_of_another_lease_than_was_staged_ends_the_connection(shard: Shard) -> None:
    connection = by_hand(shard)
    head, body = part(0, Interval(0, 2), 1e9, 3, Flag.STAGED)
    connection.send(head, body=body)
    connection.send(word(Kind.COMMIT, Interval(2, 4), Flag.LAST))
    with pytest.raises(ConnectionEnded):
        acknowledged(connection)
    assert not accepted(shard)


def test_parts_staged_for_a_lease_that_was_dropped_do_not_count_with_the_next(shard: Shard) -> None:
    connection = by_hand(shard)
    head, body = part(0, Interval(0, 2), 1e9, 3, Flag.STAGED)
    connection.send(
        head, body=body
    )  # the trainer is called away, and comes back with another lease
    for number in (0, 1):
        head, body = part(number, WHOLE, 4.0, 3, Flag.STAGED)
        connection.send(head, body=body)
    connection.send(word(Kind.COMMIT, WHOLE, Flag.LAST))
    assert acknowledged(connection) is Status.OK
    assert [v.tolist() for v in shard.values(1)] == [[-4.0] * 3] * 2
    connection.close()


@pytest.mark.parametrize("staged", [Flag.NONE, Flag.STAGED])
def test_a_part_cut_off_at_any_byte_leaves_no_trace(shard: Shard, staged: Flag) -> None:
    head, body = part(0, WHOLE, 1e9, 3, staged)
    raw = (
        Header(
            head.kind, head.epoch, head.flags, iteration=0, interval=WHOLE, body_bytes=len(body)
        ).pack()
        + body
    )
    for size in range(1, len(raw)):
        connection = by_hand(shard)
        connection.send_raw([raw[:size]])
        connection.close()
    eventually(lambda: shard.listener.connections == 0)
    assert not accepted(shard)
    connection = by_hand(shard)
    for number in (0, 1):
        head, body = part(number, WHOLE, 4.0, 3, Flag.LAST)
        connection.send(head, body=body)
        assert acknowledged(connection) is Status.OK
    assert [v.tolist() for v in shard.values(1)] == [[-4.0] * 3] * 2
    connection.close()


def test_the_answer_tells_the_worst_of_a_lease_and_then_begins_anew(shard: Shard) -> None:
    connection = by_hand(shard)
    shard.member.freeze(EPOCH, Interval(0, 1), 1)
    head, body = part(0, WHOLE, 1.0, 3)
    connection.send(head, body=body)
    connection.send(word(Kind.ABORT, WHOLE))
    head, body = part(0, Interval(2, 4), 4.0, 3, Flag.LAST)
    connection.send(head, body=body)
    assert acknowledged(connection) is Status.OK
    head, body = part(1, WHOLE, 1.0, 3)
    connection.send(head, body=body)  # refused
    head, body = part(1, Interval(2, 4), 4.0, 3, Flag.LAST)
    connection.send(head, body=body)  # taken
    assert acknowledged(connection) is Status.REFUSED
    old = Header(Kind.EMPTY, Epoch(EPOCH.term, 7), Flag.LAST, iteration=0, interval=WHOLE)
    connection.send(old)
    assert acknowledged(connection) is Status.STALE
    connection.send(word(Kind.EMPTY, Interval(1, 2), Flag.LAST))
    assert acknowledged(connection) is Status.OK
    connection.close()
