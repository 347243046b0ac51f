"""Cutting a flat vector into partitions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elps.placement import MAX_PARTITION_BYTES, Slice, partitions

MIB = 1 << 20
sizes = st.one_of(st.integers(0, 300), st.integers(0, 100_000), st.integers(0, 60_000_000))
itemsizes = st.sampled_from([2, 4, 8])


@given(sizes, itemsizes, st.integers(1, 33))
def test_slices_tile_the_vector_in_order(size: int, itemsize: int, shards: int) -> None:
    parts = partitions(size, itemsize, shards)
    assert [s.start for s in parts] == [0, *[s.stop for s in parts[:-1]]][: len(parts)]
    assert (parts[-1].stop if parts else 0) == size
    assert all(s.size > 0 for s in parts)


@given(sizes, itemsizes, st.integers(1, 33))
def test_slices_are_aligned_equal_and_at_most_a_mebibyte(
    size: int, itemsize: int, shards: int
) -> None:
    parts = partitions(size, itemsize, shards)
    in_bytes = [s.size * itemsize for s in parts]
    assert all(s.start * itemsize % 64 == 0 for s in parts)
    assert max(in_bytes, default=0) <= MAX_PARTITION_BYTES
    assert max(in_bytes[:-1], default=0) - min(in_bytes[:-1], default=0) <= 64


@given(sizes, itemsizes, st.integers(1, 33))
def test_every_shard_can_have_a_slice_where_there_are_lines_enough(
    size: int, itemsize: int, shards: int
) -> None:
    lines = -(-size * itemsize // 64)
    assert len(partitions(size, itemsize, shards)) >= min(shards, lines)


@given(st.integers(26_300_000, 60_000_000), st.integers(1, 33), st.data())
def test_a_big_model_can_be_spread_within_a_tenth_of_the_mean(
    size: int, shards: int, data: st.DataObject
) -> None:
    count = len(partitions(size, 4, shards))
    fewer = data.draw(st.integers(1, shards))
    assert -(-count // fewer) * fewer / count <= 1.1


def test_one_shard_gets_no_more_slices_than_a_mebibyte_demands() -> None:
    assert partitions(10_000, 4, 1) == [Slice(0, 10_000)]
    assert len(partitions(16 * MIB, 4, 1)) == 64


def test_an_odd_itemsize_is_cut_at_whole_elements_and_whole_lines() -> None:
    parts = partitions(1_000, 12, 3)
    assert parts[-1].stop == 1_000
    assert all(s.start * 12 % 64 == 0 for s in parts)


def test_an_empty_vector_has_no_slices() -> None:
    assert partitions(0, 4, 3) == []


@pytest.mark.parametrize(
    ("size", "itemsize", "shards"), [(-1, 4, 1), (1, 0, 1), (1, 4, 0), (1, 2 * MIB, 1)]
)
def test_nonsense_is_refused(size: int, itemsize: int, shards: int) -> None:
    with pytest.raises(ValueError, match=r"no partitions|does not fit"):
        partitions(size, itemsize, shards)
