"""A term ends on a shard, and the next one goes on from what is there, whatever threads are still at work."""

from __future__ import annotations

import random
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from data_plane import EPOCH, assignment, bring_zeros, cut_into
from members import W, member_of, open_gate, push_all, values

from elps.contracts.epoch import Epoch, Term
from elps.contracts.ids import PartitionId
from elps.psshard.assignment import NotHere
from elps.psshard.core import commands as do
from elps.psshard.core.inheriting import Claim, Stock
from elps.psshard.core.part import Verdict
from elps.psshard.link_frames import (
    frame_of_order,
    frame_of_report,
    order_of_frame,
    report_of_frame,
)
from elps.psshard.member import Member
from elps.psshard.reports import Progressed, Report, Stocked, Trouble
from elps.stream.interval import Interval
from elps.wire.frames import Status

SUCCESSOR = Epoch(Term(EPOCH.term.number + 1, 99), 1)


def stock_of(heir: Member) -> Stock:
    """What it says that it has, when it is asked first."""
    stock = heir.stock(Epoch(SUCCESSOR.term, 0))
    assert stock is not None
    return stock


def heir_of(member: Member) -> tuple[Member, list[Report]]:
    """The share of the next term, and what it reports."""
    reports: list[Report] = []
    heir = Member(member.document, member.bequeath())
    heir.report_always_to(reports.append)
    return heir, reports


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_threads_that_push_while_the_term_ends_change_nothing_of_what_is_inherited(
    seed: int, deterministic: bool
) -> None:
    workers, partitions = 3, 5
    member = member_of([7] * partitions, workers, deterministic=deterministic)
    troubles: list[Report] = []
    member.report_always_to(lambda r: troubles.append(r) if isinstance(r, Trouble) else None)
    ones = np.ones(7, np.float32)
    rng, begun = random.Random(seed), threading.Semaphore(0)

    def work(me: int) -> None:
        order = list(range(partitions))
        for t in range(10_000):
            begun.release()
            verdicts = push_all(
                member, t, Interval(t * workers + me, t * workers + me + 1), lambda _: ones, order
            )
            if Verdict.STALE in verdicts:
                return
            for p in order:  # until the others have pushed, or the term is over
                got = None
                while got is None:
                    got = member.wait_for(EPOCH, PartitionId(p), t + 1, W, 1, 20)
                if got is Status.STALE:
                    return

    threads = [threading.Thread(target=work, args=(me,)) for me in range(workers)]
    for thread in threads:
        thread.start()
    for _ in range(rng.randint(20, 120)):
        assert begun.acquire(timeout=20)
    heir, reports = heir_of(member)
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    claims = stock_of(heir).claims
    assert [c.partition for c in claims] == list(range(partitions))
    oldest = min(c.version for c in claims)
    assert {c.version for c in claims} <= {oldest, oldest + 1}
    bounds = cut_into([7] * partitions)
    heir.assign(
        SUCCESSOR,
        assignment(bounds, samples=workers, batch=workers, start=oldest, inherited=True),
    )
    assert reports == [Progressed(SUCCESSOR, oldest)]
    for claim in claims:
        for version in range(oldest, claim.version + 1):
            got = values(heir, claim.partition, version, SUCCESSOR)
            assert (got == -version * workers).all(), (claim, version)
    heir.report_always_to(lambda report: open_gate(heir, report))
    heir.gate(SUCCESSOR, oldest)
    for t in range(oldest, oldest + 3):  # the open iteration once more, and two
        for me in range(workers):
            lease = Interval(t * workers + me, t * workers + me + 1)
            push_all(heir, t, lease, lambda _: ones, list(range(partitions)), SUCCESSOR)
    for p in range(partitions):
        assert (values(heir, p, oldest + 3, SUCCESSOR) == -(oldest + 3) * workers).all()
    assert troubles == []


def test_a_term_that_was_never_opened_here_passes_on_what_it_was_left() -> None:
    member = member_of([4, 4])
    between, _ = heir_of(member)
    heir, _ = heir_of(between)
    assert between.stock(Epoch(SUCCESSOR.term, 0)) is None, "its term is over"
    assert [(c.partition, c.start, c.stop, c.version) for c in stock_of(heir).claims] == [
        (0, 0, 4, 0),
        (1, 4, 8, 0),
    ]
    assert stock_of(heir).epoch == EPOCH, "each repeat says the same"
    assert heir.held_bytes > 0
    heir.close()
    assert heir.held_bytes == 0


def test_partitions_whose_first_values_have_not_come_are_not_left() -> None:
    member = member_of([4])
    partitions = cut_into([4, 4])
    young = Member(member.document)
    young.assign(EPOCH, assignment(partitions))
    bring_zeros(young, EPOCH, partitions[:1])
    heir, _ = heir_of(young)
    assert [c.partition for c in stock_of(heir).claims] == [0]


@pytest.mark.parametrize(
    ("parts", "start"),
    [([(0, 0, 4)], 5), ([(0, 0, 5)], 0), ([(1, 4, 8)], 0)],
    ids=["other version", "other bounds", "other partition"],
)
def test_what_was_not_left_here_is_said_not_made_up(
    parts: list[tuple[int, int, int]], start: int
) -> None:
    heir, _ = heir_of(member_of([4]))
    with pytest.raises(NotHere, match="was not left here"):
        heir.assign(SUCCESSOR, assignment(parts, start=start, inherited=True))
    assert stock_of(heir).claims, "a better assignment may still come"


def test_one_that_has_come_since_is_told_that_it_has_no_part_in_it() -> None:
    newcomer = Member(member_of([4]).document)
    reports: list[Report] = []
    newcomer.report_always_to(reports.append)
    newcomer.assign(SUCCESSOR, assignment([], start=7, inherited=True))
    assert reports == [Progressed(SUCCESSOR, 100)]


def test_a_new_assignment_of_other_values_lets_the_estate_go() -> None:
    heir, _ = heir_of(member_of([4]))
    heir.assign(SUCCESSOR, assignment(cut_into([4])))
    assert heir.stock(Epoch(SUCCESSOR.term, 2)) == Stock()


def test_a_stock_survives_the_way_over_a_link() -> None:
    stock = stock_of(heir_of(member_of([4, 4]))[0])
    header, meta = frame_of_order(SUCCESSOR, do.TakeStock())
    assert order_of_frame(header, meta or {}) == do.TakeStock()
    with_skips = Stock(stock.history, stock.epoch, stock.claims, (Interval(4, 6),))
    for told in (stock, with_skips, Stock()):
        header, meta = frame_of_report(Stocked(SUCCESSOR, told))
        assert meta is not None
        assert report_of_frame(header, meta) == Stocked(SUCCESSOR, told)
    assert stock.claims[1] == Claim(PartitionId(1), 4, 8, 0, 0, oldest=0)
