"""A shard's share under many threads at once: every sample counted once, every copy of one version."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from elps.contracts.ids import PartitionId
from elps.contracts.job import Optimizer
from elps.psshard.aside import Aside
from elps.psshard.core.part import Verdict
from elps.psshard.reports import Progressed, Report
from elps.stream.interval import Interval
from elps.wire.frames import Status

sys.path.insert(0, str(Path(__file__).parents[1]))

from data_plane import EPOCH, assignment, cut_into, running
from members import NEXT, P0, W, member_of, push_all, values


@pytest.fixture(autouse=True)
def _eager_threads() -> Iterator[None]:
    """Threads change places as often as can be."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("workers", "partitions"), [(2, 1), (4, 3), (3, 7)])
def test_any_number_of_threads_pushing_ones_end_at_the_exact_count(
    seed: int, workers: int, partitions: int
) -> None:
    """As when workers push the integer gradient 1 on every key: one lost or doubled and the count is off."""
    iterations = 60
    member = member_of([5] * partitions, workers)
    ones = np.ones(5, np.float32)

    def work(me: int) -> None:
        rng = random.Random(f"{seed} {me}")
        for t in range(iterations):
            order = rng.sample(range(partitions), partitions)
            for p in order:
                got = member.wait_for(EPOCH, PartitionId(p), t, W, 1, 20)
                assert got is Status.OK
                assert (values(member, p, t) == -t * workers).all()
            lease = Interval(t * workers + me, t * workers + me + 1)
            verdicts = push_all(member, t, lease, lambda _: ones, order)
            assert verdicts == [Verdict.ACCEPT] * partitions
            while rng.random() < 0.3:  # a reply was lost, so it comes again
                again = push_all(member, t, lease, lambda _: ones, order)
                assert again == [Verdict.HAVE_IT] * partitions

    with running(*(lambda w=w: work(w) for w in range(workers))):
        pass
    for p in range(partitions):
        assert (values(member, p, iterations) == -iterations * workers).all()


@pytest.mark.parametrize("seed", range(8))
def test_leases_held_twice_and_cut_in_pieces_are_counted_once(seed: int) -> None:
    """Zombies and their successors push equal, nested and empty leases in any order to any partition."""
    workers, partitions, iterations = 6, 4, 30
    member = member_of([3] * partitions, workers)

    def gradient(lease: Interval) -> np.ndarray | None:
        return np.full(3, lease.size, np.float32)

    def work(me: int) -> None:
        rng = random.Random(f"{seed} {me}")
        for t in range(iterations):
            for p in range(partitions):  # a zombie may find it gone, and pushes all the same
                got = member.wait_for(EPOCH, PartitionId(p), t, W, 1, 20)
                assert got in (Status.OK, Status.GONE)
            lo = t * workers
            whole = [Interval(lo, lo + 3), Interval(lo + 3, lo + 6)]
            pieces = [Interval(lo + n, lo + n + 1) for n in range(workers)]
            # the whole ones may be missing; the pieces together are all that is needed
            leases = pieces + [w for w in whole if rng.random() < 0.5] + rng.choices(pieces, k=3)
            rng.shuffle(leases)
            for lease in leases:
                order = rng.sample(range(partitions), partitions)
                for verdict in push_all(member, t, lease, lambda _, i=lease: gradient(i), order):
                    assert verdict in (Verdict.ACCEPT, Verdict.HAVE_IT)

    with running(*(lambda w=w: work(w) for w in range(3))):
        pass
    for p in range(partitions):
        assert (values(member, p, iterations) == -iterations * workers).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("seed", range(4))
def test_deterministic_sums_are_taken_in_the_order_of_the_intervals_bit_for_bit(
    dtype: str, seed: int
) -> None:
    workers, size, iterations = 6, 1000, 4
    rng = np.random.default_rng(seed)
    scale = 10.0 ** rng.uniform(-8, 8, (iterations, workers, 1))
    gradients = (rng.standard_normal((iterations, workers, size)) * scale).astype(dtype)
    member = member_of(
        [size], workers, dtype=dtype, deterministic=True, optimizer=Optimizer(name="sgd", lr=0.5)
    )

    def work(me: int) -> None:
        for t in range(iterations):
            assert member.wait_for(EPOCH, P0, t, W, 1, 20) is Status.OK
            time.sleep(random.Random(f"{seed} {me} {t}").random() * 0.003)
            lease = Interval(t * workers + me, t * workers + me + 1)
            buffer = gradients[t, me].copy()
            assert member.push(EPOCH, t, lease, P0, buffer) is Verdict.ACCEPT
            buffer[:] = np.nan  # the connection's buffer takes the next part

    with running(*(lambda w=w: work(w) for w in range(workers))):
        pass
    expected = np.zeros(size, dtype)
    for t in range(iterations):
        total = gradients[t, 0].copy()
        for me in range(1, workers):
            total += gradients[t, me]
        expected = expected - np.dtype(dtype).type(0.5) * (total / np.dtype(dtype).type(workers))
    assert values(member, 0, iterations).tobytes() == expected.tobytes()


@pytest.mark.parametrize("seed", range(6))
def test_a_checkpoint_is_of_one_version_while_pushes_go_on(seed: int) -> None:
    """With momentum, since the optimizer's state has but one copy, which the next version overwrites."""
    workers, partitions, iterations = 3, 5, 40
    spec = Optimizer(name="momentum", lr=1.0, momentum=0.5)
    member = member_of([7] * partitions, workers, gates=False, dtype="float64", optimizer=spec)
    taken: list[Aside] = []
    copiers: list[threading.Thread] = []
    copies: dict[int, list[dict[str, np.ndarray]]] = {}

    def copy(aside: Aside) -> None:
        rng = random.Random(f"{seed} {aside.version}")
        for p in rng.sample(aside.partitions, partitions):
            time.sleep(rng.random() * 0.002)
            aside.take(p)
        copies[aside.version] = [
            {n: a.copy() for n, a in aside.take(PartitionId(p)).items()} for p in range(partitions)
        ]

    def leader(report: Report) -> None:
        """A checkpoint is asked for before the gate of its version is announced."""
        if not isinstance(report, Progressed):
            return
        if report.version % 3 == 0 and report.version:
            aside = member.checkpoint(EPOCH, report.version)
            assert aside is not None
            assert set(aside.steps.values()) == {report.version}
            taken.append(aside)
            copiers.append(threading.Thread(target=copy, args=(aside,)))
            copiers[-1].start()
        member.gate(EPOCH, report.version)

    member.report = leader
    member.gate(EPOCH, 0)

    def work(me: int) -> None:
        rng = random.Random(f"{seed} {me}")
        for t in range(iterations):
            for p in rng.sample(range(partitions), partitions):
                assert member.wait_for(EPOCH, PartitionId(p), t, W, 1, 20) is Status.OK
                lease = Interval(t * workers + me, t * workers + me + 1)
                member.push(EPOCH, t, lease, PartitionId(p), np.ones(7))

    with running(*(lambda w=w: work(w) for w in range(workers))):
        pass
    for thread in copiers:
        thread.join(20)
    value = velocity = 0.0
    expected = [(value, velocity)]
    for _ in range(iterations):
        velocity = velocity * 0.5 + 1.0
        value -= velocity
        expected.append((value, velocity))
    assert sorted(copies) == list(range(3, iterations + 1, 3))
    for version, arrays in copies.items():
        for part in arrays:
            assert set(part) == {"values", "momentum"}
            assert (part["values"] == expected[version][0]).all(), version
            assert (part["momentum"] == expected[version][1]).all(), version


@pytest.mark.parametrize("seed", range(10))
def test_a_rollback_in_the_middle_throws_away_what_the_epoch_before_had_collected(
    seed: int,
) -> None:
    workers, partitions, iterations = 3, 4, 15
    member = member_of([4] * partitions, workers)
    rng = random.Random(seed)
    after = rng.random() * 0.03
    over = threading.Event()

    def old(me: int) -> None:
        """Goes on under the first epoch until it is told that it is stale."""
        for t in range(10_000):
            for p in range(partitions):
                got = member.wait_for(EPOCH, PartitionId(p), t, W, 1, 20)
                if got is Status.STALE:
                    return
                lease = Interval(t * workers + me, t * workers + me + 1)
                verdict = member.push(EPOCH, t, lease, PartitionId(p), np.full(4, 1e9, np.float32))
                if verdict is Verdict.STALE:
                    return

    def back() -> None:
        over.wait(after)
        slices = cut_into([4] * partitions)
        again = assignment(slices, samples=workers, batch=workers, iterations=10_000, start=5)
        assert member.assign(NEXT, again)
        assert not member.assign(NEXT, again)  # said again
        order = random.Random(seed).sample(range(partitions), partitions)
        for p in order:
            member.bring(NEXT, PartitionId(p), {"values": np.full(4, 100, np.float32)}, 5)
            member.bring(NEXT, PartitionId(p), {"values": np.full(4, 7, np.float32)}, 1)  # a repeat

    def new(me: int) -> None:
        for t in range(5, 5 + iterations):
            for p in range(partitions):
                assert member.wait_for(NEXT, PartitionId(p), t, W, 1, 20) is Status.OK
                assert (values(member, p, t, NEXT) == 100 - (t - 5) * workers).all()
                lease = Interval(t * workers + me, t * workers + me + 1)
                one = np.ones(4, np.float32)
                assert member.push(NEXT, t, lease, PartitionId(p), one) is Verdict.ACCEPT

    both = [lambda w=w: old(w) for w in range(workers)] + [
        lambda w=w: new(w) for w in range(workers)
    ]
    with running(back, *both):
        pass
    for p in range(partitions):
        assert (values(member, p, 5 + iterations, NEXT) == 100 - iterations * workers).all()


@pytest.mark.parametrize("seed", range(4))
def test_readers_beside_writers_see_whole_versions_or_are_told(seed: int) -> None:
    workers, sizes, iterations = 2, [300, 5, 900], 120
    member = member_of(sizes, workers)
    into = sum(sizes)
    told = {Status.OK: 0, Status.GONE: 0}

    def work(me: int) -> None:
        for t in range(iterations):
            for p in range(len(sizes)):
                assert member.wait_for(EPOCH, PartitionId(p), t, W, 1, 20) is Status.OK
                lease = Interval(t * workers + me, t * workers + me + 1)
                member.push(EPOCH, t, lease, PartitionId(p), np.ones(sizes[p], np.float32))

    def read(me: int) -> None:
        rng = random.Random(f"{seed} {me}")
        out = np.empty(into, np.float32)
        parts = member.partitions
        while (version := max(0, member.low_version() - rng.randint(0, 1))) < iterations - 1:
            if member.gather(EPOCH, parts, version, out):
                told[Status.OK] += 1
                assert (out == -version * workers).all()
            else:
                told[Status.GONE] += 1

    both = [lambda w=w: work(w) for w in range(workers)] + [lambda w=w: read(w) for w in range(2)]
    with running(*both):
        pass
    assert told[Status.OK] > 0
