"""A model's state on a shard: the same next value, however an iteration was cut, in whatever order its parts came."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from elps.contracts.epoch import Epoch, Term
from elps.contracts.ids import PartitionId
from elps.contracts.job import JobDocument, Optimizer
from elps.psshard.block import Block
from elps.psshard.core.inheriting import History
from elps.psshard.core.part import Advance
from elps.psshard.identity import Identity
from elps.psshard.live import blocks_of
from elps.psshard.untrained import Segment, segments_of
from elps.stream.geometry import Geometry
from elps.stream.interval import Interval
from elps.tasks.layout import Layout

SEGMENTS = (Segment(5, 8, "mean"), Segment(8, 10, "max"), Segment(10, 13, "last"))
SIZE, SAMPLES = 13, 24


def document(**more: Any) -> JobDocument:
    spec = Optimizer(name="momentum", lr=0.5, weight_decay=0.1)
    return JobDocument(task="t", iterations=9, optimizer=spec, dtype="float64", **more)


def advance(t: int, count: int) -> Advance:
    return Advance(PartitionId(0), t, count, t + 1, ())


def found(interval: Interval, values: Any) -> Any:
    """What a trainer pushes of `values`, one row a sample."""
    rows = values[interval.lo : interval.hi]
    out = rows.sum(axis=0)
    out[8:10] = rows[:, 8:10].max(axis=0)
    out[10:] = rows[-1, 10:]
    return out


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    bounds=st.lists(st.integers(1, SIZE - 1), unique=True, max_size=4).map(sorted),
    deterministic=st.booleans(),
)
def test_any_cut_order_and_partition_gives_the_plain_loops_state(
    seed: int, bounds: list[int], deterministic: bool
) -> None:
    rng = np.random.default_rng(seed)
    slices = [
        (n, lo, hi) for n, (lo, hi) in enumerate(zip([0, *bounds], [*bounds, SIZE], strict=True))
    ]
    blocks = blocks_of(document(deterministic=deterministic), slices, 9, SEGMENTS)
    start = rng.standard_normal(SIZE)
    for n, lo, hi in slices:
        blocks[PartitionId(n)].load(0, 0, {"values": start[lo:hi]})
    plain = Block(document(), 5, 9)
    plain.load(0, 0, {"values": start[:5]})
    for t in range(3):
        values = rng.standard_normal((SAMPLES, SIZE))
        shares = rng.integers(1, 9, rng.integers(1, 6)).tolist()
        cut = [c for c in Geometry(SAMPLES, SAMPLES).cut(Interval(0, SAMPLES), shares) if c.size]
        skipped = cut.pop(int(rng.integers(len(cut)))) if len(cut) > 1 else Interval(0, 0)
        counted = [n for n in range(SAMPLES) if not skipped.lo <= n < skipped.hi]
        for n, lo, hi in slices:
            for at in rng.permutation(len(cut)):
                blocks[PartitionId(n)].add(t, cut[at], found(cut[at], values)[lo:hi])
            blocks[PartitionId(n)].write(Advance(PartitionId(n), t, len(counted), t + 1, ()))
        plain.add(t, Interval(0, SAMPLES), values[counted, :5].sum(axis=0))
        plain.write(advance(t, len(counted)))
        got = np.concatenate([blocks[PartitionId(n)].values(t + 1) for n, _, _ in slices])
        np.testing.assert_allclose(got[:5], plain.values(t + 1), rtol=1e-12)
        np.testing.assert_allclose(got[5:8], values[counted, 5:8].mean(axis=0), rtol=1e-12)
        np.testing.assert_array_equal(got[8:10], values[counted, 8:10].max(axis=0))
        np.testing.assert_array_equal(got[10:], values[counted[-1], 10:])


def test_the_state_stays_as_it_is_where_nobody_found_anything() -> None:
    block = blocks_of(document(), [(0, 3, SIZE)], 9, SEGMENTS)[PartitionId(0)]
    start = np.arange(10.0)
    block.load(0, 0, {"values": start})
    block.write(advance(0, 7))
    np.testing.assert_allclose(block.values(1)[2:], start[2:])
    block.write(advance(1, 0))
    np.testing.assert_allclose(block.values(2)[2:], start[2:])


def test_a_copy_that_follows_has_the_same_state() -> None:
    owner, copy = (blocks_of(document(), [(0, 0, SIZE)], 9, SEGMENTS)[PartitionId(0)] for _ in "oc")
    for block in (owner, copy):
        block.load(0, 0, {"values": np.arange(13.0)})

    def follow(what: Advance, total: Any) -> None:
        np.copyto(copy.total, total)
        copy.follow(what)

    owner.tell(follow)
    rng = np.random.default_rng(0)
    for t in range(3):
        for half in (Interval(12, 24), Interval(0, 12)):
            owner.add(t, half, found(half, rng.standard_normal((24, SIZE))))
        owner.write(advance(t, 24))
        np.testing.assert_array_equal(copy.values(t + 1), owner.values(t + 1))


def test_the_segments_come_from_the_jobs_identity() -> None:
    arrays = {"a": np.zeros(2), "b": np.zeros(3), "c": np.zeros(1), "w": np.zeros(4)}
    layout = Layout.of(arrays, "float32", {"a": "mean", "b": "mean", "c": "last"})

    def history(layout: Layout) -> History:
        identity = Identity(
            samples=1, test_samples=0, layout=layout.to_wire(), fingerprint="", code_hash=""
        )
        return History(Epoch(Term(1, 1), 1), identity.text, layout.size)

    assert segments_of(history(layout)) == (Segment(4, 9, "mean"), Segment(9, 10, "last"))
    assert segments_of(history(Layout.of(arrays, "float32"))) == ()
    assert segments_of(None) == ()
