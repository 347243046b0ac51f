"""Copies that follow, on one shard: what is said again is answered again, and what is over is let go."""

from __future__ import annotations

import queue
import socket
import sys
from pathlib import Path

import numpy as np
import pytest

from elps.contracts.errors import ProtocolError
from elps.contracts.ids import ShardId
from elps.psshard import feeding
from elps.psshard.block import Block
from elps.psshard.core.part import Advance
from elps.psshard.feeding import Feeder
from elps.psshard.member import Member
from elps.psshard.reports import Followed, Report, Unfollowed
from elps.psshard.wave import Wave
from elps.stream.interval import Interval
from elps.wire.connection import Connection

sys.path.insert(0, str(Path(__file__).parents[1]))

from data_plane import EPOCH, assignment, document
from members import P0, member_of

HERE, THERE = ShardId("shard-1"), ShardId("shard-2")


def wave(number: int) -> Wave:
    """The one partition goes from here to there."""
    copies = [(0, 0, 3, HERE, THERE)]
    return Wave(number=number, copies=copies, addresses={THERE: ("127.0.0.1", 1)})


def no_way(target: ShardId) -> Connection:
    raise ProtocolError(f"{target} is out of reach")


def follower() -> tuple[Member, list[Report]]:
    member, reports = Member(document()), list[Report]()
    member.assign(EPOCH, assignment([]))
    member.report = reports.append
    return member, reports


def fill(member: Member, number: int, version: int) -> None:
    key = EPOCH, number
    array = member.following.array(key, P0, "values", version)
    assert array is not None
    array[:] = 1
    member.following.came(key, P0, "values", version, steps=version)


def test_an_order_that_is_repeated_has_progress_told_again() -> None:
    member, reports = follower()
    member.follow(EPOCH, wave(1), THERE, no_way)
    assert reports == []
    fill(member, 1, version=4)
    for _ in range(2):
        member.follow(EPOCH, wave(1), THERE, no_way)
    assert reports == [Followed(EPOCH, 1, 0, 4)] * 2
    assert np.array_equal(member.following.at(4)[P0].values(4), np.ones(3))


def test_an_order_that_is_repeated_has_a_failure_told_again() -> None:
    member, reports = member_of([3]), queue.Queue[Report]()
    member.report = reports.put
    member.follow(EPOCH, wave(1), HERE, no_way)
    told = reports.get(timeout=10)
    assert told == Unfollowed(EPOCH, 1, f"{THERE} is out of reach")
    member.follow(EPOCH, wave(1), HERE, no_way)
    assert reports.get(timeout=10) == told


def test_a_wave_ends_with_its_own_number_and_with_every_later_one() -> None:
    member, reports = follower()
    member.follow(EPOCH, wave(2), THERE, no_way)
    fill(member, 2, version=0)
    member.unfollow(EPOCH, 1)
    assert member.following.at(0)
    member.unfollow(EPOCH, 3)
    assert not member.following.at(0)
    assert reports == []


def test_a_follower_that_does_not_read_costs_its_owner_bounded_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    size, few = 65_536, 4
    monkeypatch.setattr(feeding, "MAX_WAITING_BYTES", few * 4 * size)
    told: queue.Queue[Report] = queue.Queue()
    block = Block(document(), size, iterations=1000)
    block.load(0, 0, {"values": np.zeros(size, np.float32)})
    feeder = Feeder((EPOCH, 1), {P0: block}, lambda: Connection(ours, "deaf"), told.put)
    feeder.start()
    try:
        for t in range(200):
            block.add(Interval(t, t + 1), np.ones(size, np.float32))
            block.write(Advance(P0, t, 1, t + 1))
            assert sum(s.nbytes for _, s in feeder._queue if s is not None) <= few * 4 * size
        assert feeder._overrun
        theirs.close()
        assert isinstance(told.get(timeout=10), Unfollowed)
        assert (block.values(200) == -200).all()  # the owner was never held up
    finally:
        feeder.close()
