"""A flat vector of parameters cut into partitions, the unit of acceptance, of ownership and of transfer."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

MAX_PARTITION_BYTES = 1 << 20
"""A partition's part of a push is received whole into a buffer that has to fit the cache (DESIGN, section 3)."""
ALIGN_BYTES = 64
"""Partitions begin at cache lines, so that two threads never write the same one."""
SMALL_PARTITION_BYTES = 16 << 10
"""Below this a partition costs more than balance gains: the fixed cost of a frame outweighs its bytes."""
BIG_MODEL_BYTES = 100 << 20
UNEVEN, UNEVEN_BIG = 1.3, 1.1
"""Fullest shard over the mean that must be reachable: for any model, and from `BIG_MODEL_BYTES` on."""


class Slice(NamedTuple):
    """Elements ``start`` to ``stop - 1`` of the vector."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.stop - self.start


def partitions(size: int, itemsize: int, shards_max: int) -> list[Slice]:
    """Cut a vector of `size` elements of `itemsize` bytes; partition *i* is the *i*-th slice.

    Slices are of at most `MAX_PARTITION_BYTES`, start at cache lines and differ by one line at most, but for the last,
    which may end in the middle of one. There is one for each of `shards_max` shards as long as every slice can have a
    line, and more where slices stay above `SMALL_PARTITION_BYTES` and any number of shards up to `shards_max` would
    otherwise be filled too unevenly. No element, no slice.
    """
    if size < 0 or itemsize < 1 or shards_max < 1:
        raise ValueError(
            f"no partitions: size {size}, itemsize {itemsize}, shards_max {shards_max}"
        )
    if itemsize > MAX_PARTITION_BYTES:
        raise ValueError(f"an element of {itemsize} bytes does not fit a partition")
    line = math.lcm(ALIGN_BYTES, itemsize) // itemsize
    if line * itemsize > MAX_PARTITION_BYTES:
        line = 1
    lines = -(-size // line)
    count = _count(size * itemsize, lines, MAX_PARTITION_BYTES // (line * itemsize), shards_max)
    starts = [min(i * lines // count * line, size) for i in range(count + 1)] if count else []
    return [Slice(a, b) for a, b in pairwise(starts)]


def _count(size_bytes: int, lines: int, lines_each: int, shards_max: int) -> int:
    needed = max(-(-lines // lines_each), min(shards_max, lines))
    most = max(needed, size_bytes // SMALL_PARTITION_BYTES)
    limit = UNEVEN_BIG if size_bytes >= BIG_MODEL_BYTES else UNEVEN
    return next((n for n in range(needed, most + 1) if _unevenness(n, shards_max) <= limit), needed)


def _unevenness(count: int, shards_max: int) -> float:
    """Fullest shard over the mean, of equal partitions, for the worst number of shards."""
    return (
        max((-(-count // s) * s / count for s in range(1, shards_max + 1)), default=1.0)
        if count
        else 1.0
    )
