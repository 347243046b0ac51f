"""Going on after another leader: what its shards have, and what of it counts."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parent))

from protocol_inheriting_faults import INHERITING_FAULTS
from protocol_marks import later
from protocol_world import bad_among

from elps.contracts.epoch import NO_EPOCH, Epoch, Term
from elps.contracts.ids import PartitionId, ShardId, WorkerId
from elps.psshard.core import commands as do
from elps.psshard.core.clock import Clock
from elps.psshard.core.inheriting import Claim, History, Inheritance, Stock, Stocktaking
from elps.psshard.core.rules import Rules
from elps.stream.geometry import Geometry
from elps.stream.interval import Interval

SCHEDULES, CHUNK = 2_000, 500
A, B, C = ShardId("a"), ShardId("b"), ShardId("c")
OPENED = Epoch(Term(3, 33), 2)
THEN = Epoch(Term(3, 33), 4)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "first",
    [
        pytest.param(first, marks=later(first, thorough=500, long=SCHEDULES))
        for first in range(0, SCHEDULES, CHUNK)
    ],
)
def test_every_schedule_with_leaders_that_follow_each_other_ends_exactly(first: int) -> None:
    bad = list(bad_among(range(first, first + CHUNK), focus="heirs", thorough=True))
    assert not bad, "; ".join(f"{seed}: {why}" for seed, why in bad[:5])


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", INHERITING_FAULTS)
def test_a_rule_of_inheriting_that_is_left_out_is_found(name: str) -> None:
    fault = INHERITING_FAULTS[name]
    found = any(bad_among(fault.seeds, **fault.how))
    assert found, f"{fault.what}: nothing was wrong in {fault.within} schedules"


def stock(
    *parts: tuple[int, int],
    opened: Epoch = OPENED,
    epoch: Epoch = THEN,
    elements: int = 20,
    skips: tuple[Interval, ...] = (),
) -> Stock:
    """Partitions of ten elements each, by number and version."""
    claims = tuple(Claim(PartitionId(p), 10 * p, 10 * p + 10, v, v) for p, v in parts)
    return Stock(History(opened, "digest", elements), epoch, claims, skips)


def taken(
    stocks: dict[ShardId, Stock], since: Epoch = OPENED, checkpoint: int | None = None
) -> Inheritance | str:
    taking = Stocktaking(stocks, since, checkpoint)
    for shard in random.Random(len(stocks)).sample(sorted(stocks), len(stocks)):
        assert shard in taking.awaited
        taking.took(shard, stocks[shard])
        taking.took(shard, Stock())  # a repeat says nothing new
    assert not taking.awaited
    return taking.verdict()


def test_what_is_whole_is_gone_on_from_at_the_oldest_version() -> None:
    found = taken({A: stock((0, 7)), B: stock((1, 8)), C: Stock()})
    assert isinstance(found, Inheritance)
    assert (found.version, found.ahead) == (7, True)
    assert found.placed == {0: A, 1: B}
    assert found.slices == [(0, 0, 10), (1, 10, 20)]
    assert found.steps == 7


@pytest.mark.parametrize(
    ("stocks", "why"),
    [
        ({A: Stock(), B: Stock()}, "no shard has anything of it"),
        ({A: stock((0, 7)), B: Stock()}, "from element 10 on"),
        ({A: stock((1, 7)), B: Stock()}, "from element 0 on"),
        ({A: stock((0, 7)), B: stock((1, 9))}, "versions 7 to 9"),
        ({A: stock((0, 7)), B: stock((1, 7), elements=30)}, "two jobs of one name"),
        ({A: stock((0, 3)), B: stock((1, 4))}, "version 3, a checkpoint has 5"),
    ],
)
def test_what_is_not_whole_is_said(stocks: dict[ShardId, Stock], why: str) -> None:
    found = taken(stocks, checkpoint=5)
    assert isinstance(found, str)
    assert why in found


def test_only_the_newest_history_counts_and_none_older_than_the_scheduler_has_heard_of() -> None:
    old = Epoch(Term(2, 22), 1)
    whole_but_old = stock((0, 40), (1, 40), opened=old, epoch=old)
    found = taken({A: whole_but_old, B: stock((0, 7), (1, 7))}, since=NO_EPOCH)
    assert isinstance(found, Inheritance)
    assert found.version == 7
    assert isinstance(taken({A: whole_but_old, B: stock((0, 7))}, since=NO_EPOCH), str)
    assert isinstance(taken({A: whole_but_old}, since=OPENED), str)
    other_nonce = Epoch(Term(3, 34), 2)
    assert isinstance(taken({A: stock((0, 7), (1, 7), opened=other_nonce)}), str)
    later = Epoch(Term(3, 33), 3)
    assert isinstance(taken({A: stock((0, 7), (1, 7), opened=later)}), Inheritance)


def test_of_two_claims_the_one_under_the_later_epoch_is_taken() -> None:
    before = Epoch(Term(3, 33), 3)
    found = taken({A: stock((0, 7), (1, 7), epoch=before), B: stock((1, 7)), C: stock((0, 7))})
    assert isinstance(found, Inheritance)
    assert found.placed == {0: C, 1: B}


def test_skips_that_nobody_can_have_counted_come_into_force_and_others_do_not() -> None:
    geometry, ours = Geometry(100, 10), Interval(72, 74)
    open_, next_ = Interval(75, 77), Interval(85, 87)
    ahead = taken({A: stock((0, 7), skips=(ours,)), B: stock((1, 8))})
    level = taken({A: stock((0, 7), skips=(ours,)), B: stock((1, 7))})
    assert isinstance(ahead, Inheritance)
    assert isinstance(level, Inheritance)
    assert ahead.in_force([open_, next_], geometry) == [ours, next_]
    assert level.in_force([open_, next_], geometry) == [ours, open_, next_]


# --- the clock that goes on -------------------------------------------------------------------------------------------


def inherited(evaluated: int = 5, **rules: Any) -> Clock:
    """The clock of a leader that goes on from version 7, which one of two shards has left already."""
    terms = Rules(Geometry(100, 4), 10, test_samples=4, evaluate_every=5, **rules)
    return Clock(terms, [A, B], 7, 0.0, evaluated=evaluated, ahead=True)


def test_who_goes_on_after_another_leader_rests_where_nobody_has_left() -> None:
    clock = inherited()
    clock.pause(0.0)
    assert clock.boundary == 8


def test_a_target_that_was_reached_under_the_leader_before_ends_the_job() -> None:
    clock = inherited(target_metric="m", target=0.5)
    clock.go_on({"m": 0.6, "n": None})
    assert clock.end == 8
    other = inherited(target_metric="m", target=0.5)
    other.go_on({"m": None})
    assert other.end == 10


def test_an_evaluation_that_went_with_the_leader_before_is_done_where_the_job_is() -> None:
    for evaluated, kind in ((5, "train"), (-1, "evaluate")):
        clock = inherited(evaluated)
        clock.go_on({})
        clock.worker_ready(WorkerId("w1"), 0.0)
        clock.progressed(A, 7, 0.0)
        clock.progressed(B, 8, 0.0)
        (lend,) = [c for c in clock.asked(WorkerId("w1"), 0.1) if isinstance(c, do.Lend)]
        assert (lend.kind, lend.version) == (kind, 7)
