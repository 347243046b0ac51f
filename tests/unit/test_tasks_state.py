"""What no gradient trains: declared with a rule, laid out last, and pushed as its rule wants it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from task_calls import gradient_of, open_with

from elps.contracts.errors import ProtocolError, TaskError
from elps.stream.interval import Interval
from elps.tasks.layout import Layout
from elps.tasks.running import OpenJob

RULES = {"mean": "mean", "top": "max", "tail": "last"}


class Stateful:
    state_rules = RULES

    def init(self, rng: Any) -> Any:
        return {"mean": np.zeros(2), "w": np.ones(1), "top": -1.0, "tail": 0.0}

    def loss_and_grad(self, params: Any, batch: Any) -> Any:
        numbers = np.asarray(batch, float)
        state = {"mean": [numbers.mean()] * 2, "top": numbers.max(), "tail": numbers[-1]}
        return numbers.sum(), {"w": [numbers.sum()], **state}


class InPlace(Stateful):
    def grad_into(self, params: Any, batch: Any, gradients: Any) -> Any:
        loss, found = self.loss_and_grad(params, batch)
        gradients["w"] += found.pop("w")
        return loss, found


def opened(task: Any, granule: int = 1) -> OpenJob:
    layout = Layout.of(task.init(None), "float32", RULES)
    return replace(open_with(task, granule=granule), layout=layout)


def test_state_lies_after_what_is_trained_whatever_the_order_of_init() -> None:
    layout = Layout.of(Stateful().init(None), "float32", RULES)
    assert [p.name for p in layout.parameters] == ["w", "mean", "top", "tail"]
    assert (layout.trained, layout.size) == (1, 5)
    assert Layout.from_wire(layout.to_wire()) == layout
    plain = Layout.of({"w": np.ones(1)}, "float32")
    assert "rules" not in plain.to_wire()
    assert plain.trained == plain.size


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ({"w": "median"}, "'median' for 'w'; expected mean, max, last"),
        ({"v": "mean"}, "names 'v', which init does not return"),
        (["w"], "expected a dict of name to rule"),
        ({"w": "mean"}, "there is nothing to train"),
    ],
)
def test_rules_that_mean_nothing_are_refused(rules: Any, words: str) -> None:
    with pytest.raises(TaskError, match=words):
        Layout.of({"w": np.ones(1)}, "float32", rules)


@pytest.mark.parametrize(
    "rules", [{"a": "mean"}, {"c": "mean"}, {"b": "sum"}, ["b"], {"b": ["mean"]}]
)
def test_a_layout_from_a_peer_has_its_state_last_and_known_rules(rules: Any) -> None:
    wire = {"dtype": "float32", "parameters": [["a", [1]], ["b", [1]]], "rules": rules}
    with pytest.raises(ProtocolError):
        Layout.from_wire(wire)


@pytest.mark.parametrize("task", [Stateful, InPlace])
@pytest.mark.parametrize("granule", [1, 4])
def test_a_lease_pushes_what_the_rules_want(task: Any, granule: int) -> None:
    job = opened(task(), granule)
    assert job.layout.rules == RULES
    _, indices = job.order().indices(Interval(0, 10))
    numbers = np.asarray(job.train.get(indices), float)
    loss, out = gradient_of(job, 0, 10)
    assert loss == numbers.sum()
    expected = [numbers.sum(), numbers.sum(), numbers.sum(), numbers.max(), numbers[-1]]
    np.testing.assert_allclose(out, expected, rtol=1e-6)


def test_a_task_that_forgets_its_state_is_told_so() -> None:
    class Forgetful(InPlace):
        def grad_into(self, params: Any, batch: Any, gradients: Any) -> Any:
            loss, found = super().grad_into(params, batch, gradients)
            del found["tail"]
            return loss, found

    class Bare(InPlace):
        def grad_into(self, params: Any, batch: Any, gradients: Any) -> Any:
            return super().grad_into(params, batch, gradients)[0]

    with pytest.raises(TaskError, match="no gradient for 'tail'"):
        gradient_of(opened(Forgetful()))
    with pytest.raises(TaskError, match=r"expected \(loss sum, dict of state to value\)"):
        gradient_of(opened(Bare()))
