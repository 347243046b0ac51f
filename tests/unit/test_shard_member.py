"""A shard's share: stale words refused, versions never torn, who waits is told."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from elps.contracts.epoch import Epoch, Term
from elps.contracts.errors import IllegalEvent, ProtocolError
from elps.contracts.ids import PartitionId, WorkerId
from elps.psshard.core.part import Advance, Verdict
from elps.psshard.member import Member
from elps.psshard.reports import Frozen, Missed, Progressed, Report, Written
from elps.stream.interval import Interval
from elps.wire.frames import Status

sys.path.insert(0, str(Path(__file__).parents[1]))

from data_plane import EPOCH, assignment, bring_zeros, cut_into, document, running
from members import NEXT, P0, W, member_of, values


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
    again = member.checkpoint(EPOCH, 1)  # written, but the store may have lost it
    assert again is not None
    assert not member.current(aside)
    member.wrote(again, {p: {"values": 1} for p in again.partitions})
    member.push(EPOCH, 1, Interval(1, 2), P0, None)
    assert member.checkpoint(EPOCH, 1) is None  # it cannot be written any more: reported anew
    assert reports == [written, written, written]
    assert member.current(again)
    member.close()
    assert not member.current(again)


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


def test_values_that_come_once_the_job_is_dropped_are_no_fault() -> None:
    member = Member(document(iterations=1))
    partitions = cut_into([2, 2])
    member.assign(EPOCH, assignment(partitions, iterations=1))
    reports: list[Report] = []
    member.report = reports.append
    member.close()  # while a checkpoint is being loaded, say
    bring_zeros(member, EPOCH, partitions)
    assert reports == []


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


@pytest.mark.parametrize("way", ["hurry", "close", "epoch", "again"])
def test_whoever_writes_a_checkpoint_rests_only_while_nobody_waits_for_it(way: str) -> None:
    member = member_of([4], 1)
    member.gate(EPOCH, 5)
    aside = member.checkpoint(EPOCH, 0)
    assert aside is not None
    began = time.monotonic()
    aside.rest(0.05)
    assert time.monotonic() - began >= 0.05
    resting = threading.Thread(target=aside.rest, args=[600.0])
    resting.start()
    match way:
        case "hurry":
            assert member.checkpoint(EPOCH, 0) is None, "a repeat is no hurry"
            assert resting.is_alive()
            assert member.checkpoint(EPOCH, 0, hurry=True) is None
        case "close":
            member.close()
        case "epoch":
            member.stock(Epoch(EPOCH.term, EPOCH.n + 1))
        case "again":
            member.wrote(aside, {p: {"values": 1} for p in aside.partitions})
            assert member.checkpoint(EPOCH, 0) is not None
    resting.join(60.0)
    assert not resting.is_alive()


def test_a_checkpoint_that_is_waited_for_from_the_beginning_is_written_without_rests() -> None:
    aside = member_of([4], 1).checkpoint(EPOCH, 0, hurry=True)
    assert aside is not None
    aside.rest(600.0)
