"""Replicas: how they are made and waited for, and that a lost shard takes nothing with it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parent))

from protocol_marks import later, rare
from protocol_replica_faults import REPLICA_FAULTS
from protocol_world import bad_among

from elps.contracts.epoch import Epoch, Term
from elps.contracts.ids import PartitionId, ShardId
from elps.placement import place_replicas
from elps.psshard.core import commands as do
from elps.psshard.core.inheriting import Claim, History, Inheritance, Stock, Stocktaking
from elps.psshard.core.replicating import STALLED_S, Replicas

SCHEDULES, CHUNK = 3_000, 500
A, B, C = ShardId("a"), ShardId("b"), ShardId("c")
P0, P1, P2 = (PartitionId(n) for n in range(3))
PLACED = {P0: A, P1: B}


BLOCKS = [
    pytest.param(first, marks=later(first, thorough=500, long=2_000))
    for first in range(0, SCHEDULES, CHUNK)
]
"""The later ones are no part of `make test`."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("first", BLOCKS)
def test_every_schedule_in_which_shards_are_lost_ends_exactly(first: int) -> None:
    """And where there were replicas, nothing goes back to a checkpoint that is older than they are."""
    bad = list(bad_among(range(first, first + CHUNK), focus="copies", thorough=True))
    assert not bad, "; ".join(f"{seed}: {why}" for seed, why in bad[:5])


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", rare(REPLICA_FAULTS, "copied-skips", "no-spare"))
def test_a_rule_of_replicas_that_is_left_out_is_found(name: str) -> None:
    fault = REPLICA_FAULTS[name]
    found = any(bad_among(fault.seeds, **fault.how))
    assert found, f"{fault.what}: nothing was wrong in {fault.within} schedules"


# --- the leader's side ------------------------------------------------------------------------------------------------


class Play:
    """Replicas of two partitions on two shards, and what they command."""

    def __init__(self) -> None:
        self.replicas = Replicas({P0: 10, P1: 10})
        self.replicas.want([A, B])
        self.now = 0.0

    def look(self, version: int, gate: int, **how: Any) -> list[Any]:
        return list(self.replicas.look(version, gate, PLACED, self.now, **how))

    def follow(self, version: int, wave: int = 0) -> None:
        for shard in (A, B):
            self.replicas.followed(shard, wave, 0, version, self.now)

    def counting(self) -> None:
        """They count from version 3 on."""
        (follow,) = self.look(2, 2)
        assert isinstance(follow, do.Follow)
        self.follow(2)
        assert [c.what for c in self.look(3, 2)] == []
        self.follow(3)
        assert [c.what for c in self.look(3, 2)] == ["replicated"]


def test_they_are_waited_for_once_they_are_close_and_count_once_they_have_held_what_was_waited_for() -> (
    None
):
    play = Play()
    (follow,) = play.look(2, 2)
    assert follow == do.Follow(0, (do.Move(P0, A, B), do.Move(P1, B, A)), standing=True)
    assert play.replicas.hold(3), "what is only being made is not waited for"
    play.follow(2)
    assert play.look(2, 2) == []
    assert play.replicas.hold(3), (
        "after the gate others may have left the version that a copy came at"
    )
    play.look(3, 2)
    assert not play.replicas.hold(3)
    assert not play.replicas.counts
    assert "waiting for the replicas on a, b" in play.replicas.waiting_for(3)
    play.follow(3)
    (remark,) = play.look(3, 2)
    assert remark.what == "replicated"
    assert play.replicas.hold(3)
    assert play.replicas.state() == "every partition has one"


def test_when_the_way_to_one_breaks_the_gate_waits_for_new_ones_but_not_for_ever() -> None:
    play = Play()
    play.counting()
    (remark,) = play.replicas.failed(0, "a: broken", play.now)
    assert remark.what == "replicas_given_up"
    assert not play.replicas.hold(4), "who was at the other end may be dead"
    play.now += 1.0
    (follow,) = play.look(4, 3)
    assert follow.wave == 1
    assert not play.replicas.hold(4)
    play.now += STALLED_S
    play.look(4, 3)
    assert play.replicas.hold(4)
    assert play.replicas.state() == "being made"


def test_one_that_makes_no_progress_is_given_up_and_made_again_later() -> None:
    play = Play()
    play.counting()
    assert play.look(4, 3) == []
    play.now += STALLED_S + 1
    unfollow, remark = play.look(4, 3)
    assert unfollow == do.Unfollow(0, standing=True)
    assert "make no progress" in remark.reason
    assert play.replicas.hold(4)
    play.now += 1.0
    assert [type(c) for c in play.look(4, 4)] == [do.Follow]


def test_nothing_is_begun_while_the_map_is_about_to_be_exchanged() -> None:
    play = Play()
    assert play.look(2, 2, settling=True) == []
    assert [type(c) for c in play.look(2, 2)] == [do.Follow]


def test_a_job_on_one_shard_waits_for_no_replica_and_gets_them_when_a_second_one_comes() -> None:
    replicas = Replicas({P0: 10})
    replicas.want([A])
    assert replicas.look(0, 0, {P0: A}, 0.0) == []
    assert replicas.state() == "none: there is no second shard"
    assert replicas.hold(1)
    replicas.want([A, B])
    (follow,) = replicas.look(1, 1, {P0: A}, 1.0)
    assert follow == do.Follow(0, (do.Move(P0, A, B),), standing=True)
    assert list(replicas.want([A])) == [do.Unfollow(0, standing=True)]


def test_a_job_without_replicas_has_none() -> None:
    replicas = Replicas()
    assert list(replicas.want([A, B])) == []
    assert replicas.look(1, 1, PLACED, 0.0) == []
    assert replicas.hold(1)
    assert replicas.state() == ""


# --- where they lie ---------------------------------------------------------------------------------------------------


def test_they_lie_beside_no_original_on_another_host_and_balanced() -> None:
    sizes = {PartitionId(n): 10 for n in range(12)}
    shards = [ShardId(f"s{n}") for n in range(4)]
    owners = {p: shards[p % 4] for p in sizes}
    hosts = {s: "one" if n < 2 else "two" for n, s in enumerate(shards)}
    placed = place_replicas(sizes, owners, shards, hosts)
    assert all(hosts[placed[p]] != hosts[owners[p]] for p in sizes)
    assert {s: list(placed.values()).count(s) for s in shards} == dict.fromkeys(shards, 3)
    alone = dict.fromkeys(shards, "one")
    assert all(
        placed != owners[p] for p, placed in place_replicas(sizes, owners, shards, alone).items()
    )
    assert place_replicas(sizes, owners, shards[:1], hosts) == {}


# --- what is taken ----------------------------------------------------------------------------------------------------

OPENED = Epoch(Term(3, 33), 2)


def verdict(**claims: list[Claim]) -> Inheritance | str:
    taking = Stocktaking([ShardId(s) for s in claims], OPENED, None)
    for shard, what in claims.items():
        taking.took(ShardId(shard), Stock(History(OPENED, "digest", 20), OPENED, tuple(what)))
    return taking.verdict()


def claim(p: int, version: int, *, oldest: int | None = None, copy: bool = False) -> Claim:
    return Claim(PartitionId(p), 10 * p, 10 * p + 10, version, version, oldest=oldest, copy=copy)


def test_a_copy_goes_on_in_place_of_an_owner_that_is_lost_and_that_is_said() -> None:
    found = verdict(a=[claim(0, 8), claim(1, 7, copy=True)])
    assert isinstance(found, Inheritance)
    assert (found.version, found.ahead, found.promoted) == (7, True, 1)


def test_an_owner_goes_before_its_copy_and_the_newer_before_the_older() -> None:
    found = verdict(
        a=[claim(0, 8, copy=True), claim(1, 8)], b=[claim(0, 8), claim(1, 7, copy=True)]
    )
    assert isinstance(found, Inheritance)
    assert (found.placed, found.promoted, found.ahead) == ({P0: B, P1: A}, 0, False)


def test_a_copy_that_came_at_a_later_version_cannot_give_the_one_before() -> None:
    whole = [claim(0, 7)], [claim(1, 8, oldest=8, copy=True)]
    assert verdict(a=whole[0], b=whole[1]) == "the shards have versions 7 to 8"
    older = [*whole[1], claim(0, 8, oldest=7, copy=True)]
    assert isinstance(verdict(a=[], b=older), Inheritance)


def test_a_shard_that_is_lost_while_stocks_are_taken_is_not_waited_for() -> None:
    taking = Stocktaking([A, B], OPENED, None)
    taking.took(A, Stock(History(OPENED, "digest", 10), OPENED, (claim(0, 7, copy=True),)))
    assert taking.awaited == [B]
    taking.lost(B)
    assert taking.awaited == []
    assert isinstance(taking.verdict(), Inheritance)
    taking.lost(A)
    assert taking.verdict() == "no shard has anything of it"
