"""What `elps check` finds, on gradients written out by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from elps.cli.trial import (
    Finding,
    Floats,
    Gradient,
    Step,
    computes_in_float32,
    judge_means,
    judge_slope,
    judge_step,
    judge_sums,
    judge_tail,
    take_step,
)
from elps.contracts.codec import parse_job
from elps.contracts.errors import TaskError
from elps.contracts.job import JobDocument
from elps.stream.geometry import Geometry
from elps.stream.interval import Interval
from elps.tasks.layout import Layout

N, D = 64, 3
RNG = np.random.default_rng(7)
X, Y = RNG.standard_normal((N, D)), RNG.standard_normal(N)
GEOMETRY = Geometry(N, 16)
LAYOUT = Layout.of({"w": np.zeros(D)}, "float64")


def job(**more: object) -> JobDocument:
    return parse_job(
        {"task": "x", "passes": 2, "dtype": "float64", "batch": {"global": 16}, **more}
    )


def squares(params: Floats, interval: Interval) -> tuple[float, Floats]:
    """Least squares, summed over the samples: a task as it should be."""
    x, y = X[interval.lo : interval.hi], Y[interval.lo : interval.hi]
    off = x @ params - y
    return float(0.5 * (off**2).sum()), x.T @ off


def step_of(document: JobDocument, layout: Layout, start: Floats, gradient: Gradient) -> Step:
    first = gradient(start, GEOMETRY.iteration(0))
    return take_step(document, layout, start, first, gradient, GEOMETRY)


def sums_of(start: Floats, gradient: Gradient, geometry: Geometry = GEOMETRY) -> Iterator[Finding]:
    batch = geometry.iteration(0)
    twice = gradient(start, batch), gradient(start, batch)
    return judge_sums(job(), start, twice, gradient, geometry)


def found(findings: Iterator[Finding], about: str) -> Finding:
    [finding] = [f for f in findings if f.about == about]
    return finding


def test_a_good_task_passes_every_question() -> None:
    start = np.ones(D)
    step = step_of(job(), LAYOUT, start, squares)
    findings = [*judge_step(step), *sums_of(start, squares)]
    findings.append(judge_slope(start, squares, GEOMETRY.iteration(0)))
    assert [f.about for f in findings] == ["finite", "step", "repeatable", "additive", "slope"]
    assert all(f.ok for f in findings)
    assert step.loss_after < step.loss_before
    assert (start == 1).all()


def test_means_in_place_of_sums_are_recognised() -> None:
    def means(params: Floats, interval: Interval) -> tuple[float, Floats]:
        loss, g = squares(params, interval)
        return loss / interval.size, g / interval.size

    finding = found(sums_of(np.ones(D), means), "additive")
    assert not finding.ok
    assert "gives means over its batch" in finding.text


def test_a_task_that_couples_samples_is_told_to_set_a_granule() -> None:
    def normed(params: Floats, interval: Interval) -> tuple[float, Floats]:
        loss, g = squares(params, interval)
        return loss, g / X[interval.lo : interval.hi].std()

    finding = found(sums_of(np.ones(D), normed), "additive")
    assert not finding.ok
    assert "Set batch.granule (for instance 4)" in finding.text


def test_a_batch_of_one_granule_needs_no_sums() -> None:
    def normed(params: Floats, interval: Interval) -> tuple[float, Floats]:
        loss, g = squares(params, interval)
        return loss, g / X[interval.lo : interval.hi].std()

    whole = Geometry(N, 16, 16)
    assert found(sums_of(np.ones(D), normed, whole), "additive").ok


def test_means_within_granules_are_told_and_sums_are_not() -> None:
    def means(params: Floats, interval: Interval) -> tuple[float, Floats]:
        loss, g = squares(params, interval)
        return loss / interval.size, g / interval.size

    whole = Geometry(N, 16, 8)
    [finding] = judge_means(np.full(D, 9.0), means, whole)
    assert not finding.grave
    assert "4 and 4 samples add up to about twice the loss of all 8" in finding.text
    assert not list(judge_means(np.full(D, 9.0), squares, whole))
    assert not list(judge_means(np.full(D, 9.0), means, Geometry(N, 16)))


@pytest.mark.parametrize(
    ("samples", "told"),
    [
        (33, "the last batch of a pass, of 1 sample: too"),
        (57, "the last batch of a pass, of 9 samples, the last 1 in a call of its own: too"),
        (56, None),
    ],
)
def test_a_task_that_fails_on_what_is_left_over_is_told(samples: int, told: str | None) -> None:
    geometry = Geometry(samples, 16, 4)

    def two_or_more(params: Floats, interval: Interval) -> tuple[float, Floats]:
        if interval.size % geometry.granule == 1:
            raise TaskError("too few")
        return squares(params, interval)

    texts = [f.text for f in judge_tail(np.ones(D), two_or_more, geometry)]
    assert len(texts) == (told is not None)
    assert all(text.startswith(str(told)) and "Set batch.global or" in text for text in texts)


def test_hidden_randomness_is_recognised() -> None:
    rng = np.random.default_rng()

    def noisy(params: Floats, interval: Interval) -> tuple[float, Floats]:
        loss, g = squares(params, interval)
        return loss, g * rng.uniform(0.5, 1.5, D)

    [finding] = sums_of(np.ones(D), noisy)
    assert finding.about == "repeatable"
    assert not finding.ok


@pytest.mark.parametrize(
    ("spoil", "ok"),
    [
        (lambda g: g, True),
        (lambda g: -g, False),
        (lambda g: 2 * g, False),
        (lambda g: g * 0, False),
    ],
)
def test_a_gradient_that_is_not_the_slope_is_found(
    spoil: Callable[[Floats], Floats], ok: bool
) -> None:
    def spoiled(params: Floats, interval: Interval) -> tuple[float, Floats]:
        loss, g = squares(params, interval)
        return loss, spoil(g)

    assert judge_slope(np.ones(D), spoiled, GEOMETRY.iteration(0)).ok is ok


def test_single_precision_inside_a_task_is_recognised() -> None:
    def narrow(params: Floats, interval: Interval) -> tuple[float, Floats]:
        return squares(params.astype(np.float32).astype(np.float64), interval)

    batch = GEOMETRY.iteration(0)
    for start in (np.zeros(D), np.full(D, 0.1)):
        assert computes_in_float32(start, narrow, batch)
        assert not computes_in_float32(start, squares, batch)


def test_nan_names_the_parameter_and_asks_nothing_more() -> None:
    def broken(params: Floats, interval: Interval) -> tuple[float, Floats]:
        return squares(params, interval)[0], np.full(D, np.nan)

    [finding] = judge_step(step_of(job(), LAYOUT, np.ones(D), broken))
    assert not finding.ok
    assert "not finite in w" in finding.text


def test_a_rate_that_is_too_large_is_a_warning_only() -> None:
    high = job(optimizer={"name": "sgd", "lr": 100.0})
    step = step_of(high, LAYOUT, np.ones(D), squares)
    finding = found(judge_step(step), "step")
    assert not finding.ok
    assert not finding.grave
    assert "smaller optimizer.lr" in finding.text


def test_a_zero_gradient_is_grave_and_a_still_parameter_is_told() -> None:
    def zero(params: Floats, interval: Interval) -> tuple[float, Floats]:
        return 1.0, np.zeros(D)

    finding = found(judge_step(step_of(job(), LAYOUT, np.ones(D), zero)), "step")
    assert finding.grave
    two = Layout.of({"w": np.zeros(D), "unused": np.zeros(2)}, "float64")

    def half(params: Floats, interval: Interval) -> tuple[float, Floats]:
        loss, g = squares(params[:D], interval)
        return loss, np.concatenate([g, np.zeros(2)])

    findings = list(judge_step(step_of(job(), two, np.ones(D + 2), half)))
    assert findings[-1].text.startswith("no gradient in unused")


def test_a_gradient_function_is_never_given_the_same_buffers_twice() -> None:
    kept: list[Floats] = []

    def keeping(params: Floats, interval: Interval) -> tuple[float, Floats]:
        kept.append(params.copy())
        return squares(params, interval)

    gradient: Gradient = keeping
    list(sums_of(np.ones(D), gradient))
    assert all((p == 1).all() for p in kept)
