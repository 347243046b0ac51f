"""Thinning and the rules by which rows enter a history."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from elps.contracts.answers import Evaluation
from elps.contracts.ids import WorkerId
from elps.contracts.telemetry import IterationRow, WorkerTiming
from elps.monitor.core.history import RATE_S, ROWS_WHOLE, History
from elps.monitor.core.thinned import Thinned


def row(iteration: int, term: int = 1, workers: int = 1, **fields: float) -> IterationRow:
    timings = [
        WorkerTiming(
            worker=WorkerId(f"j-w{i}"),
            samples=8,
            compute_s=1,
            pull_s=1,
            wait_s=1,
            push_s=1,
            lease_s=1,
        )
        for i in range(workers)
    ]
    known = {"duration_s": 0.1, "at": float(iteration), "loss": 1.0, "samples": 8} | fields
    return IterationRow(
        iteration=iteration,
        passes=0.0,
        skipped=0,
        term=term,
        plan=1,
        lr=0.1,
        workers=timings,
        **known,
    )  # type: ignore[arg-type]


def numbers(history: History) -> list[int]:
    return [r.iteration for r in history.rows]


def test_the_newest_rows_are_whole_and_older_ones_have_growing_gaps() -> None:
    thinned: Thinned[IterationRow] = Thinned(100, 20)
    for i in range(10_000):
        thinned.put(row(i, workers=0))
    kept = [r.iteration for r in thinned]
    assert kept[-100:] == list(range(9_900, 10_000))
    assert kept[0] == 0, "the start of the job stays"
    gaps = [b - a for a, b in itertools.pairwise(kept)]
    assert all(b <= a for a, b in itertools.pairwise(gaps)), "gaps only shrink towards now"
    assert len(kept) < 100 * 1.25 + 25 * 20
    assert len(kept) + thinned.dropped == 10_000


def test_memory_grows_with_the_logarithm_of_the_length() -> None:
    history = History()
    sizes = []
    for i in range(20_000):
        history.add(row(i, workers=0))
        if i in (2_500, 5_000, 10_000, 19_999):
            sizes.append(len(history.rows))
    assert sizes[-1] < 2 * ROWS_WHOLE + 1500
    assert all(b - a <= 320 for a, b in itertools.pairwise(sizes))
    history.check_invariants()


@given(st.lists(st.integers(0, 400), max_size=300), st.integers(2, 30), st.integers(1, 10))
def test_whatever_the_order_of_arrival_the_rows_are_sorted_and_unique(
    arrivals: list[int], whole: int, per_level: int
) -> None:
    thinned: Thinned[IterationRow] = Thinned(whole, per_level)
    for i in arrivals:
        thinned.put(row(i, workers=0))
    kept = [r.iteration for r in thinned]
    assert kept == sorted(set(kept))
    if arrivals:
        assert kept[-1] == max(arrivals)
        assert thinned.at_or_before(max(arrivals)) is not None
        assert [r.iteration for r in thinned.since(200)] == [i for i in kept if i >= 200]


@settings(max_examples=200)
@given(
    st.lists(
        st.tuples(st.integers(0, 60), st.integers(1, 3), st.integers(0, 3), st.integers(0, 2)),
        max_size=200,
    )
)
def test_terms_and_epochs_never_fall_along_the_iterations_and_weights_add_up(
    arrivals: list[tuple[int, int, int, int]],
) -> None:
    history = History()
    for iteration, term, workers, n in arrivals:
        history.add(row(iteration, term, workers, n=n))
        history.check_invariants()


def test_a_repeated_row_is_taken_once() -> None:
    history = History()
    assert history.add(row(5))
    assert not history.add(row(5, loss=9.0))
    assert len(history.rows) == 1
    assert history.rows.last is not None
    assert history.rows.last.loss == 1.0


def test_a_late_row_finds_its_place() -> None:
    history = History()
    for i in (0, 1, 3, 2):
        assert history.add(row(i))
    assert numbers(history) == [0, 1, 2, 3]


def test_a_rollback_voids_the_rows_and_evaluations_after_it() -> None:
    history = History()
    for i in range(10):
        history.add(row(i, term=1, at=float(i)))
    history.evaluated(Evaluation(iteration=5, at=4.5, metrics={"accuracy": 0.5}))
    history.evaluated(Evaluation(iteration=9, at=8.5, metrics={"accuracy": 0.9}))
    assert history.add(row(6, term=2, at=20.0))
    assert numbers(history) == [0, 1, 2, 3, 4, 5, 6]
    assert [e.iteration for e in history.evaluations] == [5]
    assert not history.add(row(7, term=1)), "a late row of the former term stays void"
    assert not history.add(row(6, term=1))


def test_a_rollback_within_a_term_voids_as_a_new_term_does() -> None:
    history = History()
    for i in range(10):
        history.add(row(i, term=1, at=float(i), n=1))
    assert history.add(row(6, term=1, at=20.0, n=2))
    assert numbers(history) == [0, 1, 2, 3, 4, 5, 6]
    assert not history.add(row(7, term=1, n=1)), "late, and void"
    assert history.add(row(6, term=2, at=21.0, n=1)), "a new term counts anew"


def test_a_late_evaluation_is_void_where_its_parameters_are() -> None:
    history = History()
    for i in range(10):
        history.add(row(i, term=1, at=float(i)))
    history.add(row(6, term=2, at=20.0))

    def evaluated(iteration: int, term: int) -> None:
        history.evaluated(Evaluation(iteration=iteration, at=30.0, metrics={}, term=term))

    for iteration in (6, 7, 9):
        evaluated(iteration, term=1)
    assert [e.iteration for e in history.evaluations] == [6], "the new term began with these"
    evaluated(7, term=2)
    evaluated(7, term=1)
    assert [(e.iteration, e.term) for e in history.evaluations] == [(6, 1), (7, 2)]


def test_rows_of_a_new_term_that_overtook_each_other_all_stay() -> None:
    history = History()
    for i in range(10):
        history.add(row(i, term=1))
    history.add(row(8, term=2, at=30.0))
    history.add(row(7, term=2, at=29.0))
    assert [(r.iteration, r.term) for r in history.rows][-3:] == [(6, 1), (7, 2), (8, 2)]


def test_the_rate_comes_from_the_newest_seconds_only() -> None:
    history = History()
    for i in range(100):
        history.add(row(i, duration_s=10.0, samples=10))
    for i in range(100, 200):
        history.add(row(i, duration_s=0.1, samples=10))
    samples_per_s, iteration_s = history.rate()
    assert samples_per_s is not None
    assert iteration_s is not None
    assert abs(samples_per_s - 100) < 1
    assert abs(iteration_s - 0.1) < 1e-9
    assert RATE_S == 5.0


def test_senseless_durations_do_not_count_for_the_rate() -> None:
    history = History()
    for i, duration_s in enumerate([0.0, -1.0, 1e300, 0.5]):
        history.add(row(i, duration_s=duration_s, samples=10))
    assert history.rate() == (20.0, 0.5)
    assert History().rate() == (None, None)


def test_the_rate_is_that_of_the_rows_that_are_there_when_it_is_asked_for() -> None:
    history = History()
    history.add(row(0, duration_s=1.0))
    assert history.rate()[1] == 1.0
    history.add(row(1, duration_s=2.0))
    assert history.rate()[1] == 1.5
    history.add(row(0, duration_s=4.0, term=2))  # a rollback: both are void
    assert history.rate()[1] == 4.0


def test_a_curve_spans_the_whole_job_with_few_points() -> None:
    history = History()
    for i in range(10_000):
        history.add(row(i, workers=0))
    curve = [r.iteration for r in history.rows.curve(40)]
    assert len(curve) <= 40
    assert curve[0] == 0
    assert curve[-1] == 9_999
    assert max(b - a for a, b in itertools.pairwise(curve)) < 10_000 / 39 * 2.5
    assert History().rows.curve(40) == []


def test_shrinking_keeps_the_newest_and_the_first() -> None:
    history = History()
    for i in range(5_000):
        history.add(row(i))
    while not history.rows.smallest:
        history.shrink()
        history.check_invariants()
    assert len(history.rows) < 100
    assert numbers(history)[-8:] == list(range(4_992, 5_000))
    assert numbers(history)[0] == 0
