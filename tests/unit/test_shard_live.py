"""The arrays of a partition without a barrier: each gradient applied as it comes, and never half of it seen."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from elps import optim
from elps.contracts.ids import PartitionId
from elps.contracts.job import Batch, JobDocument, Optimizer, Schedule
from elps.psshard.block import Sealed
from elps.psshard.core.part import Advance
from elps.psshard.live import LiveBlock, blocks_of
from elps.stream.interval import Interval


def document(**fields: Any) -> JobDocument:
    defaults: dict[str, Any] = {
        "task": "linear",
        "iterations": 100,
        "sync": "asp",
        "dtype": "float64",
        "batch": Batch(global_=8),
        "optimizer": Optimizer(name="sgd", lr=8.0),
    }
    return JobDocument(**(defaults | fields))


def block(size: int = 3, **fields: Any) -> LiveBlock:
    made = blocks_of(document(**fields), [(0, 0, size)], 100)[PartitionId(0)]
    assert isinstance(made, LiveBlock)
    made.load(0, 0, {"values": np.zeros(size)})
    return made


def test_a_gradient_is_applied_as_its_mean_at_its_share_of_the_rate() -> None:
    one = block()
    one.add(0, Interval(0, 2), np.full(3, -2.0))
    np.testing.assert_array_equal(one.values(0), 2.0)
    one.add(5, Interval(40, 44), np.full(3, -4.0))
    np.testing.assert_array_equal(one.values(7), 6.0)
    assert one.newest() == (0, 2)


def test_pieces_add_up_to_the_step_of_a_whole_iteration() -> None:
    rng = np.random.default_rng(1)
    whole, pieces = rng.standard_normal(3), block()
    pieces.add(0, Interval(0, 2), whole * 0.25)
    pieces.add(0, Interval(2, 8), whole * 0.75)
    np.testing.assert_allclose(pieces.values(0), -whole, rtol=1e-15)


def test_adam_counts_the_pieces_and_the_schedule_the_iterations() -> None:
    spec = Optimizer(name="adam", lr=0.5)
    one = block(optimizer=spec, schedule=Schedule(name="step", step_size=10, gamma=0.1))
    expected, state = np.zeros(3), {"m": np.zeros(3), "v": np.zeros(3)}
    gradient = np.array([1.0, -2.0, 3.0])
    for step, (t, lo, rate) in enumerate([(3, 24, 0.5), (12, 96, 0.05), (9, 72, 0.5)], 1):
        one.add(t, Interval(lo, lo + 4), gradient)
        optim.apply(spec, gradient, 0.25, expected, expected, state, rate / 2, step)
    np.testing.assert_allclose(one.values(0), expected, rtol=1e-12)


def test_a_gradient_of_nothing_is_a_step_all_the_same() -> None:
    one = block(optimizer=Optimizer(name="momentum", lr=8.0, momentum=0.5))
    one.add(0, Interval(0, 8), np.full(3, -8.0))
    one.add(1, Interval(8, 16), None)
    np.testing.assert_array_equal(one.values(0), 12.0)
    assert one.newest()[1] == 2


def test_what_is_applied_beyond_the_version_is_known_and_goes_to_the_heir() -> None:
    one = block()
    for t, lo, hi in ((1, 10, 12), (0, 0, 8), (1, 8, 10), (2, 20, 22)):
        one.add(t, Interval(lo, hi), np.ones(3))
    assert one.applied() == (Interval(0, 8), Interval(8, 12), Interval(20, 22))
    one.write(Advance(PartitionId(0), 0, count=8, step=1))
    heir = one.heirloom()
    assert heir.applied() == (Interval(8, 12), Interval(20, 22))
    assert heir.newest() == (1, 4)
    assert heir.oldest == 1
    with pytest.raises(Sealed):
        one.add(2, Interval(22, 24), np.ones(3))
    heir.add(2, Interval(22, 24), np.ones(3))
    assert heir.applied() == (Interval(8, 12), Interval(20, 24))
    assert one.applied() == (Interval(8, 12), Interval(20, 22))


def test_nobody_reads_half_a_step_while_others_apply() -> None:
    size, steps = 200_000, 60
    one = block(size)
    seen: list[tuple[float, float]] = []
    done = threading.Event()

    def read() -> None:
        into = np.zeros(size)
        while not done.is_set():
            one.copy_into(0, into)
            seen.append((into.min(), into.max()))
            copy = one.readable(0)
            seen.append((copy.min(), copy.max()))

    def apply(worker: int) -> None:
        gradient = np.full(size, -1.0)
        for t in range(steps):
            one.add(t, Interval(8 * t + worker, 8 * t + worker + 1), gradient)

    reader = threading.Thread(target=read)
    workers = [threading.Thread(target=apply, args=(w,)) for w in range(3)]
    for thread in (reader, *workers):
        thread.start()
    for thread in workers:
        thread.join()
    done.set()
    reader.join()
    assert seen
    assert all(low == high for low, high in seen)
    np.testing.assert_array_equal(one.values(0), 3.0 * steps)


def test_one_copy_of_the_values_is_held() -> None:
    one = block(1000, optimizer=Optimizer(name="adam"))
    assert one.size_bytes == 3 * 8000
