"""What predictors learn, and what they do not let themselves be told."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from emulated import alibaba
from hypothesis import given, settings
from hypothesis import strategies as st

from elps.balance import PREDICTORS, LinearTimes, Narx, Observation, Predictor, Readings
from elps.balance.arrays import NEW, FloatArray
from elps.balance.choosing import automatic
from elps.balance.cleaning import OUTLIER, Screen
from elps.balance.observing import Circumstances, by_rows
from elps.contracts.ids import WorkerId

BATCH = 100.0
names = sorted(PREDICTORS)


def readings(
    cost: FloatArray, samples: FloatArray | float = BATCH, cpu: FloatArray | None = None
) -> Readings:
    """Believed times of these costs per sample; NaN where there is none."""
    nothing = np.full(len(cost), np.nan)
    told = np.where(np.isfinite(cost), samples, np.nan)
    return Readings(
        samples=told,
        compute_s=cost * told,
        pull_s=told * 0,
        push_s=told * 0,
        current=Circumstances(nothing if cpu is None else cpu, nothing, nothing),
        changed=np.zeros(len(cost), dtype=np.bool_),
    )


def fresh(name: str, workers: int) -> Predictor:
    predictor = PREDICTORS[name](0)
    predictor.arrange(np.full(workers, NEW))
    return predictor


def taught(name: str, costs: FloatArray) -> LinearTimes:
    predictor = fresh(name, costs.shape[1])
    for cost in costs:
        predictor.observe(readings(cost))
    return predictor.predict()


@pytest.mark.parametrize("name", names)
def test_every_predictor_finds_a_constant_speed(name: str) -> None:
    said = taught(name, np.tile([0.001, 0.002, 5.0], (30, 1)))
    at = said.time_s(np.full(3, BATCH))
    assert at == pytest.approx([0.1, 0.2, 500.0], rel=1e-3)


@pytest.mark.parametrize("name", names)
def test_nothing_is_said_of_a_worker_that_was_never_measured(name: str) -> None:
    said = taught(name, np.tile([0.001, np.nan], (5, 1)))
    assert np.isfinite(said.per_sample_s[0])
    assert np.isnan(said.per_sample_s[1])


@pytest.mark.parametrize("name", names)
def test_a_step_is_followed_within_five_iterations(name: str) -> None:
    costs = np.repeat([[0.001, 0.001]], 60, axis=0)
    costs[50:, 1] = 0.004
    limit = {"average": 0.25, "narx": 0.25}.get(name, 0.05)
    said = taught(name, costs[:55]).time_s(np.full(2, BATCH))
    assert said[0] == pytest.approx(0.1, rel=0.01)
    assert said[1] == pytest.approx(0.4, rel=limit)


@pytest.mark.parametrize("name", names)
def test_workers_that_come_and_go_take_their_own_past_along(name: str) -> None:
    predictor = fresh(name, 3)
    for _ in range(10):
        predictor.observe(readings(np.array([0.001, 0.002, 0.004])))
    predictor.arrange(np.array([2, NEW, 0]))
    said = predictor.predict().time_s(np.full(3, BATCH))
    assert said[[0, 2]] == pytest.approx([0.4, 0.1], rel=1e-3)
    assert np.isnan(said[1])
    predictor.arrange(np.zeros(0, dtype=np.int64))
    assert len(predictor.predict().per_sample_s) == 0


strange = st.one_of(
    st.none(),
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from([0.0, -1.0, math.nan, 1e9, 1e-300, 1e300, 0.01, 0.02]),
)
report = st.tuples(*[strange] * 8)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.lists(report, min_size=2, max_size=2), max_size=25), st.sampled_from(names))
def test_whatever_is_reported_predictions_stay_finite_and_above_nothing(
    history: list[list[tuple[float | None, ...]]], name: str
) -> None:
    predictor, screen = fresh(name, 2), Screen()
    screen.arrange(np.full(2, NEW))
    for iteration in history:
        told = [Observation(WorkerId(str(i)), *values) for i, values in enumerate(iteration)]
        table = by_rows(told, {WorkerId("0"): 0, WorkerId("1"): 1}, 2)
        predictor.observe(screen.clean(table))
        said = predictor.predict()
        for part in (said.fixed_s, said.per_sample_s):
            known = part[~np.isnan(part)]
            assert np.isfinite(known).all()
            assert (known >= 0).all()
        assert not (said.per_sample_s == 0).any()


def clean(*iterations: Sequence[tuple[float | None, float | None]]) -> list[Readings]:
    screen = Screen()
    screen.arrange(np.full(len(iterations[0]), NEW))
    rows = {WorkerId(str(i)): i for i in range(len(iterations[0]))}
    return [
        screen.clean(
            by_rows(
                [Observation(WorkerId(str(i)), *two) for i, two in enumerate(one)], rows, len(rows)
            )
        )
        for one in iterations
    ]


@pytest.mark.parametrize("time", [None, math.nan, math.inf, 0.0, -1.0, 1e9, 1e-12])
def test_an_impossible_time_is_as_good_as_none(time: float | None) -> None:
    *_, last = clean(*[[(10, 1.0)]] * 3, [(10, time)])
    assert np.isnan(last.per_sample_s[0])


@pytest.mark.parametrize("samples", [None, math.nan, math.inf, 0, -1])
def test_a_time_without_samples_says_nothing(samples: float | None) -> None:
    *_, last = clean(*[[(10, 1.0)]] * 3, [(samples, 1.0)])
    assert np.isnan(last.per_sample_s[0])


def test_the_first_iteration_of_a_worker_is_warming_up() -> None:
    first, second = clean([(10, 50.0)], [(10, 1.0)])
    assert np.isnan(first.per_sample_s[0])
    assert second.per_sample_s[0] == pytest.approx(0.1)


def test_an_accident_is_passed_over_and_a_change_is_believed_at_the_second_time() -> None:
    far = 10.0 * OUTLIER
    steady = [[(10, 1.0)]] * 5
    accident, after = clean(*steady, [(10, far)], [(10, 1.0)])[-2:]
    assert np.isnan(accident.per_sample_s[0])
    assert after.per_sample_s[0] == pytest.approx(0.1)
    assert not after.changed[0]
    first, second, third = clean(*steady, [(10, far)], [(10, far)], [(10, far)])[-3:]
    assert np.isnan(first.per_sample_s[0])
    assert second.changed[0]
    assert second.per_sample_s[0] == pytest.approx(far / 10)
    assert not third.changed[0]
    assert third.per_sample_s[0] == pytest.approx(far / 10)


def test_of_two_reports_of_one_worker_the_later_counts_and_strangers_are_passed_over() -> None:
    told = [
        Observation(WorkerId("a"), 10, 1.0),
        Observation(WorkerId("stranger"), 10, 1.0),
        Observation(WorkerId("a"), 20, 3.0),
    ]
    table = by_rows(told, {WorkerId("a"): 1}, 2)
    assert table[0, 1] == 20
    assert np.isnan(table[:, 0]).all()


def contended(iterations: int, seed: int = 3) -> tuple[FloatArray, FloatArray]:
    """A machine whose processor is shared out anew every iteration, and what of it is free: ``(cost, cpu)``."""
    rng = np.random.default_rng(seed)
    cpu = rng.uniform(0.25, 1.0, (iterations, 4))
    return 0.001 / cpu * rng.uniform(0.98, 1.02, cpu.shape), cpu


def follow(predictor: Predictor, cost: FloatArray, cpu: FloatArray) -> FloatArray:
    """Logarithmic errors of the forecasts. Row *t* of `cpu` is seen at the barrier before iteration *t*."""
    errors = []
    for t in range(len(cost) - 1):
        predictor.observe(readings(cost[t], cpu=cpu[t + 1]))
        errors.append(np.log(predictor.predict().per_sample_s / cost[t + 1]))
    return np.array(errors)


def rms(errors: FloatArray) -> float:
    return float(np.sqrt(np.mean(errors**2)))


def test_narx_learns_what_the_processor_that_is_free_now_means_for_the_coming_iteration() -> None:
    cost, cpu = contended(150)
    narx = fresh("narx", 4)
    assert isinstance(narx, Narx)
    errors = follow(narx, cost, cpu)[60:]
    assert narx.trusted.all()
    others = {n: rms(follow(fresh(n, 4), cost, cpu)[60:]) for n in ("last", "average", "median")}
    assert rms(errors) < 0.3 * min(others.values())


def test_narx_gives_the_average_until_its_model_is_the_better_one() -> None:
    rng = np.random.default_rng(5)
    cost = 0.001 * np.exp(rng.normal(0, 0.1, (200, 16)))  # noise: there is nothing to be learned
    narx, average = fresh("narx", 16), fresh("average", 16)
    assert isinstance(narx, Narx)
    same = 0
    for t in range(200):
        narx.observe(readings(cost[t], cpu=rng.uniform(0, 1, 16)))
        average.observe(readings(cost[t]))
        said, safe = narx.predict().per_sample_s, average.predict().per_sample_s
        assert said[~narx.trusted] == pytest.approx(safe[~narx.trusted])
        same += int((~narx.trusted).sum())
        if t < 20:
            assert not narx.trusted.any()
    assert same > 0


def test_narx_is_left_at_once_when_its_world_ends() -> None:
    cost, cpu = contended(150)
    narx, average = fresh("narx", 4), fresh("average", 4)
    follow(narx, cost, cpu)
    follow(average, cost, cpu)
    rng = np.random.default_rng(1)
    flat = np.full((30, 4), 0.002)
    lost = follow(narx, flat, rng.uniform(0.25, 1.0, (30, 4)))
    kept = follow(average, flat, cpu[:30])
    assert rms(lost[15:]) < rms(kept[15:]) + 0.2


def test_a_newcomer_begins_with_what_the_others_learned() -> None:
    cost, cpu = contended(150)
    narx = fresh("narx", 4)
    follow(narx, cost, cpu)
    narx.arrange(np.array([0, 1, 2, 3, NEW]))
    more, free = contended(60, seed=9)
    more, free = np.hstack([more, more[:, :1]]), np.hstack([free, free[:, :1]])
    errors = follow(narx, more, free)
    assert isinstance(narx, Narx)
    assert narx.trusted.all()
    assert rms(errors[40:, 4]) < 0.1


def test_narx_of_all_workers_at_once_is_narx_of_each_alone() -> None:
    cost, cpu = contended(80)
    together = follow(fresh("narx", 4), cost, cpu)
    for i in range(4):
        alone = follow(fresh("narx", 1), cost[:, i : i + 1], cpu[:, i : i + 1])
        assert alone[:, 0] == pytest.approx(together[:, i], abs=1e-9)


def test_the_line_tells_the_fixed_part_from_the_slope_once_batches_differ() -> None:
    rng = np.random.default_rng(2)
    line = fresh("line", 1)
    for _ in range(60):
        samples = rng.integers(50, 200, 1).astype(np.float64)
        took = 0.05 + 0.001 * samples
        line.observe(readings(took / samples, samples))
    said = line.predict()
    assert said.fixed_s[0] == pytest.approx(0.05, rel=0.05)
    assert said.per_sample_s[0] == pytest.approx(0.001, rel=0.05)


def test_the_line_of_a_time_that_does_not_grow_still_rises() -> None:
    line = fresh("line", 1)
    for samples in [100.0, 50.0, 25.0, 100.0, 50.0] * 4:
        line.observe(readings(np.array([1.0 / samples]), np.array([samples])))
    assert line.predict().per_sample_s[0] > 0


def test_one_accident_does_not_alarm_the_line_and_two_do() -> None:
    rng = np.random.default_rng(0)
    steady = 0.001 * (1 + rng.uniform(-0.02, 0.02, 40))
    line = fresh("line", 1)
    for cost in [*steady, 0.003, *steady[:8]]:
        line.observe(readings(np.array([cost])))
    assert line.predict().time_s(np.array([BATCH]))[0] == pytest.approx(0.1, rel=0.1)
    line = fresh("line", 1)
    for cost in [*steady, 0.003, 0.003]:
        line.observe(readings(np.array([cost])))
    assert line.predict().time_s(np.array([BATCH]))[0] == pytest.approx(0.3, rel=0.05)


def test_the_best_of_late_is_the_last_value_on_steps_and_the_average_on_noise() -> None:
    rng = np.random.default_rng(4)
    best = automatic()
    best.arrange(np.full(2, NEW))
    steps = 0.001 * 2.0 ** rng.integers(0, 3, 20).repeat(10)
    noise = 0.001 * np.exp(rng.normal(0, 0.2, 200))
    for t in range(200):
        best.observe(readings(np.array([steps[t], noise[t]])))
    assert best.names[best.chosen[0]] in ("last", "line")
    assert best.names[best.chosen[1]] in ("average", "median", "narx", "line")


@pytest.mark.skipif(alibaba(1) is None, reason="the recorded traces are not on this machine")
@pytest.mark.parametrize("job", [1, 2, 3])
def test_on_recorded_jobs_narx_is_never_worse_than_the_average(job: int) -> None:
    cost = alibaba(job)
    assert cost is not None
    nothing = np.full_like(cost, np.nan)
    narx, average = (rms(follow(fresh(n, 10), cost, nothing)) for n in ("narx", "average"))
    assert narx < average * 1.01
