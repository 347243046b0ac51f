"""Copies that follow, on one shard: what is said again is answered again, and what is over is let go."""

from __future__ import annotations

import queue
import socket
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from elps.contracts.epoch import Epoch
from elps.contracts.errors import ProtocolError
from elps.contracts.ids import PartitionId, ShardId
from elps.psshard import feeding
from elps.psshard.block import Block, Sealed
from elps.psshard.copies import Copies
from elps.psshard.core.part import Advance
from elps.psshard.feeding import Feeder
from elps.psshard.following import Copy
from elps.psshard.member import Member
from elps.psshard.reports import Followed, Report, Unfollowed
from elps.psshard.wave import Wave
from elps.stream.interval import Interval
from elps.wire.connection import Connection

sys.path.insert(0, str(Path(__file__).parents[1]))

from data_plane import EPOCH, assignment, document
from members import P0, member_of

HERE, THERE = ShardId("shard-1"), ShardId("shard-2")


def wave(number: int, *, standing: bool = False) -> Wave:
    """The one partition is copied from here to there."""
    copies = [(0, 0, 3, HERE, THERE)]
    addresses = {THERE: ("127.0.0.1", 1)}
    return Wave(number=number, copies=copies, addresses=addresses, standing=standing)


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


def test_the_memory_of_copies_can_be_summed_up_while_more_are_given_up() -> None:
    """A beat reads it from another thread than that which carries out the leader's word."""
    copies, first, second = Copies(document()), PartitionId(0), PartitionId(1)

    class Kept:
        version = 1

        @property
        def block(self) -> Any:
            copies.keep({second: Copy(block, (0, 3))})
            return block

    block: Any = SimpleNamespace(size_bytes=5)
    kept: Any = Kept()
    copies.keep({first: kept})
    assert copies.size_bytes == 5
    assert set(copies.spare) == {first, second}


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
            block.add(t, Interval(t, t + 1), np.ones(size, np.float32))
            block.write(Advance(P0, t, 1, t + 1))
            assert sum(s.nbytes for _, s in feeder._queue if s is not None) <= few * 4 * size
        assert feeder._overrun
        theirs.close()
        assert isinstance(told.get(timeout=10), Unfollowed)
        assert (block.values(200) == -200).all()  # the owner was never held up
    finally:
        feeder.close()


LATER = Epoch(EPOCH.term, EPOCH.n + 1)


def claims(member: Member) -> list[tuple[int, int | None, bool]]:
    """Version, oldest version and whether it is a copy, of what a shard says that it has."""
    stock = member.stock(LATER)
    assert stock is not None
    return [(claim.version, claim.oldest, claim.copy) for claim in stock.claims]


def test_a_replica_is_claimed_with_what_it_can_still_give() -> None:
    member, _ = follower()
    member.follow(EPOCH, wave(1, standing=True), THERE, no_way)
    fill(member, 1, version=4)
    assert claims(member) == [(4, 4, True)]
    assert claims(member) == [(4, 4, True)], "each repeat says the same"


def test_a_replica_that_is_given_up_is_kept_until_a_gate_is_newer() -> None:
    for gate, left in ((4, [(4, 4, True)]), (5, [])):
        member, _ = follower()
        member.follow(EPOCH, wave(1, standing=True), THERE, no_way)
        fill(member, 1, version=4)
        member.follow(EPOCH, wave(2, standing=True), THERE, no_way)  # made anew, and not there yet
        member.gate(EPOCH, gate)
        assert claims(member) == left
    member, _ = follower()
    member.follow(EPOCH, wave(1, standing=True), THERE, no_way)
    fill(member, 1, version=4)
    held = member.held_bytes
    member.unfollow(EPOCH, 1, replicas=True)
    assert member.held_bytes == held > 0
    member.gate(EPOCH, 5)
    assert member.held_bytes == 0


def test_a_copy_that_was_to_move_is_let_go_and_does_not_end_a_replica() -> None:
    member, _ = follower()
    member.follow(EPOCH, wave(1, standing=True), THERE, no_way)
    member.follow(EPOCH, wave(2), THERE, no_way)
    fill(member, 1, version=4)
    fill(member, 2, version=5)
    member.unfollow(EPOCH, 2)
    assert claims(member) == [(4, 4, True)]


def test_a_partition_that_was_moved_away_can_be_claimed_by_who_had_it() -> None:
    member = member_of([3])
    member.report = lambda _: None  # nobody announces a gate
    carried = assignment([], start=0, carried=True)
    assert member.assign(LATER, carried)
    stock = member.stock(Epoch(EPOCH.term, LATER.n + 1))
    assert stock is not None
    assert [(c.partition, c.version, c.copy) for c in stock.claims] == [(P0, 0, True)]


def test_a_sum_brings_the_skips_behind_it() -> None:
    member, _ = follower()
    member.follow(EPOCH, wave(1, standing=True), THERE, no_way)
    fill(member, 1, version=4)
    block = member.following.block((EPOCH, 1), P0, 4)
    assert block is not None
    advance = Advance(P0, 4, count=0, step=4, skipped=(Interval(48, 50),))
    block.follow(advance)
    member.following.advanced((EPOCH, 1), advance)
    stock = member.stock(LATER)
    assert stock is not None
    assert stock.skips == (Interval(48, 50),)
    with pytest.raises(Sealed):
        block.follow(Advance(P0, 5, count=0, step=4))
