"""A shard's share under many threads: samples counted once, versions of one piece, stale words refused."""

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

from elps.contracts.epoch import Epoch, Term
from elps.contracts.errors import IllegalEvent, ProtocolError
from elps.contracts.ids import PartitionId, WorkerId
from elps.contracts.job import Batch, Optimizer
from elps.psshard.aside import Aside
from elps.psshard.core.part import Advance, Verdict
from elps.psshard.member import Member
from elps.psshard.reports import Frozen, Missed, Progressed, Report, Written
from elps.stream.interval import Interval
from elps.wire.frames import Status

sys.path.insert(0, str(Path(__file__).parents[1]))

from data_plane import EPOCH, assignment, bring_zeros, cut_into, document, running

W = WorkerId("job-w1")
P0 = PartitionId(0)
NEXT = Epoch(EPOCH.term, 1)


@pytest.fixture(autouse=True)
def _eager_threads() -> Iterator[None]:
    """Threads change places as often as can be."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def member_of(sizes: list[int], workers: int = 4, *, gates: bool = True, **fields: Any) -> Member:
    """A member at version 0, all zeros, whose iterations have `workers` samples; a step is the sum of the gradients."""
    fields = {"optimizer": Optimizer(name="sgd", lr=float(workers))} | fields
    member = Member(document(batch=Batch(global_=workers), iterations=10_000, **fields))
    partitions = cut_into(sizes)
    member.assign(EPOCH, assignment(partitions, samples=workers, batch=workers, iterations=10_000))
    if gates:
        member.report = lambda report: open_gate(member, report)
    bring_zeros(member, EPOCH, partitions)
    return member


def open_gate(member: Member, report: Report) -> None:
    if isinstance(report, Progressed):
        member.gate(report.epoch, report.version)


def values(member: Member, partition: int, version: int, epoch: Epoch = EPOCH) -> np.ndarray:
    view = member.view(epoch, PartitionId(partition), version)
    assert view is not None
    return np.frombuffer(view, np.dtype(member.document.dtype)).copy()


def push_all(
    member: Member,
    iteration: int,
    interval: Interval,
    gradient: Callable[[int], np.ndarray | None],
    order: list[int],
    epoch: Epoch = EPOCH,
) -> list[Verdict]:
    return [member.push(epoch, iteration, interval, PartitionId(p), gradient(p)) for p in order]


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


def test_a_lease_that_adds_nothing_counts_as_much_as_one_that_does() -> None:
    member = member_of([3, 3], 2)
    for p in (0, 1):
        member.push(EPOCH, 0, Interval(0, 1), PartitionId(p), np.ones(3, np.float32))
        member.push(EPOCH, 0, Interval(1, 2), PartitionId(p), None)
    assert member.low_version() == 1
    assert (values(member, 0, 1) == -1.0).all()  # the sum over the count, times 2
    for p in (0, 1):
        assert member.push(EPOCH, 1, Interval(2, 4), PartitionId(p), None) is Verdict.ACCEPT
    assert (values(member, 1, 2) == -1.0).all()


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


def test_a_checkpoint_asked_for_too_late_is_said_to_be_missed_and_repeats_do_no_harm() -> None:
    member = member_of([4, 4], 1)
    reports: list[Report] = []
    member.report = reports.append
    member.gate(EPOCH, 5)
    member.push(EPOCH, 0, Interval(0, 1), P0, None)  # the other one is still at version 0
    assert member.checkpoint(EPOCH, 0) is None
    assert reports[-1] == Missed(EPOCH, 0)
    member.push(EPOCH, 0, Interval(0, 1), PartitionId(1), None)
    aside = member.checkpoint(EPOCH, 1)
    assert aside is not None
    reports.clear()
    assert member.checkpoint(EPOCH, 1) is None  # being written
    assert reports == []
    member.wrote(aside, {p: {"values": 1} for p in aside.partitions})
    [written] = reports
    assert written == Written(
        EPOCH, 1, {P0: (1, {"values": 1}), PartitionId(1): (1, {"values": 1})}
    )
    assert member.checkpoint(EPOCH, 1) is None  # written: reported anew
    assert reports == [written, written]
    assert member.current(aside)
    member.close()
    assert not member.current(aside)


@pytest.mark.parametrize(
    "stale",
    [
        Epoch(Term(1, 99), 0),  # an earlier ownership
        Epoch(Term(0, 5), 7),  # an earlier term
        Epoch(Term(1, 98), 1),  # an equal term that is not ours
        Epoch(Term(1, 100), 1),
        Epoch(Term(2, 5), 0),  # a later one, not announced by an assignment
    ],
    ids=str,
)
def test_a_word_of_another_epoch_changes_nothing(stale: Epoch) -> None:
    partitions = cut_into([3, 3])
    member = member_of([3, 3], 2, gates=False)
    reports: list[Report] = []
    member.report = reports.append
    member.assign(NEXT, assignment(partitions, samples=2, batch=2, iterations=10))
    bring_zeros(member, NEXT, partitions)
    reports.clear()
    one = np.ones(3, np.float32)
    assert member.push(stale, 0, Interval(0, 2), P0, one) is Verdict.STALE
    assert member.partition_bytes(stale, P0) is None
    member.gate(stale, 50)
    member.grant(stale, Interval(0, 1))
    member.thaw(stale, Interval(0, 1))
    member.call_back(stale, W, 10**6)
    member.bring(stale, P0, {"values": one}, 3)
    assert member.checkpoint(stale, 0) is None
    member.freeze(stale, Interval(0, 2), 1)
    assert reports == [Frozen(stale, Interval(0, 2), 1, clean=False)]
    if stale.term.number < 2:
        assert not member.assign(stale, assignment(partitions, start=0))
        got = member.wait_for(stale, P0, 0, W, 1, 0.0)
        assert got is Status.STALE
        began = time.monotonic()
        assert member.wait_assigned(stale, 20)  # it will never come: nobody waits for it
        assert time.monotonic() - began < 1
    else:
        assert member.wait_for(stale, P0, 0, W, 1, 0.0) is None
        assert not member.wait_assigned(stale, 0.01)
    assert member.view(stale, P0, 0) is None
    assert not member.still_readable(stale, [P0], 0)
    assert not member.gather(stale, [P0], 0, np.empty(3, np.float32))
    # all as if nothing had been said
    assert (values(member, 0, 0, NEXT) == 0).all()
    assert member.wait_for(NEXT, P0, 1, W, 1, 0.0) is None
    for p in (P0, PartitionId(1)):
        assert member.push(NEXT, 0, Interval(0, 2), p, one) is Verdict.ACCEPT
    assert member.low_version() == 0  # the gate of 0 has not been announced
    member.gate(NEXT, 0)
    assert member.low_version() == 1
    assert (values(member, 0, 1, NEXT) == -1).all()


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


def test_a_version_that_is_being_overwritten_is_never_said_to_be_whole() -> None:
    """A reader that began in time is told at its end; one that comes later is told at once."""
    member = member_of([8, 8], 1)
    slab = member._slab
    assert slab is not None
    half, go_on = threading.Event(), threading.Event()
    write = slab.write

    def slow_write(advance: Advance) -> float:
        if (advance.partition, advance.iteration) == (0, 1):  # version 2 over version 0
            slab.values(P0, 2)[:4] = np.nan
            half.set()
            assert go_on.wait(10)
        return write(advance)

    slab.write = slow_write  # type: ignore[method-assign]
    both = [P0, PartitionId(1)]
    for p in both:
        member.push(EPOCH, 0, Interval(0, 1), p, np.ones(8, np.float32))
    reading = member.view(EPOCH, P0, 0)
    assert reading is not None
    assert member.still_readable(EPOCH, both, 0)
    with running(lambda: member.push(EPOCH, 1, Interval(1, 2), P0, np.ones(8, np.float32))):
        assert half.wait(10)
        assert np.isnan(np.frombuffer(reading, np.float32)).any()  # what the reader has now
        assert not member.still_readable(EPOCH, both, 0)
        assert not member.gather(EPOCH, both, 0, np.empty(16, np.float32))
        assert member.wait_for(EPOCH, P0, 0, W, 1, 0.0) is Status.GONE
        assert member.wait_for(EPOCH, P0, 2, W, 1, 0.0) is None  # nor is the new one there
        assert member.still_readable(EPOCH, both, 1)
        assert member.wait_for(EPOCH, P0, 1, W, 1, 0.0) is Status.OK
        go_on.set()
    assert (values(member, 0, 2) == -2).all()
    assert member.wait_for(EPOCH, P0, 0, W, 1, 0.0) is Status.GONE


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


def test_a_call_back_answers_pulls_up_to_its_ticket_that_cannot_be_served() -> None:
    member = member_of([2], 1)
    got: list[Status | None] = []
    waiting = threading.Event()

    def pull() -> None:
        waiting.set()
        got.append(member.wait_for(EPOCH, P0, 3, W, 7, 20))

    with running(pull):
        assert waiting.wait(5)
        member.call_back(EPOCH, WorkerId("job-w2"), 100)  # another worker
        member.call_back(EPOCH, W, 6)  # an earlier lease
        assert got == []
        member.call_back(EPOCH, W, 7)
    assert got == [Status.CALLED_BACK]
    assert member.wait_for(EPOCH, P0, 3, W, 7, 0.0) is Status.CALLED_BACK  # one on its way, too
    member.call_back(EPOCH, W, 5)  # late: it takes nothing back
    assert member.wait_for(EPOCH, P0, 3, W, 7, 0.0) is Status.CALLED_BACK
    assert member.wait_for(EPOCH, P0, 3, W, 8, 0.0) is None  # a later lease waits
    assert member.wait_for(EPOCH, P0, 0, W, 7, 0.0) is Status.OK  # what is here is here
    member.assign(NEXT, assignment(cut_into([2]), samples=1, batch=1))
    assert member.wait_for(NEXT, P0, 3, W, 7, 0.0) is None  # the call was of the epoch before


def test_a_frozen_interval_is_refused_until_it_is_thawed_or_granted() -> None:
    member = member_of([2, 2], 4, gates=False)
    reports: list[Report] = []
    member.report = reports.append
    member.gate(EPOCH, 0)
    one = np.ones(2, np.float32)
    member.freeze(EPOCH, Interval(1, 3), 1)
    assert reports.pop() == Frozen(EPOCH, Interval(1, 3), 1, clean=True)
    for part in (Interval(1, 2), Interval(2, 3), Interval(0, 4), Interval(2, 4)):
        assert member.push(EPOCH, 0, part, P0, one) is Verdict.FROZEN
    assert member.push(EPOCH, 0, Interval(0, 1), P0, one) is Verdict.ACCEPT
    member.thaw(EPOCH, Interval(1, 3))
    assert member.push(EPOCH, 0, Interval(2, 3), P0, one) is Verdict.ACCEPT
    member.freeze(EPOCH, Interval(1, 3), 2)
    assert reports.pop() == Frozen(EPOCH, Interval(1, 3), 2, clean=False)
    member.thaw(EPOCH, Interval(1, 3))
    member.freeze(EPOCH, Interval(1, 2), 3)
    assert reports.pop() == Frozen(EPOCH, Interval(1, 2), 3, clean=True)
    member.grant(EPOCH, Interval(1, 2))
    assert member.push(EPOCH, 0, Interval(1, 2), P0, one) is Verdict.HAVE_IT
    assert member.push(EPOCH, 0, Interval(3, 4), P0, one) is Verdict.ACCEPT
    assert member._part is not None
    assert member._part.version(P0) == 1
    assert (values(member, 0, 1) == -4.0).all()  # the mean of three ones, times 4


def test_an_interval_that_is_no_part_of_its_iteration_is_an_error_and_leaves_no_trace() -> None:
    member = member_of([2], 4)
    for interval in (Interval(3, 5), Interval(4, 8), Interval(2, 2), Interval(0, 2**60)):
        with pytest.raises(IllegalEvent):
            member.push(EPOCH, 0, interval, P0, np.ones(2, np.float32))
    assert member.push(EPOCH, 0, Interval(0, 4), P0, np.ones(2, np.float32)) is Verdict.ACCEPT
    assert (values(member, 0, 1) == -1).all()
    assert member.push(EPOCH, 7, Interval(28, 32), P0, None) is Verdict.EARLY
    assert member.push(EPOCH, 1, Interval(4, 8), PartitionId(9), None) is Verdict.EARLY


@pytest.mark.parametrize(
    "partitions",
    [
        [(0, 0, 0)],
        [(0, 5, 4)],
        [(0, 0, 2**20)],  # 4 MiB of float32
        [(0, 0, 4), (0, 4, 8)],
    ],
    ids=["empty", "backwards", "too large", "named twice"],
)
def test_an_assignment_that_cannot_be_kept_is_refused_and_the_old_one_stays(
    partitions: list[tuple[int, int, int]],
) -> None:
    member = member_of([2], 1)
    with pytest.raises(ProtocolError):
        member.assign(NEXT, assignment(partitions))
    assert member.push(EPOCH, 0, Interval(0, 1), P0, None) is Verdict.ACCEPT


def test_whoever_waits_is_told_when_the_job_is_dropped() -> None:
    member = member_of([2], 1)
    got: list[Status | None] = []
    with running(
        lambda: got.append(member.wait_for(EPOCH, P0, 9, W, 1, 20)),
        lambda: member.wait_assigned(NEXT, 20),
    ):
        member.close()
    assert got == [Status.STALE]
    assert member.push(EPOCH, 0, Interval(0, 1), P0, None) is Verdict.STALE
    assert not member.assign(NEXT, assignment(cut_into([2])))


def test_a_shard_without_partitions_is_never_waited_for() -> None:
    member = Member(document())
    reports: list[Report] = []
    member.report = reports.append
    assert member.assign(EPOCH, assignment([], start=12))
    assert reports == [Progressed(EPOCH, 100)]  # the end of the job
    member.gate(EPOCH, 12)
    assert not member.assign(EPOCH, assignment([], start=12))
    assert reports[-1] == Progressed(EPOCH, 100)
    member.freeze(EPOCH, Interval(48, 50), 1)
    assert reports[-1] == Frozen(EPOCH, Interval(48, 50), 1, clean=True)
    assert (member.held_bytes, member.partitions) == (0, [])
