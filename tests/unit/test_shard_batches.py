"""What a leader makes of the plans of its workers' batches, and when rows go out."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elps.contracts.ids import JobId, ShardId, WorkerId
from elps.contracts.telemetry import IterationRow
from elps.psshard.core.batches import Batches, Tail
from elps.psshard.core.clock import Clock
from elps.psshard.core.commands import Lend, Timing
from elps.psshard.core.pacing import Pace
from elps.psshard.core.rules import Rules
from elps.stream.geometry import Geometry
from elps.stream.interval import Interval

A, B, C = WorkerId("a"), WorkerId("b"), WorkerId("c")
SHARD = ShardId("s")
SHARES = st.dictionaries(st.sampled_from([A, B, C, WorkerId("gone")]), st.integers(-1, 100))


def test_without_a_plan_all_get_the_same() -> None:
    assert Batches().shares([B, A]) == {A: 1, B: 1}


def test_only_a_higher_number_counts() -> None:
    batches = Batches()
    assert batches.plan(5, {A: 30, B: 10}, "slow")
    assert not batches.plan(5, {A: 1, B: 1})
    assert not batches.plan(4, {A: 1, B: 1})
    assert (batches.number, batches.planned, batches.reason) == (5, {A: 30, B: 10}, "slow")
    assert batches.plan(6, {A: 20, B: 20})
    assert batches.shares([A, B]) == {A: 20, B: 20}


def test_a_first_plan_of_equal_shares_is_no_news() -> None:
    batches = Batches()
    assert not batches.rebalances({A: 17, B: 16}, Tail())
    assert batches.rebalances({A: 17, B: 15}, Tail())
    assert batches.rebalances({A: 16, B: 16}, Tail(trial=1))
    batches.plan(1, {A: 20, B: 12})
    assert batches.rebalances({A: 16, B: 16}, Tail())


def test_who_is_gone_is_left_out_and_who_is_new_gets_a_quarter_of_the_others_mean() -> None:
    batches = Batches()
    batches.plan(1, {A: 30, B: 10, WorkerId("gone"): 20})
    assert batches.shares([A, B]) == {A: 30, B: 10}
    shares = batches.shares([A, B, C])
    mean = (shares[A] + shares[B]) / 2
    assert shares[A] == 3 * shares[B]
    assert shares[C] == mean / 4


@given(SHARES, st.sets(st.sampled_from([A, B, C]), min_size=1))
def test_shares_can_always_be_cut_by(shares: dict[WorkerId, int], there: set[WorkerId]) -> None:
    batches = Batches()
    batches.plan(1, shares)
    found = batches.shares(there)
    assert found.keys() == there
    assert min(found.values()) >= 0
    assert sum(found.values()) > 0


def test_a_tail_is_lent_in_shrinking_leases_by_speed_and_not_to_who_sits_out() -> None:
    batches = Batches()
    assert batches.hold_back(100, 1) == 0
    batches.plan(1, {A: 60, B: 20, C: 0}, tail=Tail(0.3, 0.1))
    assert batches.hold_back(80, 1) == 24
    assert batches.hold_back(80, 10) == 30
    there, left, lent = [A, B, C], 24, []
    while left:
        assert batches.tail_lease(C, there, left, 1) == 0
        lent.append(batches.tail_lease(A, there, left, 1))
        left -= lent[-1]
    assert lent[0] == 12
    assert lent == sorted(lent, reverse=True)
    assert min(lent) >= 6 or sum(lent) == 24, "not below a tenth of its share"
    assert batches.tail_lease(B, there, 24, 1) == 4
    assert batches.tail_lease(C, [C], 24, 1) > 0, "nobody else is there"
    assert batches.tail_lease(WorkerId("nobody"), there, 24, 1) == 0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0])
def test_a_tail_that_cannot_be_is_none(bad: float) -> None:
    batches = Batches()
    batches.plan(1, {A: 1, B: 1}, tail=Tail(bad, bad))
    assert batches.hold_back(100, 1) == 0
    batches.plan(2, {A: 1, B: 1}, tail=Tail(7.0, 9.0))
    assert batches.hold_back(100, 1) == 50


def test_a_trial_holds_back_one_lease_of_one_cut() -> None:
    batches = Batches()
    batches.plan(1, {A: 60, B: 20}, tail=Tail(trial=1))
    assert batches.hold_back(80, 1) == 1
    assert batches.hold_back(80, 1) == 0, "once"
    assert batches.tail_lease(B, [A, B], 1, 1) == 1
    batches.plan(2, {A: 60, B: 20}, tail=Tail(trial=8))
    assert batches.hold_back(84, 8) == 12, "whole granules are given"
    batches.plan(3, {A: 60, B: 20}, tail=Tail(trial=8))
    assert batches.hold_back(10, 8) == 0, "a short batch is left alone"
    assert batches.hold_back(80, 8) == 0
    batches.plan(4, {A: 60, B: 20}, tail=Tail(0.5, 0.1, 8))
    assert batches.hold_back(80, 8) == 40, "a tail tells as much"


def test_who_is_through_is_lent_of_the_tail_before_the_next_iteration() -> None:
    clock = Clock(Rules(Geometry(1000, 100), 10), [SHARD], 0, 0.0)
    clock.expect([A, B], 0.0)
    clock.plan_batches(1, {A: 50, B: 50}, tail=Tail(0.2))
    out = [c for w in (A, B) for c in clock.worker_ready(w, 0.0)]
    out += [c for w in (A, B) for c in clock.asked(w, 0.0)]
    leases = {c.worker: c.interval for c in out if isinstance(c, Lend)}
    assert leases == {A: Interval(0, 40), B: Interval(40, 80)}
    taken, lease, at = 0, leases[A], 0.1
    while True:
        clock.computed(A, 0, lease, 0.0, Timing(), at)
        (lend,) = [c for c in clock.asked(A, at) if isinstance(c, Lend)]
        if lend.version == 1:
            break
        lease, at = lend.interval, at + 0.1
        taken += lease.size
        assert lease.lo >= 80
    assert taken == 20


def test_a_plan_counts_from_the_next_fresh_cut_on_and_leaves_cut_iterations_alone() -> None:
    clock = Clock(Rules(Geometry(100, 8), 10), [SHARD], 0, 0.0)
    clock.expect([A, B], 0.0)
    clock.progressed(SHARD, 0, 0.0)
    lent: dict[tuple[WorkerId, int], int] = {}

    def take(commands: list[object]) -> None:
        for c in commands:
            if isinstance(c, Lend):
                lent[c.worker, c.version] = c.interval.size

    for w in (A, B):
        take([*clock.worker_ready(w, 0.0)])
        take([*clock.asked(w, 0.0)])
    before = clock.plan
    take([*clock.plan_batches(1, {A: 6, B: 2})])
    assert clock.plan == before + 1
    take([*clock.plan_batches(1, {A: 1, B: 7})])
    assert clock.plan == before + 1
    assert lent == {(A, 0): 4, (B, 0): 4}
    for t in range(2):
        for w in (A, B):
            interval = next(p.interval for p in clock._lending.cuts[t].pieces if p.holder == w)
            take([*clock.computed(w, t, interval, 0.0, Timing(), 0.0)])
            take([*clock.pushed(w, t, 0.0)])
            take([*clock.asked(w, 0.0)])
        take([*clock.progressed(SHARD, t + 1, 0.0)])
    assert {v: (lent[A, v], lent[B, v]) for v in range(2)} == {0: (4, 4), 1: (6, 2)}


# --- rows -------------------------------------------------------------------------------------------------------------

FAST, FIXED = JobId("fast"), JobId("fixed")


def pace_s(job: JobId) -> float:
    return 0.02 if job == FAST else 0.1


def row(t: int) -> IterationRow:
    return IterationRow(
        iteration=t, passes=0.0, samples=1, skipped=0, loss=None, duration_s=0.0, at=0.0, term=1,
        plan=1, lr=1.0, workers=[],
    )  # fmt: skip


def test_rows_of_each_job_keep_its_pace_and_their_order() -> None:
    pace = Pace()
    both = [(FAST, row(0)), (FIXED, row(0))]
    assert pace.take(both, 0.0, pace_s, at_once=False) == both
    more = [(FAST, row(1)), (FIXED, row(1)), (FIXED, row(2))]
    assert pace.take(more, 0.02, pace_s, at_once=False) == more[:1]
    assert math.isclose(pace.due_at(pace_s), 0.1)
    assert pace.take([], 0.1, pace_s, at_once=False) == more[1:]
    assert pace.due_at(pace_s) == math.inf
    assert pace.speaking == {FAST, FIXED}


def test_with_an_event_all_rows_go_out() -> None:
    pace = Pace()
    pace.take([(FIXED, row(0))], 0.0, pace_s, at_once=False)
    assert pace.take([(FIXED, row(1))], 0.01, pace_s, at_once=True) == [(FIXED, row(1))]
    assert pace.take([], 5.0, pace_s, at_once=False) == []
    assert pace.speaking == set()
