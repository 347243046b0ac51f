"""Giving partitions to shards."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elps.contracts.ids import PartitionId, ShardId
from elps.placement import partitions, place
from elps.placement.placing import HIGH


def names(count: int) -> list[ShardId]:
    return [ShardId(f"shard-{i}") for i in range(count)]


def held(sizes: list[int], placed: dict[PartitionId, ShardId], shards: list[ShardId]) -> list[int]:
    return [sum(sizes[p] for p, at in placed.items() if at == s) for s in shards]


def moved(
    before: dict[PartitionId, ShardId], after: dict[PartitionId, ShardId]
) -> list[PartitionId]:
    return [p for p in after if before.get(p) != after[p]]


sizes_of = st.lists(st.integers(0, 1 << 20), max_size=60)


@given(sizes_of, st.integers(1, 9))
def test_every_partition_gets_one_of_the_shards_and_the_highest_is_at_most_one_partition_above_the_mean(
    sizes: list[int], count: int
) -> None:
    placed = place(sizes, names(count))
    assert sorted(placed) == list(range(len(sizes)))
    full = held(sizes, placed, names(count))
    assert sum(full) == sum(sizes)
    assert max(full) <= sum(sizes) / count * HIGH + max(sizes, default=0) + 1e-6


@given(st.integers(1, 60_000_000), st.integers(1, 16), st.data())
def test_what_the_cutter_makes_is_spread_evenly(size: int, most: int, data: st.DataObject) -> None:
    shards = names(data.draw(st.integers(1, most)))
    sizes = [s.size * 4 for s in partitions(size, 4, most)]
    full = held(sizes, place(sizes, shards), shards)
    uneven = max(full) / (sum(full) / len(shards))
    if size * 4 >= 100 << 20:
        assert uneven <= 1.1
    elif size * 4 >= most * 4 * (16 << 10):
        assert uneven <= 1.31  # a line more or less


def test_one_large_tensor_and_fifty_small_ones_fill_four_shards_evenly() -> None:
    sizes = [s.size * 4 for s in partitions(10_000_000 + 50 * 100, 4, 4)]
    full = held(sizes, place(sizes, names(4)), names(4))
    assert max(full) / (sum(full) / 4) <= 1.1


@given(sizes_of, st.integers(1, 9))
def test_the_order_in_which_things_are_named_does_not_matter(sizes: list[int], count: int) -> None:
    shards = names(count)
    renamed = {PartitionId(i): size for i, size in reversed(list(enumerate(sizes)))}
    assert place(sizes, shards) == place(renamed, shards[::-1])


@given(sizes_of, st.integers(1, 9))
def test_a_placement_that_was_made_here_is_left_alone(sizes: list[int], count: int) -> None:
    placed = place(sizes, names(count))
    assert place(sizes, names(count), current=placed) == placed


@given(st.integers(1, 200), st.integers(2, 9))
def test_when_a_shard_goes_only_what_it_held_moves(pieces: int, count: int) -> None:
    sizes = [1 << 20] * pieces
    before = place(sizes, names(count))
    after = place(sizes, names(count)[:-1], current=before)
    assert all(before[p] == names(count)[-1] for p in moved(before, after))


@given(st.integers(1, 200), st.integers(1, 24))
def test_when_a_shard_joins_it_is_given_its_part_and_nothing_else_moves(
    pieces: int, count: int
) -> None:
    sizes = [1 << 20] * pieces
    before = place(sizes, names(count))
    after = place(sizes, names(count + 1), current=before)
    new = ShardId(f"shard-{count}")
    assert all(after[p] == new for p in moved(before, after))
    assert held(sizes, after, [new])[0] >= (pieces // (count + 1)) // 2 * (1 << 20)
    assert len(moved(before, after)) <= -(-pieces // (count + 1))


def test_load_counts_as_much_as_bytes() -> None:
    loads = {PartitionId(0): 10.0, PartitionId(1): 10.0, PartitionId(2): 1.0, PartitionId(3): 1.0}
    placed = place([100] * 4, names(2), loads=loads)
    assert placed[PartitionId(0)] != placed[PartitionId(1)]
    assert sorted(held([100] * 4, placed, names(2))) == [200, 200]


def test_a_shard_of_twice_the_capacity_gets_twice_as_much() -> None:
    a, b = names(2)
    assert held([10] * 30, place([10] * 30, [a, b], capacities={a: 2.0, b: 1.0}), [a, b]) == [
        200,
        100,
    ]


def test_partitions_of_no_bytes_are_placed_too() -> None:
    assert len(place([0, 0, 0], names(2))) == 3


def test_without_shards_only_nothing_can_be_placed() -> None:
    assert place([], []) == {}
    with pytest.raises(ValueError, match="no shard"):
        place([1], [])


def test_a_negative_size_and_a_capacity_of_zero_are_refused() -> None:
    with pytest.raises(ValueError, match="the size of partition 0 is -1"):
        place([-1], names(1))
    with pytest.raises(ValueError, match="the capacity of shard-0 is 0"):
        place([1], names(1), capacities={ShardId("shard-0"): 0.0})
