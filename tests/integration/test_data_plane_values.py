"""A trainer's pushes and pulls over TCP: what arrives is exactly what was sent, of one version, counted once."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elps.contracts.job import Optimizer
from elps.placement import partitions
from elps.psshard.core.part import Advance
from elps.stream.interval import Interval
from elps.stream.order import Order
from elps.tasks.layout import Layout
from elps.tasks.running import OpenJob
from elps.wire.frames import Status
from elps.worker.trainer.gradient import Gradient

sys.path.insert(0, str(Path(__file__).parents[1]))

from data_plane import (
    EPOCH,
    cut_into,
    document,
    pull,
    push,
    resident_bytes,
    running,
)
from planes import Plane, planes, sums_of

__all__ = ["planes"]


LAYOUTS = {
    "one element": [1],
    "one": [1000],
    "many small": [3] * 40,
    "uneven": [1, 1000, 7, 65_536, 2],
    "just within one send": [16_000, 16_000],
    "large": [100_000, 131_072, 5],
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shards", [1, 2, 3])
@pytest.mark.parametrize("sizes", LAYOUTS.values(), ids=LAYOUTS)
def test_values_and_gradients_arrive_bit_for_bit(
    plane_of: Callable[..., Plane], sizes: list[int], shards: int, dtype: str
) -> None:
    doc = document(dtype=dtype, optimizer=Optimizer(name="sgd", lr=0.5))
    plane = plane_of(doc, cut_into(sizes), shards)
    rng = np.random.default_rng(sum(sizes))
    first = rng.standard_normal(plane.size).astype(dtype)
    first[0] = -0.0
    trainer = plane.trainer()
    trainer.connect()
    assert trainer.push_values(first) is Status.OK
    for shard in plane.shards:
        shard.member.gate(EPOCH, 10)
    got = plane.vector(7.0)
    assert pull(trainer, 0, 1, got) is Status.OK
    assert got.tobytes() == first.tobytes()
    gradient = rng.standard_normal(plane.size).astype(dtype)
    assert push(trainer, 0, Interval(0, 4), gradient) is Status.OK
    assert pull(trainer, 1, 2, got) is Status.OK
    kind = np.dtype(dtype).type
    assert got.tobytes() == (first - kind(0.5) * (gradient / kind(4))).tobytes()
    assert pull(trainer, 0, 3, got) is Status.OK  # the version before is still there
    assert got.tobytes() == first.tobytes()


def test_eighty_megabytes_go_there_and_back(plane_of: Callable[..., Plane]) -> None:
    size = 20_000_000
    slices = [(n, s.start, s.stop) for n, s in enumerate(partitions(size, 4, 2))]
    plane = plane_of(sums_of(), slices, 2)
    first = np.random.default_rng(3).standard_normal(size, np.float32)
    trainer = plane.trainer()
    assert trainer.push_values(first) is Status.OK
    for shard in plane.shards:
        shard.member.gate(EPOCH, 10)
    before = resident_bytes()
    assert push(trainer, 0, Interval(0, 1), first) is Status.OK
    assert push(trainer, 0, Interval(1, 4), np.ones_like(first)) is Status.OK
    grown = resident_bytes() - before
    got = np.empty_like(first)
    assert pull(trainer, 1, 1, got) is Status.OK
    np.testing.assert_array_equal(got, first - np.float32(4) * ((first + 1) / np.float32(4)))
    assert grown < 3 * first.nbytes  # the slabs' own pages, touched for the first time, and buffers


@pytest.mark.parametrize("staged", [False, True])
def test_four_workers_push_ones_a_thousand_times_and_every_parameter_ends_at_four_thousand(
    plane_of: Callable[..., Plane], staged: bool
) -> None:
    """The known case of updates lost or doubled, here without moves."""
    iterations = 1000 if not staged else 150
    plane = plane_of(sums_of(), cut_into([3, 5, 2, 4]), 2).begin()

    def work(me: int) -> None:
        trainer, got = plane.trainer(f"job-w{me}"), plane.vector()
        ones = plane.vector(1.0)
        for t in range(iterations):
            assert pull(trainer, t, t + 1, got) is Status.OK
            assert (got == -4.0 * t).all()
            lease = Interval(4 * t + me, 4 * t + me + 1)
            assert push(trainer, t, lease, ones, staged=staged) is Status.OK

    with running(*(lambda w=w: work(w) for w in range(4))):
        pass
    for shard in plane.shards:
        for part in shard.values(iterations):
            assert (part == -4.0 * iterations).all()


def test_one_pull_is_of_one_version_though_one_shard_is_slow(
    plane_of: Callable[..., Plane],
) -> None:
    """The known case of mixed versions: one of two shards is 200 ms late with each version."""
    plane = plane_of(sums_of(), cut_into([70_000, 70_000, 70_000]), 2).begin()
    slab = plane.shards[1].member._slab
    assert slab is not None
    write = slab.write

    def slow_write(advance: Advance) -> float:
        time.sleep(0.2)
        return write(advance)

    slab.write = slow_write  # type: ignore[method-assign]
    versions = 6
    pulled: list[int] = []

    def read() -> None:
        trainer, got = plane.trainer("job-w2"), plane.vector()
        for version in range(versions + 1):
            status = pull(trainer, version, version + 1, got)
            if status is Status.OK:
                pulled.append(version)
                assert (got == -4.0 * version).all()
            else:
                assert status is Status.GONE

    def work() -> None:
        trainer, got = plane.trainer(), plane.vector()
        for t in range(versions):
            assert pull(trainer, t, t + 1, got) is Status.OK
            assert (got == -4.0 * t).all()
            assert push(trainer, t, Interval(4 * t, 4 * t + 4), plane.vector(4.0)) is Status.OK

    with running(read, work):
        pass
    assert versions in pulled


def test_what_was_pushed_from_a_temporary_is_not_seen_in_the_next_push(
    plane_of: Callable[..., Plane],
) -> None:
    """The known case of a stale buffer: the same key twice from arrays that are gone by then."""
    plane = plane_of(sums_of(), cut_into([1000, 70_000]), 1).begin()
    trainer, got = plane.trainer(), plane.vector()
    for t in range(5):
        lease = Interval(4 * t, 4 * t + 4)
        assert push(trainer, t, lease, plane.vector(4.0), staged=t % 2 == 1) is Status.OK
        junk = plane.vector(1e9)  # where the temporary was, most likely
        assert pull(trainer, t + 1, t + 1, got) is Status.OK
        assert (got == -4.0 * (t + 1)).all()
        del junk


class OddArrays:
    """A task whose gradient comes in every memory layout and byte order."""

    def __init__(self) -> None:
        base = np.arange(24, dtype=np.float64).reshape(4, 6)
        self.plain = {
            "transposed": base.T.copy(),
            "strided": base.ravel()[::2].copy(),
            "backwards": base.ravel()[::-1].copy(),
            "fortran": base.copy(),
            "big_endian": base.copy(),
            "halves": base.copy(),
            "scalar": np.array(5.0),
        }
        self.odd = {
            "transposed": base.T,
            "strided": np.repeat(base.ravel()[::2], 3)[::3],
            "backwards": base.ravel()[::-1],
            "fortran": np.asfortranarray(base),
            "big_endian": base.astype(">f4"),
            "halves": base.astype(np.float16),
            "scalar": np.array(5.0, ">f8"),
        }

    def init(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        return {name: np.zeros(value.shape) for name, value in self.plain.items()}

    def loss_and_grad(self, params: Any, batch: Any) -> tuple[float, dict[str, np.ndarray]]:
        return 0.0, self.odd


class Samples:
    def __len__(self) -> int:
        return 4

    def get(self, indices: np.ndarray) -> np.ndarray:
        return indices


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_arrays_of_any_memory_layout_and_byte_order_arrive_with_the_same_values(
    plane_of: Callable[..., Plane], dtype: str
) -> None:
    doc, task = sums_of(dtype=dtype), OddArrays()
    layout = Layout.of(task.init(np.random.default_rng(0)), dtype)
    job = OpenJob(doc, task, Samples(), None, layout, "", "")  # type: ignore[arg-type]
    cut = partitions(layout.size, layout.dtype.itemsize, 2)
    slices = [(n, s.start, s.stop) for n, s in enumerate(cut)]
    plane = plane_of(doc, slices, 2)
    trainer, got = plane.trainer(), plane.vector()
    assert trainer.push_values(job.initial()) is Status.OK
    for shard in plane.shards:
        shard.member.gate(EPOCH, 10)
    gradient = Gradient(job, Order(0, 4))
    gradient.compute(got, 0, Interval(0, 4), trainer)
    assert gradient.push() is Status.OK
    assert pull(trainer, 1, 1, got) is Status.OK
    for name, view in layout.views(got).items():
        assert view.dtype == np.dtype(dtype)
        assert view.shape == task.plain[name].shape
        np.testing.assert_array_equal(view, -task.plain[name])


def test_a_vector_that_is_not_flat_in_memory_is_refused_rather_than_sent_wrongly(
    plane_of: Callable[..., Plane],
) -> None:
    plane = plane_of(sums_of(), cut_into([8]), 1).begin()
    trainer = plane.trainer()
    with pytest.raises(TypeError):
        push(trainer, 0, Interval(0, 4), np.zeros(16, np.float32)[::2])
    assert push(trainer, 0, Interval(0, 4), plane.vector(1.0)) is Status.OK
