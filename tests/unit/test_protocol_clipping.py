"""Clipping by the global norm: one factor for an iteration, whatever happens to those who measure it."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

sys.path.append(str(Path(__file__).parent))

from protocol_clipping_faults import CLIPPING_FAULTS
from protocol_marks import later
from protocol_world import bad_among

from elps.contracts.codec import parse_job
from elps.contracts.epoch import Epoch, Term
from elps.contracts.errors import IllegalEvent, InvalidDocument
from elps.contracts.ids import PartitionId, ShardId
from elps.optim import norm
from elps.psshard.core import commands as do
from elps.psshard.core.clipping import Clipping, clipping_factor
from elps.psshard.core.part import Advance, Part
from elps.stream.geometry import Geometry
from elps.stream.interval import Interval

NOW, OLD = Epoch(Term(2, 5), 1), Epoch(Term(2, 5), 0)
A, B = PartitionId(0), PartitionId(1)
S1, S2 = ShardId("s1"), ShardId("s2")
CHUNK = 150
BLOCKS = [
    pytest.param(first, focus, marks=later(first, thorough=150, long=600))
    for first in range(0, 1_500, CHUNK)
    for focus in (None, "heirs", "copies")
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("first", "focus"), BLOCKS)
def test_every_schedule_of_a_job_that_clips_ends_exactly(first: int, focus: str | None) -> None:
    bad = list(bad_among(range(first, first + CHUNK), focus=focus, clips=True, thorough=True))
    assert not bad, "; ".join(f"{seed}: {why}" for seed, why in bad[:5])


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", CLIPPING_FAULTS)
def test_a_rule_of_clipping_that_is_left_out_is_found(name: str) -> None:
    fault = CLIPPING_FAULTS[name]
    found = any(bad_among(fault.seeds, **fault.how))
    assert found, f"{fault.what}: nothing was wrong in {fault.within} schedules"


# --- the norm and the factor ------------------------------------------------------------------------------------------


@given(
    st.lists(st.floats(-1e300, 1e300), max_size=40),
    st.sampled_from(["float32", "float64"]),
    st.integers(1, 3),
)
@example([5e-324] * 3, "float64", 1)
@example([1e200, 1e200], "float64", 1)
@example([1.0] * 40, "float32", 3)
def test_the_norm_is_right_from_the_smallest_to_the_largest_numbers(
    values: list[float], dtype: str, times: int
) -> None:
    with np.errstate(over="ignore"):
        x = np.tile(np.array(values, dtype), times * 1000)
    want = math.hypot(*x.astype(np.float64).tolist())
    assert norm(x) == pytest.approx(want, rel=1e-12)


@given(
    st.floats(1e-6, 1e6),
    st.dictionaries(st.integers(0, 9).map(PartitionId), st.floats(0, 1e100), min_size=1),
    st.randoms(use_true_random=False),
)
def test_the_factor_makes_the_norm_the_limit_wherever_partitions_lie(
    limit: float, norms: dict[PartitionId, float], rng: object
) -> None:
    factor = clipping_factor(limit, norms)
    assert 0 < factor <= 1
    whole = math.hypot(*norms.values())
    assert whole * factor <= limit * (1 + 1e-12)
    assert (factor == 1) == (whole <= limit)
    spread: dict[ShardId, dict[PartitionId, float]] = {S1: {}, S2: {}}
    for p, of in sorted(norms.items(), reverse=True):
        spread[S1 if p % 2 else S2][p] = of
    voting = Clipping(limit, (S1, S2))
    assert voting.measured(S2, 7, spread[S2]) == []
    assert voting.measured(S1, 7, spread[S1]) == [do.Clip(7, factor)]


def test_norms_told_again_are_answered_by_the_same_factor() -> None:
    voting = Clipping(1.0, (S1, S2))
    assert voting.measured(S1, 0, {A: 3.0}) == []
    assert voting.measured(S1, 0, {A: 3.0}) == []
    assert voting.awaited(0) == [S2]
    told = voting.measured(S2, 0, {B: 4.0})
    assert told == [do.Clip(0, 0.2)]
    assert voting.measured(S1, 0, {A: 3.0}) == told
    assert voting.awaited(0) == []
    voting.completed(0)
    assert voting.measured(S1, 1, {A: 3.0}) == []


def test_a_step_that_some_partition_has_taken_is_clipped_as_that_was() -> None:
    voting = Clipping(1.0, (S1, S2), {4: 0.25})
    assert voting.measured(S1, 4, {A: 0.1}) == [do.Clip(4, 0.25)]


@pytest.mark.parametrize("wild", [math.inf, math.nan])
def test_a_norm_that_is_no_number_fails_the_job_and_says_what_to_do(wild: float) -> None:
    voting = Clipping(1.0, (S1,))
    (fail,) = voting.measured(S1, 3, {A: wild})
    assert isinstance(fail, do.Fail)
    assert "iteration 3" in fail.reason
    assert "optimizer.lr" in fail.reason


# --- one shard --------------------------------------------------------------------------------------------------------


def clipping_part() -> Part:
    part = Part(NOW, Geometry(samples=8, batch=4), clips=True)
    for p in (A, B):
        part.hold(p, 0, 0)
    part.announce_gate(NOW, 0)
    return part


def complete(part: Part, p: PartitionId) -> Advance:
    part.offer(NOW, 0, Interval(0, 4), p)
    assert part.unmeasured(p) is None, "it is not added yet"
    part.added(p, 0)
    step = part.unmeasured(p)
    assert step is not None
    assert part.unmeasured(p) is None, "each is measured once"
    return step


def test_a_step_waits_for_its_factor_and_the_norms_for_all_partitions() -> None:
    part = clipping_part()
    step = complete(part, A)
    part.measured(step, 3.0)
    assert part.due(A) is None
    assert part.norms() is None
    part.measured(complete(part, B), 4.0)
    assert part.norms() == (0, {A: 3.0, B: 4.0})
    part.clip(OLD, 0, 0.5)
    assert part.due(A) is None
    part.clip(NOW, 0, 0.5)
    assert part.norms() is None
    done = part.due(A)
    assert done is not None
    assert (done.iteration, done.factor) == (0, 0.5)
    part.advanced(done)
    assert part.norms() is None
    assert part.due(B) is not None


def test_nothing_is_measured_where_nothing_is_clipped() -> None:
    part = Part(NOW, Geometry(samples=8, batch=4))
    part.hold(A, 0, 0)
    part.announce_gate(NOW, 0)
    part.offer(NOW, 0, Interval(0, 4), A)
    part.added(A, 0)
    assert part.unmeasured(A) is None
    assert part.due(A) is not None
    with pytest.raises(IllegalEvent):
        part.measured(Advance(A, 0, 4, 1), 1.0)


@pytest.mark.parametrize("sync", ["ssp", "asp"])
def test_without_a_barrier_there_is_no_whole_gradient_to_clip(sync: str) -> None:
    document = {
        "task": "logistic",
        "data": {"source": "digits"},
        "passes": 1,
        "sync": sync,
        "optimizer": {"clip_norm": 1.0},
    }
    with pytest.raises(InvalidDocument, match="clip_norm"):
        parse_job(document)
