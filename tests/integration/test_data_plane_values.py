"""A trainer's pushes and pulls over TCP: what arrives is exactly what was sent, of one version, counted once."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elps.contracts.epoch import Epoch
from elps.contracts.errors import ElpsError
from elps.contracts.ids import WorkerId
from elps.contracts.job import Batch, JobDocument, Optimizer
from elps.placement import partitions
from elps.psshard import serving
from elps.psshard.core.part import Advance
from elps.stream.interval import Interval
from elps.stream.order import Order
from elps.tasks.layout import Layout
from elps.tasks.running import OpenJob
from elps.wire.connection import Connection, ConnectionEnded
from elps.wire.frames import Flag, Header, Kind, Status
from elps.wire.handshake import Hello, dial
from elps.worker.trainer import shards as trainer_shards
from elps.worker.trainer.gradient import Gradient
from elps.worker.trainer.shards import Shards, ShardUnreachable

sys.path.insert(0, str(Path(__file__).parents[1]))

from data_plane import (
    EPOCH,
    JOB,
    SECRET,
    Shard,
    assignment,
    bring_zeros,
    cut_into,
    document,
    eventually,
    pull,
    push,
    resident_bytes,
    running,
    shards_of,
)

Partitions = list[tuple[int, int, int]]


class Plane:
    """Some shards, the partitions dealt out to them in turn, and trainers to connect."""

    def __init__(
        self, doc: JobDocument, slices: Partitions, shards: int = 1, batch: int = 4, **fields: Any
    ) -> None:
        self.document, self.slices = doc, slices
        self.size = slices[-1][2] if slices else 0
        fields = {"samples": batch, "batch": batch, "iterations": 10**6} | fields
        self.shards = [Shard(doc, slices[n::shards], **fields) for n in range(shards)]
        self._trainers: list[Shards] = []

    def begin(self) -> Plane:
        for shard in self.shards:
            shard.begin()
        return self

    def trainer(self, worker: str = "job-w1", epoch: Epoch = EPOCH) -> Shards:
        places = [(s.listener.port, s.partitions) for s in self.shards]
        self._trainers.append(shards_of(self.document, places, worker, epoch))
        return self._trainers[-1]

    def vector(self, fill: float = 0.0) -> np.ndarray:
        return np.full(self.size, fill, self.document.dtype)

    def close(self) -> None:
        for trainer in self._trainers:
            trainer.close()
        for shard in self.shards:
            shard.close()


@pytest.fixture
def plane_of() -> Iterator[Callable[..., Plane]]:
    planes: list[Plane] = []

    def make(*args: Any, **fields: Any) -> Plane:
        planes.append(Plane(*args, **fields))
        return planes[-1]

    yield make
    for plane in planes:
        plane.close()


def sums_of(**fields: Any) -> JobDocument:
    """A step is the sum of the gradients of 4 samples."""
    fields = {"batch": Batch(global_=4), "optimizer": Optimizer(name="sgd", lr=4.0)} | fields
    return document(iterations=10**6, **fields)


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


# --- staged parts, by hand --------------------------------------------------------------------------------------------


def by_hand(shard: Shard, purpose: str = "push") -> Connection:
    hello = Hello(job=JOB, purpose=purpose, sender="job-w1", term=1)  # type: ignore[arg-type]
    return dial("127.0.0.1", shard.listener.port, hello, SECRET, peer="shard-1")


def part(
    number: int, lease: Interval, fill: float, size: int, flags: Flag = Flag.NONE, t: int = 0
) -> tuple[Header, bytes]:
    body = np.full(size, fill, np.float32).tobytes()
    return Header(Kind.PUSH, EPOCH, flags, partition=number, iteration=t, interval=lease), body


def word(kind: Kind, lease: Interval, flags: Flag = Flag.NONE, t: int = 0) -> Header:
    return Header(kind, EPOCH, flags, iteration=t, interval=lease)


def acknowledged(connection: Connection) -> Status:
    header = connection.receive(idle_s=10)
    assert header.kind is Kind.ACK
    return Status(header.status)


WHOLE = Interval(0, 4)


@pytest.fixture
def shard(plane_of: Callable[..., Plane]) -> Shard:
    return plane_of(sums_of(), cut_into([3, 3])).begin().shards[0]


def accepted(shard: Shard) -> bool:
    assert shard.member._part is not None
    return any(shard.member._part.missing(p) != [WHOLE] for p in shard.member.partitions)


def test_staged_parts_count_with_their_commit_and_not_before(shard: Shard) -> None:
    connection = by_hand(shard)
    for number in (0, 1):
        head, body = part(number, WHOLE, 4.0, 3, Flag.STAGED | Flag.LAST)
        connection.send(head, body=body)
        assert acknowledged(connection) is Status.OK
    assert not accepted(shard)
    connection.send(word(Kind.COMMIT, WHOLE, Flag.LAST))
    assert acknowledged(connection) is Status.OK
    assert shard.version == 1
    assert [v.tolist() for v in shard.values(1)] == [[-4.0] * 3] * 2
    connection.send(word(Kind.COMMIT, WHOLE, Flag.LAST))  # nothing is staged any more
    assert acknowledged(connection) is Status.OK
    assert shard.version == 1
    connection.close()


def test_staged_parts_vanish_with_their_connection_and_with_an_abort(shard: Shard) -> None:
    first = by_hand(shard)
    head, body = part(0, WHOLE, 1e9, 3, Flag.STAGED | Flag.LAST)
    first.send(head, body=body)
    assert acknowledged(first) is Status.OK
    first.close()
    second = by_hand(shard)
    second.send(head, body=body)
    assert acknowledged(second) is Status.OK
    second.send(word(Kind.ABORT, WHOLE, Flag.LAST))
    assert acknowledged(second) is Status.OK
    second.send(word(Kind.COMMIT, WHOLE, Flag.LAST))
    assert acknowledged(second) is Status.OK
    assert not accepted(shard)
    for number in (0, 1):
        head, body = part(number, WHOLE, 4.0, 3, Flag.STAGED)
        second.send(head, body=body)
    second.send(word(Kind.COMMIT, WHOLE, Flag.LAST))
    assert acknowledged(second) is Status.OK
    assert [v.tolist() for v in shard.values(1)] == [[-4.0] * 3] * 2
    second.close()


def test_a_commit_of_another_lease_than_was_staged_ends_the_connection(shard: Shard) -> None:
    connection = by_hand(shard)
    head, body = part(0, Interval(0, 2), 1e9, 3, Flag.STAGED)
    connection.send(head, body=body)
    connection.send(word(Kind.COMMIT, Interval(2, 4), Flag.LAST))
    with pytest.raises(ConnectionEnded):
        acknowledged(connection)
    assert not accepted(shard)


def test_parts_staged_for_a_lease_that_was_dropped_do_not_count_with_the_next(shard: Shard) -> None:
    connection = by_hand(shard)
    head, body = part(0, Interval(0, 2), 1e9, 3, Flag.STAGED)
    connection.send(
        head, body=body
    )  # the trainer is called away, and comes back with another lease
    for number in (0, 1):
        head, body = part(number, WHOLE, 4.0, 3, Flag.STAGED)
        connection.send(head, body=body)
    connection.send(word(Kind.COMMIT, WHOLE, Flag.LAST))
    assert acknowledged(connection) is Status.OK
    assert [v.tolist() for v in shard.values(1)] == [[-4.0] * 3] * 2
    connection.close()


@pytest.mark.parametrize("staged", [Flag.NONE, Flag.STAGED])
def test_a_part_cut_off_at_any_byte_leaves_no_trace(shard: Shard, staged: Flag) -> None:
    head, body = part(0, WHOLE, 1e9, 3, staged)
    raw = (
        Header(
            head.kind, head.epoch, head.flags, iteration=0, interval=WHOLE, body_bytes=len(body)
        ).pack()
        + body
    )
    for size in range(1, len(raw)):
        connection = by_hand(shard)
        connection.send_raw([raw[:size]])
        connection.close()
    eventually(lambda: shard.listener.connections == 0)
    assert not accepted(shard)
    connection = by_hand(shard)
    for number in (0, 1):
        head, body = part(number, WHOLE, 4.0, 3, Flag.LAST)
        connection.send(head, body=body)
        assert acknowledged(connection) is Status.OK
    assert [v.tolist() for v in shard.values(1)] == [[-4.0] * 3] * 2
    connection.close()


def test_the_answer_tells_the_worst_of_a_lease_and_then_begins_anew(shard: Shard) -> None:
    connection = by_hand(shard)
    shard.member.freeze(EPOCH, Interval(0, 1), 1)
    head, body = part(0, WHOLE, 1.0, 3)
    connection.send(head, body=body)
    connection.send(word(Kind.ABORT, WHOLE))
    head, body = part(0, Interval(2, 4), 4.0, 3, Flag.LAST)
    connection.send(head, body=body)
    assert acknowledged(connection) is Status.OK
    head, body = part(1, WHOLE, 1.0, 3)
    connection.send(head, body=body)  # refused
    head, body = part(1, Interval(2, 4), 4.0, 3, Flag.LAST)
    connection.send(head, body=body)  # taken
    assert acknowledged(connection) is Status.REFUSED
    old = Header(Kind.EMPTY, Epoch(EPOCH.term, 7), Flag.LAST, iteration=0, interval=WHOLE)
    connection.send(old)
    assert acknowledged(connection) is Status.STALE
    connection.send(word(Kind.EMPTY, Interval(1, 2), Flag.LAST))
    assert acknowledged(connection) is Status.OK
    connection.close()


# --- pulls, by hand ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [[4, 4], [200_000, 200_000]], ids=["one send", "many"])
def test_a_pull_of_a_version_overwritten_on_its_way_is_never_said_to_be_ok(
    plane_of: Callable[..., Plane], sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forced: the shard is held between reading the values and saying that they are whole."""
    plane = plane_of(sums_of(), cut_into(sizes)).begin()
    shard = plane.shards[0]
    member, trainer = shard.member, plane.trainer("job-w2")
    reading, go_on = threading.Event(), threading.Event()
    still_readable = member.still_readable

    def held(*args: Any) -> bool:
        reading.set()
        assert go_on.wait(10)
        return still_readable(*args)

    member.still_readable = held  # type: ignore[method-assign]
    got: list[Status] = []

    def read() -> None:
        reader, into = plane.trainer(), plane.vector()
        got.append(pull(reader, 0, 1, into))

    with running(read):
        assert reading.wait(10)
        for t in range(2):
            assert push(trainer, t, Interval(4 * t, 4 * t + 4), plane.vector(4.0)) is Status.OK
        go_on.set()
    assert got == [Status.GONE]
    assert pull(trainer, 2, 1, plane.vector()) is Status.OK


def test_a_reader_slower_than_two_iterations_is_told_that_its_version_is_gone(
    plane_of: Callable[..., Plane],
) -> None:
    plane = plane_of(
        sums_of(), cut_into([262_144] * 20)
    ).begin()  # 20 MiB: more than the socket holds
    shard, trainer = plane.shards[0], plane.trainer()
    slow = by_hand(shard, "pull")
    slow.send(Header(Kind.PULL, EPOCH, iteration=0, ticket=9))
    assert slow.receive(idle_s=10).kind is Kind.PART
    for t in range(2):
        assert push(trainer, t, Interval(4 * t, 4 * t + 4), plane.vector(4.0)) is Status.OK
    scratch = memoryview(bytearray(1 << 20))
    slow.body(Header(Kind.PART, body_bytes=1 << 20), scratch)
    while (header := slow.receive(idle_s=10)).kind is Kind.PART:
        slow.discard(header, scratch)
    assert (header.kind, header.status, header.ticket) == (Kind.END, Status.GONE, 9)
    slow.close()


def test_a_pull_waits_for_its_version_and_hears_that_the_shard_is_still_there(
    plane_of: Callable[..., Plane], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "PULL_WAIT_S", 0.05)
    plane = plane_of(sums_of(), cut_into([5, 5])).begin()
    reader = by_hand(plane.shards[0], "pull")
    reader.send(Header(Kind.PULL, EPOCH, iteration=1, ticket=3))
    for _ in range(3):
        header = reader.receive(idle_s=10)
        assert (header.kind, header.ticket) == (Kind.WAIT, 3)
    assert push(plane.trainer(), 0, WHOLE, plane.vector(4.0)) is Status.OK
    while (header := reader.receive(idle_s=10)).kind is Kind.WAIT:
        pass
    kinds = []
    scratch = memoryview(bytearray(1 << 20))
    while header.kind is Kind.PART:
        kinds.append(header.partition)
        reader.discard(header, scratch)
        header = reader.receive(idle_s=10)
    assert (kinds, header.kind, header.status) == ([0, 1], Kind.END, Status.OK)
    reader.close()


def test_a_pull_is_called_back_from_every_shard(plane_of: Callable[..., Plane]) -> None:
    plane = plane_of(sums_of(), cut_into([5, 5, 5]), 3).begin()
    trainer = plane.trainer()
    for shard in plane.shards[1:]:
        for number, _, _ in shard.partitions:
            shard.member.push(EPOCH, 0, WHOLE, number, None)  # these come to version 1
    for shard in plane.shards:
        shard.member.call_back(EPOCH, WorkerId("job-w1"), 4)
    assert pull(trainer, 1, 4, plane.vector()) is Status.CALLED_BACK
    for number, _, _ in plane.shards[0].partitions:
        plane.shards[0].member.push(EPOCH, 0, WHOLE, number, None)
    assert pull(trainer, 1, 5, plane.vector()) is Status.OK


def test_a_trainer_of_an_epoch_that_is_over_is_told_at_once(
    plane_of: Callable[..., Plane],
) -> None:
    """Not after the time that one who is ahead of the leader's word is given."""
    plane = plane_of(sums_of(), cut_into([5])).begin()
    trainer, shard = plane.trainer(), plane.shards[0]
    trainer.connect()
    later = Epoch(EPOCH.term, 1)
    assert shard.member.assign(later, assignment(shard.partitions))
    began = time.monotonic()
    assert pull(trainer, 0, 1, plane.vector()) is Status.STALE
    assert push(trainer, 0, WHOLE, plane.vector(1.0)) is Status.STALE
    assert push(trainer, 0, WHOLE, plane.vector(1.0), staged=True) is Status.STALE
    assert trainer.push_values(plane.vector(1.0)) is Status.STALE
    assert time.monotonic() - began < 2


def test_a_trainer_ahead_of_the_leaders_word_waits_for_it_a_bounded_time(
    plane_of: Callable[..., Plane], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "PULL_WAIT_S", 0.05)
    plane = plane_of(sums_of(), cut_into([5, 5])).begin()
    shard, later = plane.shards[0], Epoch(EPOCH.term, 1)
    ahead = plane.trainer(epoch=later)
    first = plane.vector(3.0)
    with running(lambda: ahead.push_values(first)):
        time.sleep(0.1)
        shard.member.assign(later, assignment(shard.partitions))
    assert pull(ahead, 0, 1, plane.vector()) is Status.OK
    monkeypatch.setattr(serving, "ASSIGN_WAIT_S", 0.3)
    far = plane.trainer(epoch=Epoch(EPOCH.term, 2))
    began = time.monotonic()
    assert far.push_values(first) is Status.STALE  # it waits once, not for each partition
    assert 0.25 < time.monotonic() - began < 0.6
    assert pull(far, 0, 1, plane.vector()) is Status.STALE


@pytest.mark.parametrize("seed", range(3))
def test_a_rollback_while_trainers_push_and_pull_ends_exactly(
    plane_of: Callable[..., Plane], seed: int
) -> None:
    """Large parts, other partitions after than before: no answer of the old epoch may use arrays of the new one."""
    plane = plane_of(sums_of(), cut_into([90_000, 30_000])).begin()
    shard, later = plane.shards[0], Epoch(EPOCH.term, 1)
    other = cut_into([40_000, 5, 79_995])
    rolled = threading.Event()
    rng = random.Random(seed)

    def work(me: int) -> None:
        trainer, got = plane.trainer(f"job-w{me}"), plane.vector()
        for t in range(10_000):
            status = pull(trainer, t, t + 1, got)
            if status is Status.OK:
                assert (got == -4.0 * t).all()
                lease = Interval(4 * t + 2 * me, 4 * t + 2 * me + 2)
                status = push(trainer, t, lease, plane.vector(2.0), staged=rng.random() < 0.5)
            if status is not Status.OK:
                assert status in (Status.STALE, Status.GONE)
                break
        assert rolled.wait(10)
        again = shards_of(plane.document, [(shard.listener.port, other)], f"job-w{me}", later)
        for t in range(5):
            assert pull(again, t, t + 1, got) is Status.OK
            assert (got == -4.0 * t).all()
            lease = Interval(4 * t + 2 * me, 4 * t + 2 * me + 2)
            assert push(again, t, lease, plane.vector(2.0)) is Status.OK
        again.close()

    def back() -> None:
        time.sleep(rng.random() * 0.2)
        shard.member.assign(later, assignment(other))
        rolled.set()
        bring_zeros(shard.member, later, other)
        shard.member.gate(later, 100)

    with running(back, lambda: work(0), lambda: work(1)):
        pass
    assert shard.version >= 5


def test_an_answer_that_is_no_status_is_a_protocol_error_and_not_a_crash(
    plane_of: Callable[..., Plane], monkeypatch: pytest.MonkeyPatch
) -> None:
    plane = plane_of(sums_of(), cut_into([5])).begin()
    monkeypatch.setattr(
        serving.PullConnection, "_end_head",
        staticmethod(lambda ask, status: Header(Kind.END, ask.epoch, status=77, ticket=ask.ticket)),
    )  # fmt: skip
    with pytest.raises(ElpsError, match="shard-1 sent END with status 77"):
        pull(plane.trainer(), 0, 1, plane.vector())


def test_a_shard_that_is_not_there_is_named_within_a_bounded_time(
    plane_of: Callable[..., Plane], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer_shards, "REACH_S", 0.5)
    plane = plane_of(sums_of(), cut_into([5, 5]), 2).begin()
    plane.shards[1].listener.close()
    began = time.monotonic()
    with pytest.raises(ShardUnreachable, match="shard-2"):
        push(plane.trainer(), 0, WHOLE, plane.vector(1.0))
    assert time.monotonic() - began < 5
