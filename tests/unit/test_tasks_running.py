"""Calling a user's task: what it gets, and what becomes of what it returns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from task_calls import SAMPLES, Good, Numbers, good_gradients, gradient_of, open_with, returning

from elps.contracts.errors import TaskError
from elps.data.failing import traceback_text
from elps.stream.interval import Interval
from elps.stream.order import sample_rng
from elps.tasks.layout import Layout
from elps.tasks.running import OpenJob


def test_the_gradient_is_that_of_exactly_the_intervals_samples() -> None:
    job = open_with(Good())
    _, indices = job.order().indices(Interval(SAMPLES + 3, SAMPLES + 11))
    loss, out = gradient_of(job, SAMPLES + 3, SAMPLES + 11)
    assert loss == indices.sum()
    assert out.tolist() == [float(indices.sum())] * 6 + [8.0]


def test_each_parameter_is_emitted_once_when_its_part_is_final() -> None:
    job = open_with(Good())
    params, out = job.initial(), np.full(7, np.nan, "f")
    seen = {}

    def emit(name: str) -> None:
        assert name not in seen
        seen[name] = job.layout.views(out)[name].copy()

    job.gradient(params, Interval(0, 5), job.order(), out, emit)
    assert list(seen) == ["w", "b"]
    for name, view in job.layout.views(out).items():
        np.testing.assert_array_equal(view, seen[name])


def test_what_emit_raises_is_not_the_tasks_fault() -> None:
    def broken(name: str) -> None:
        raise ConnectionResetError(name)

    with pytest.raises(ConnectionResetError):
        gradient_of(open_with(Good()), emit=broken)


def test_an_empty_interval_gives_zeros_without_calling_the_task() -> None:
    class Never(Good):
        def loss_and_grad(self, params: Any, batch: Any) -> Any:
            raise AssertionError

    emitted: list[str] = []
    loss, out = gradient_of(open_with(Never()), 4, 4, emitted.append)
    assert (loss, out.tolist(), emitted) == (0.0, [0.0] * 7, ["w", "b"])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gradients_of_any_kind_land_right(dtype: str) -> None:
    kinds: list[Any] = [
        np.arange(6.0).reshape(3, 2).T,
        np.arange(24.0).reshape(4, 6)[::2, ::2],
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.arange(6.0).reshape(2, 3).astype(">f8"),
        np.arange(6).reshape(2, 3),
        np.arange(6).reshape(2, 3).astype(np.float16),
        [[0, 1, 2], [3, 4, 5.0]],
        np.broadcast_to(np.float32(2), (2, 3)),
    ]
    for kind in kinds:
        _, out = gradient_of(open_with(returning((1, {"w": kind, "b": np.float64(3)})), dtype))
        np.testing.assert_array_equal(out[:6].reshape(2, 3), np.asarray(kind).astype(dtype))
        assert out[6] == 3


def test_views_of_parameters_and_one_array_twice_are_copied() -> None:
    class Aliasing:
        def init(self, rng: Any) -> Any:
            return {"a": np.arange(3.0), "b": np.arange(3.0) + 10}

        def loss_and_grad(self, params: Any, batch: Any) -> Any:
            return 0, {"a": params["b"][::-1], "b": params["b"]}

    job = open_with(Aliasing())
    job = OpenJob(
        job.document, job.task, job.train, None, Layout.of(job.task.init(None), "float32"), "f", "c"
    )
    params, out = job.initial(), np.zeros(6, "f")
    job.gradient(params, Interval(0, 2), job.order(), out)
    assert out.tolist() == [12, 11, 10, 10, 11, 12]
    assert params.tolist() == [0, 1, 2, 10, 11, 12]


def test_a_buffer_that_the_task_uses_again_does_no_harm() -> None:
    class Reusing(Good):
        buffer = np.zeros((2, 3))

        def loss_and_grad(self, params: Any, batch: Any) -> Any:
            self.buffer[...] = batch.sum()
            return batch.sum(), {"w": self.buffer, "b": float(len(batch))}

    loss, out = gradient_of(open_with(Reusing(), granule=2), 0, 6)
    assert out.tolist() == [loss] * 6 + [6.0]


def test_parameters_are_read_only_and_the_error_says_whose_code_it_was() -> None:
    class Writing(Good):
        def loss_and_grad(self, params: Any, batch: Any) -> Any:
            params["w"] += 1
            return 0, good_gradients()

    with pytest.raises(
        TaskError,
        match=r"task 'mod:Task': loss_and_grad on samples \[0, 5\): ValueError.*read-only",
    ) as caught:
        gradient_of(open_with(Writing()))
    assert isinstance(caught.value.__cause__, ValueError)
    assert 'params["w"] += 1' in traceback_text(caught.value)


def test_a_task_that_empties_its_dict_harms_no_later_call() -> None:
    class Emptying(Good):
        def loss_and_grad(self, params: Any, batch: Any) -> Any:
            result = super().loss_and_grad(params, batch)
            params.clear()
            return result

    assert gradient_of(open_with(Emptying(), granule=1))[0] == gradient_of(open_with(Good()))[0]
    assert (
        gradient_of(open_with(Emptying(), granule=2), 0, 8)[0]
        == gradient_of(open_with(Good()), 0, 8)[0]
    )


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (None, r"returned None \(NoneType\); expected \(loss sum, dict"),
        ((1.0,), r"returned a tuple \(float\)"),
        ((1.0, [1]), r"returned a tuple \(float, list\)"),
        ((1.0, {"w": np.ones((2, 3))}), "no gradient for 'b'; expected one for each of 'b', 'w'"),
        ((1.0, {**good_gradients(), "x": 1.0}), "'x' not among the parameters of init"),
        (
            (1.0, {**good_gradients(), "w": np.ones((3, 2))}),
            r"gradient of 'w' has shape \(3, 2\), expected \(2, 3\)",
        ),
        (
            (1.0, {**good_gradients(), "b": np.ones(1)}),
            r"gradient of 'b' has shape \(1,\), expected \(\)",
        ),
        (
            (1.0, {**good_gradients(), "w": 1.0}),
            r"gradient of 'w' has shape \(\), expected \(2, 3\)",
        ),
        (
            (1.0, {**good_gradients(), "w": np.ones((2, 3), complex)}),
            "gradient of 'w' is of complex128, expected float32",
        ),
        ((1.0, {**good_gradients(), "w": None}), "gradient of 'w' is of object"),
        ((None, good_gradients()), r"the loss is None \(NoneType\); expected one real number"),
        (("0.3", good_gradients()), "the loss is '0.3'"),
        ((np.ones(2), good_gradients()), r"the loss is an array of float64 with shape \(2,\)"),
        ((1j, good_gradients()), "the loss is 1j"),
    ],
)
def test_a_wrong_result_is_named_with_what_was_expected(result: Any, said: str) -> None:
    with pytest.raises(TaskError, match=said) as caught:
        gradient_of(open_with(returning(result)))
    assert str(caught.value).startswith("task 'mod:Task': loss_and_grad on samples [0, 5)")


@pytest.mark.parametrize("loss", [2, np.float32(2), np.array(2.0), np.array([[2.0]])])
def test_a_loss_may_be_any_single_real_number(loss: Any) -> None:
    assert gradient_of(open_with(returning((loss, good_gradients()))))[0] == 2.0


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_are_handed_on_for_the_skip_rule(bad: float) -> None:
    loss, out = gradient_of(open_with(returning((bad, {**good_gradients(), "b": bad}))))
    np.testing.assert_equal((loss, out[6]), (bad, np.float32(bad)))


def test_a_gradient_beyond_float32_becomes_infinite_without_a_warning() -> None:
    _, out = gradient_of(open_with(returning((1.0, {**good_gradients(), "b": 1e300}))))
    assert out[6] == np.inf


@pytest.mark.parametrize("error", [MemoryError(), SystemExit(3), KeyboardInterrupt()])
def test_the_death_of_a_process_is_not_taken_for_a_fault_of_the_task(error: BaseException) -> None:
    class Dying(Good):
        def loss_and_grad(self, params: Any, batch: Any) -> Any:
            raise error

    with pytest.raises(type(error)):
        gradient_of(open_with(Dying()))


def test_data_that_cannot_be_fetched_is_told_from_a_failing_model() -> None:
    class Broken(Numbers):
        def get(self, indices: Any) -> Any:
            raise KeyError("column")

    job = open_with(Good())
    job = OpenJob(job.document, job.task, Broken(), None, job.layout, "f", "c")
    with pytest.raises(
        TaskError, match=r"task 'mod:Task': data of samples \[0, 5\): KeyError: 'column'"
    ):
        gradient_of(job)


# --- granules ---------------------------------------------------------------------------------------------------------


def test_with_a_granule_the_task_is_called_once_for_each_and_sums_are_added() -> None:
    calls: list[int] = []

    class Counting(Good):
        def loss_and_grad(self, params: Any, batch: Any) -> Any:
            calls.append(len(batch))
            return super().loss_and_grad(params, batch)

    whole = gradient_of(open_with(Good()), 6, 20)
    parts = gradient_of(open_with(Counting(), granule=3), 6, 20)
    assert calls == [3, 3, 3, 3, 2]  # the pass of 20 samples ends within a granule
    assert parts[0] == whole[0]
    np.testing.assert_array_equal(parts[1], whole[1])


def test_with_a_granule_a_parameter_is_emitted_after_its_last_part() -> None:
    emitted: list[str] = []
    gradient_of(open_with(Good(), granule=2), 0, 8, emitted.append)
    assert emitted == ["w", "b"]


class Drawing(Good):
    def loss_and_grad(self, params: Any, batch: Any, *, rng: Any) -> Any:
        drawn = (
            sum(rng[i].random() for i in range(len(rng)))
            if hasattr(rng, "__len__")
            else rng.random()
        )
        return drawn, good_gradients()


def test_each_sample_draws_the_same_numbers_whoever_computes_it() -> None:
    job = open_with(Drawing())
    whole = gradient_of(job, SAMPLES, SAMPLES + 12)[0]
    cut = gradient_of(job, SAMPLES, SAMPLES + 5)[0] + gradient_of(job, SAMPLES + 5, SAMPLES + 12)[0]
    assert whole == pytest.approx(cut, abs=1e-12)
    _, indices = job.order().indices(Interval(SAMPLES, SAMPLES + 12))
    assert whole == pytest.approx(
        sum(sample_rng(3, 1, int(i)).random() for i in indices), abs=1e-12
    )


def test_each_granule_draws_the_same_numbers_whoever_computes_it() -> None:
    job = open_with(Drawing(), granule=4)
    whole = gradient_of(job, 0, 16)[0]
    assert whole == pytest.approx(gradient_of(job, 0, 4)[0] + gradient_of(job, 4, 16)[0], abs=1e-12)
    assert whole == pytest.approx(sum(sample_rng(3, 0, k).random() for k in range(4)), abs=1e-12)


def test_a_sample_goes_on_drawing_when_asked_for_its_generator_again() -> None:
    class Twice(Good):
        def loss_and_grad(self, params: Any, batch: Any, rng: Any) -> Any:
            assert rng[0].random() != rng[0].random()
            return 0, good_gradients()

    gradient_of(open_with(Twice()))
