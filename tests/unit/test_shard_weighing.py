"""Shards that are not equally fast: what they tell of their work, and when partitions are to lie otherwise for it."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elps.contracts.ids import PartitionId, ShardId
from elps.psshard.core.commands import Exchange, Follow, Remark
from elps.psshard.core.labour import FOLD_S, Labour
from elps.psshard.core.moving import Moving
from elps.psshard.core.weighing import LOOK_S, LOOKS, REST_S, Weighing, slowest_s

A, B, C = (ShardId(name) for name in "abc")
MIB = 1 << 20
BYTE_S = 1e-9
"""What a byte costs a machine that nobody else uses."""
costs = st.floats(1.0, 200.0)
checked = settings(deadline=None, max_examples=15)


class Shown(NamedTuple):
    """A job on shards that take so many times as long for a byte."""

    factors: dict[ShardId, float]
    sizes: dict[PartitionId, int]
    placed: dict[PartitionId, ShardId]

    @classmethod
    def even(cls, factors: dict[ShardId, float], partitions: int = 24) -> Shown:
        names = sorted(factors)
        sizes = {PartitionId(p): MIB for p in range(partitions)}
        return cls(factors, sizes, {p: names[p % len(names)] for p in sizes})

    @property
    def costs(self) -> dict[ShardId, float]:
        return {s: f * BYTE_S for s, f in self.factors.items()}

    @property
    def work_s(self) -> float:
        return slowest_s(self.costs, self.sizes, self.placed)


def look(
    weighing: Weighing, shown: Shown, times: int, *, beside_s: float = 0.0, at: float = 0.0
) -> list[str]:
    """As many looks, each with what the shards tell then; an iteration takes the slowest's work and `beside_s`."""
    reasons, version = [], int(at * 1000)
    for i in range(times):
        now = at + (i + 1) * LOOK_S
        for shard, cost in shown.costs.items():
            weighing.told(shard, cost)
        iteration_s = beside_s + shown.work_s
        weighing.reached(version := version + 1, now - iteration_s)
        weighing.reached(version := version + 1, now)
        reasons.append(weighing.look(shown.sizes, sorted(shown.factors), shown.placed, now))
    return reasons


@checked
@given(st.lists(costs, min_size=2, max_size=5))
def test_the_slowest_part_of_an_iteration_gets_shorter_or_nothing_is_changed(
    factors: list[float],
) -> None:
    names = [ShardId(f"s{i}") for i in range(len(factors))]
    shown, weighing = Shown.even(dict(zip(names, factors, strict=True))), Weighing()
    reasons = look(weighing, shown, LOOKS + 2)
    target = weighing.target(shown.sizes, names, shown.placed)
    assert set(target) == set(shown.sizes)
    assert set(target.values()) == set(names), "each keeps one at least"
    after = slowest_s(shown.costs, shown.sizes, target)
    if any(reasons):
        assert after <= 0.8 * shown.work_s
    else:
        assert target == shown.placed
        assert max(factors) <= 3 * min(factors), factors


def test_a_change_waits_until_it_was_better_several_times() -> None:
    shown, weighing = Shown.even({A: 1.0, B: 10.0}), Weighing()
    assert [bool(r) for r in look(weighing, shown, LOOKS + 1)] == [False, False, True, False]
    assert weighing.target(shown.sizes, [A, B], shown.placed) != shown.placed


@checked
@given(st.lists(st.tuples(st.floats(0.9, 1.1), st.floats(0.9, 1.1)), min_size=20, max_size=20))
def test_noise_of_a_tenth_moves_nothing(noise: list[tuple[float, float]]) -> None:
    weighing = Weighing()
    for i, (a, b) in enumerate(noise):
        assert look(weighing, Shown.even({A: a, B: b}), 1, at=i * LOOK_S) == [""]


def test_what_is_little_of_an_iteration_is_left_alone() -> None:
    assert not any(look(Weighing(), Shown.even({A: 1.0, B: 10.0}), 6, beside_s=30.0))


def test_a_copy_that_costs_more_than_it_saves_in_a_minute_is_not_made() -> None:
    slow = Shown.even({A: 1.0, B: 1.4}, partitions=4000)
    saved_s, moved = slow.work_s - 4000 * MIB * BYTE_S / (1 + 1 / 1.4), 4000 * MIB / 12
    few = 60 / (moved * 10e-9 / saved_s)
    assert not any(look(Weighing(), slow, 5, beside_s=1.2 * few))


def test_a_shard_of_which_nothing_is_known_counts_like_the_middle_one() -> None:
    weighing, shown = Weighing(), Shown.even({A: 1.0, B: 10.0, C: 1.0})
    known = shown._replace(factors={A: 1.0, B: 10.0})
    reasons = []
    for i in range(LOOKS + 1):
        for shard, cost in known.costs.items():
            weighing.told(shard, cost)
        weighing.reached(i, float(i))
        reasons.append(weighing.look(shown.sizes, [A, B, C], shown.placed, (i + 1) * LOOK_S))
    assert any(reasons)
    held = list(weighing.target(shown.sizes, [A, B, C], shown.placed).values())
    assert held.count(A) > held.count(C) > held.count(B)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1.0, 0.0, 1e9])
def test_what_cannot_be_is_passed_over(bad: float) -> None:
    weighing = Weighing()
    weighing.told(A, bad)
    weighing.told(B, 1e-9)
    weighing.reached(0, 0.0)
    weighing.reached(1, 1.0)
    shown = Shown.even({A: 1.0, B: 1.0})
    assert not any(
        weighing.look(shown.sizes, [A, B], shown.placed, i * LOOK_S) for i in range(1, 6)
    )


def test_a_shard_that_is_slow_every_other_minute_is_not_followed_for_ever() -> None:
    weighing, changes, shown = Weighing(), 0, Shown.even({A: 1.0, B: 1.0})
    for i in range(900):  # half an hour, changing each minute
        slow = 10.0 if (i // 30) % 2 else 1.0
        now = shown._replace(factors={A: 1.0, B: slow})
        if any(look(weighing, now, 1, at=i * LOOK_S)):
            changes += 1
            shown = now._replace(placed=weighing.target(now.sizes, [A, B], now.placed))
    assert 1 <= changes <= 8


def test_a_slow_shard_gives_partitions_away_by_the_moves_and_gets_them_back() -> None:
    shown = Shown.even({A: 1.0, B: 10.0})
    moving, now, version = Moving(shown.sizes, shown.placed), 0.0, 0
    moving.want([A, B])
    held: list[int] = []
    for factor in (10.0, 1.0):
        remarks = []
        for _ in range(60):
            now, version = now + LOOK_S, version + 1
            moving.worked(A, 20 * BYTE_S)
            moving.worked(B, 20 * factor * BYTE_S)
            for command in moving.look(version, now):
                remarks.append(command)
                if isinstance(command, Follow):
                    for target in {m.target for m in command.moves}:
                        moving.followed(target, command.wave, 0, version + 1, now)
            for command in moving.still(version):
                assert isinstance(command, Exchange)
                for shard in (A, B):
                    moving.took_map(shard, moving.exchanges)
        held.append(list(moving.placed.values()).count(B))
        assert any(isinstance(c, Remark) and c.what == "shards_weighed" for c in remarks)
    assert held[0] <= 3
    assert held[1] >= 10


# --- what a shard tells -----------------------------------------------------------------------------------------------


def work(labour: Labour, begin: float, iterations: int, s_per_byte: float) -> float:
    """Each with three gradients and a new version, of 1,000 bytes."""
    for _ in range(iterations):
        for _ in range(3):
            labour.added(s_per_byte * 250)
        begin += 0.05
        labour.wrote(s_per_byte * 250, 1_000, begin)
    return begin


def test_work_is_told_for_a_byte_and_a_version_once_there_was_enough_of_it() -> None:
    labour = Labour()
    at = work(labour, 0.0, 3, 2e-6)
    assert labour.s_per_byte is None
    work(labour, at, 20, 2e-6)
    assert labour.s_per_byte == pytest.approx(2e-6)


def test_a_machine_that_becomes_slower_shows_within_seconds() -> None:
    labour = Labour()
    at = work(labour, 0.0, 20, 1e-6)
    work(labour, at, round(12 * FOLD_S / 0.05), 8e-6)
    assert labour.s_per_byte == pytest.approx(8e-6, rel=0.05)


def test_who_takes_no_time_tells_nothing() -> None:
    labour = Labour()
    work(labour, 0.0, 20, 0.0)
    assert labour.s_per_byte is None


def test_a_rest_is_kept_after_a_change() -> None:
    weighing, shown = Weighing(), Shown.even({A: 1.0, B: 10.0})
    assert any(look(weighing, shown, LOOKS))
    placed = weighing.target(shown.sizes, [A, B], shown.placed)
    back = Shown({A: 10.0, B: 1.0}, shown.sizes, placed)
    at = LOOKS * LOOK_S
    while not any(look(weighing, back, 1, at=at)):
        at += LOOK_S
    assert at >= REST_S
