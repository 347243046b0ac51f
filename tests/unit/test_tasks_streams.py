"""Calling a user's task whose gradient comes in parts; evaluating it; its beginning."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from task_calls import Good, Numbers, gradient_of, open_with

from elps.contracts.errors import TaskError
from elps.data.failing import traceback_text

# --- streams ----------------------------------------------------------------------------------------------------------


def streaming(*items: Any, loss: Any = 1.0) -> Any:
    class Streaming(Good):
        loss_and_grad = None  # type: ignore[assignment]

        def grad_stream(self, params: Any, batch: Any) -> Any:
            yield from items
            return loss

    return Streaming()


def test_a_streamed_gradient_is_emitted_before_the_next_part_is_computed() -> None:
    events: list[str] = []

    class Streaming(Good):
        def grad_stream(self, params: Any, batch: Any) -> Any:
            events.append("computes b")
            yield "b", 2.0
            events.append("computes w")
            yield "w", np.full((2, 3), 7.0)
            return batch.sum()

    loss, out = gradient_of(
        open_with(Streaming()), emit=lambda name: events.append(f"emits {name}")
    )
    assert events == ["computes b", "emits b", "computes w", "emits w"]
    assert loss == gradient_of(open_with(Good()))[0]
    assert out.tolist() == [7.0] * 6 + [2.0]


@pytest.mark.parametrize(
    ("task", "said"),
    [
        (streaming(("b", 1.0)), "no gradient for 'w'"),
        (streaming(("b", 1.0), ("b", 1.0)), "'b' is yielded twice; expected 'w'"),
        (streaming(("c", 1.0)), "'c' is no parameter of init"),
        (streaming("b"), r"yielded 'b' \(str\); expected \(parameter, gradient sum\)"),
        (streaming(("w", 1.0)), r"gradient of 'w' has shape \(\)"),
        (streaming(("b", 1.0), ("w", np.ones((2, 3))), loss=None), "the loss is None"),
    ],
)
def test_a_wrong_stream_is_named(task: Any, said: str) -> None:
    with pytest.raises(TaskError, match=said):
        gradient_of(open_with(task))


def test_an_exception_in_a_stream_keeps_its_traceback() -> None:
    class Failing(Good):
        def grad_stream(self, params: Any, batch: Any) -> Any:
            yield "b", 1.0
            raise ZeroDivisionError("in the middle")

    with pytest.raises(TaskError, match=r"grad_stream on samples .*in the middle") as caught:
        gradient_of(open_with(Failing()))
    assert "ZeroDivisionError" in traceback_text(caught.value)


# --- evaluation and the beginning -------------------------------------------------------------------------------------


def test_evaluation_sums_over_the_test_samples_asked_for() -> None:
    class Evaluating(Good):
        def evaluate(self, params: Any, batch: Any) -> Any:
            return {"sum": batch.sum(), "count": np.int64(len(batch))}

    job = open_with(Evaluating(), test=Numbers())
    parts = [job.evaluate(job.initial(), lo, hi) for lo, hi in ((0, 7), (7, 20))]
    assert job.evaluate(job.initial(), 0, 20) == {"sum": 190.0, "count": 20.0}
    assert [p["sum"] for p in parts] == [21.0, 169.0]
    assert job.evaluate(job.initial(), 4, 4) == {}
    with pytest.raises(ValueError, match="no test samples 5 to 21"):
        job.evaluate(job.initial(), 5, 21)


def test_without_evaluate_the_loss_is_the_metric() -> None:
    job = open_with(Good(), test=Numbers())
    assert job.evaluate(job.initial(), 0, 20) == {"loss": 190.0}


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        (0.5, "returned float; expected a dict"),
        ({"a": "1"}, "metric 'a' is '1'"),
        ({1: 1.0}, "expected a dict"),
    ],
)
def test_wrong_metrics_are_named(metrics: Any, said: str) -> None:
    class Evaluating(Good):
        def evaluate(self, params: Any, batch: Any) -> Any:
            return metrics

    job = open_with(Evaluating(), test=Numbers())
    with pytest.raises(TaskError, match=said):
        job.evaluate(job.initial(), 0, 20)


def test_parameters_that_are_not_finite_at_the_start_are_refused_by_name() -> None:
    class Infinite(Good):
        def init(self, rng: Any) -> Any:
            return {"w": np.full((2, 3), 1e300), "b": np.array(0.5)}

    with pytest.raises(TaskError, match=r"NaN or infinity in parameter 'w' \(as float32\)"):
        open_with(Infinite()).initial()
    assert open_with(Infinite(), "float64").initial()[0] == 1e300


def test_an_init_that_changes_its_mind_is_refused() -> None:
    class Changing(Good):
        def init(self, rng: Any) -> Any:
            return {"w": np.ones((2, 4)), "b": np.array(0.5)}

    with pytest.raises(TaskError, match="init gave other parameters than a moment ago"):
        open_with(Changing()).initial()
