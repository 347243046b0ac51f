"""The built-in models: right derivatives, on dense and sparse features, at any size of score."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse

from elps.contracts.errors import TaskError
from elps.data.dataset import Samples
from elps.tasks.builtin import TASKS
from elps.tasks.builtin.losses import hinge, logistic, softmax, squared_hinge

ROWS, FEATURES = 12, 5

MODELS: dict[str, tuple[str, dict[str, Any], str]] = {
    "linear": ("linear", {"l2": 0.1}, "real"),
    "logistic 0/1": ("logistic", {}, "two"),
    "logistic -1/1": ("logistic", {"l2": 0.3}, "signs"),
    "svm 0/1": ("svm", {}, "two"),
    "svm -1/1, squared": ("svm", {"l2": 0.3, "loss": "squared_hinge"}, "signs"),
    "softmax": ("softmax", {"l2": 0.2}, "four"),
    "mlp relu softmax": ("mlp", {"hidden": [7, 6], "l2": 0.1}, "four"),
    "mlp tanh squared": ("mlp", {"hidden": [4], "activation": "tanh", "loss": "squared"}, "real"),
    "mlp squared, two targets": (
        "mlp",
        {"hidden": [4], "activation": "tanh", "loss": "squared"},
        "pairs",
    ),
    "mlp without hidden layer": ("mlp", {"hidden": []}, "four"),
}


def samples(targets: str, dtype: str = "float64", sparse: bool = False) -> Samples:
    rng = np.random.default_rng(4)
    x = rng.standard_normal((ROWS, FEATURES)) * (rng.random((ROWS, FEATURES)) < 0.6)
    y = {
        "real": rng.standard_normal(ROWS),
        "pairs": rng.standard_normal((ROWS, 2)),
        "two": np.arange(ROWS) % 2,
        "signs": np.arange(ROWS) % 2 * 2 - 1,
        "four": np.arange(ROWS) % 4,
    }[targets]
    x = x.astype(dtype)
    return Samples(scipy.sparse.csr_array(x) if sparse else x, y, np.dtype(dtype), "made up")


def model(
    name: str, dtype: str = "float64", sparse: bool = False
) -> tuple[Any, dict[str, Any], Any]:
    """The task, parameters away from 0, and a batch of everything."""
    kind, args, targets = MODELS[name]
    data = samples(targets, dtype, sparse)
    task = TASKS[kind](**args, dataset=data)
    rng = np.random.default_rng(1)
    params = {
        k: np.array(v + 0.3 * rng.standard_normal(np.shape(v)), dtype)
        for k, v in task.init(rng).items()
    }
    return task, params, data.get(np.arange(ROWS, dtype=np.int64))


@pytest.mark.parametrize("name", MODELS)
def test_the_gradient_is_the_derivative_of_the_loss(name: str) -> None:
    task, params, batch = model(name)
    _, gradient = task.loss_and_grad(params, batch)
    assert sorted(gradient) == sorted(params)
    for key, value in params.items():
        numeric = np.zeros_like(value)
        for at in np.ndindex(value.shape):
            ends = []
            for step in (1e-6, -1e-6):
                moved = {**params, key: value.copy()}
                moved[key][at] += step
                ends.append(task.loss_and_grad(moved, batch)[0])
            numeric[at] = (ends[0] - ends[1]) / 2e-6
        assert gradient[key].shape == value.shape
        np.testing.assert_allclose(gradient[key], numeric, rtol=1e-5, atol=1e-6, err_msg=key)


@pytest.mark.parametrize("name", MODELS)
def test_sums_over_parts_of_a_batch_are_those_over_the_whole(name: str) -> None:
    task, params, (x, y) = model(name)
    loss, gradient = task.loss_and_grad(params, (x, y))
    parts = [
        task.loss_and_grad(params, (x[s], y[s])) for s in (slice(0, 1), slice(1, 8), slice(8, ROWS))
    ]
    assert loss == pytest.approx(sum(p[0] for p in parts), rel=1e-13)
    for key, value in gradient.items():
        np.testing.assert_allclose(value, sum(p[1][key] for p in parts), rtol=1e-11, atol=1e-13)
    metrics = [task.evaluate(params, (x[s], y[s])) for s in (slice(0, 5), slice(5, ROWS))]
    for key, whole in task.evaluate(params, (x, y)).items():
        assert whole == pytest.approx(sum(m[key] for m in metrics), rel=1e-12)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sparse_features_give_what_dense_ones_give(name: str, dtype: str) -> None:
    task, params, batch = model(name, dtype)
    _, _, sparse = model(name, dtype, sparse=True)
    loss, gradient = task.loss_and_grad(params, batch)
    other_loss, other = task.loss_and_grad(params, sparse)
    tolerance = 1e-5 if dtype == "float32" else 1e-12
    assert loss == pytest.approx(other_loss, rel=tolerance)
    for key, value in gradient.items():
        assert isinstance(other[key], np.ndarray | np.generic)
        assert value.dtype == other[key].dtype == np.dtype(dtype)
        np.testing.assert_allclose(value, other[key], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", [n for n in MODELS if n.startswith("mlp")])
def test_the_perceptrons_stream_goes_from_the_last_layer_to_the_first(name: str) -> None:
    task, params, batch = model(name)
    names = [name for name, _ in task.grad_stream(params, batch)]
    assert sorted(names) == sorted(params)
    layers = [int(n[5]) for n in names]
    assert layers == sorted(layers, reverse=True)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_huge_scores_neither_overflow_nor_lose_the_loss(dtype: str) -> None:
    scores = np.array([1e4, -1e4, 0.0, 1e30, -1e30], dtype)
    with np.errstate(all="raise", under="ignore"):
        loss, derivative = logistic(scores, np.array([0, 1, 1, 1, 0]))
    np.testing.assert_allclose(loss, [1e4, 1e4, np.log(2), 0, 0], rtol=1e-6)
    np.testing.assert_allclose(derivative, [1, -1, -0.5, 0, 0], atol=1e-12)
    with np.errstate(all="raise", under="ignore"):
        loss, derivative = softmax(
            np.array([[1e4, 0], [-1e4, 0], [1e30, 1e30]], dtype), np.array([1, 0, 0])
        )
    np.testing.assert_allclose(loss, [1e4, 1e4, np.log(2)], rtol=1e-6)
    np.testing.assert_allclose(derivative, [[1, -1], [-1, 1], [-0.5, 0.5]], atol=1e-6)


def test_the_hinge_counts_what_lacks_of_a_margin_of_1() -> None:
    scores, y = np.array([2.0, 0.5, -0.5, 1.0, -3.0]), np.array([1, 1, 1, 1, 0])
    loss, derivative = hinge(scores, y)
    assert loss.tolist() == [0, 0.5, 1.5, 0, 0]
    assert derivative.tolist() == [0, -1, -1, 0, 0]
    loss, derivative = squared_hinge(scores, y)
    assert loss.tolist() == [0, 0.25, 2.25, 0, 0]
    assert derivative.tolist() == [0, -1, -3, 0, 0]


def test_accuracy_counts_the_right_answers() -> None:
    task = TASKS["logistic"](features=1)
    params = {"weights": np.array([1.0]), "bias": np.array(0.0)}
    batch = (np.array([[1.0], [-1.0], [2.0], [-2.0]]), np.array([1, -1, -1, 1]))
    assert task.evaluate(params, batch)["accuracy"] == 2
    task = TASKS["softmax"](features=1, classes=3)
    params = {"weights": np.array([[1.0, 0.0, -1.0]]), "bias": np.zeros(3)}
    assert task.evaluate(params, (batch[0], np.array([0, 2, 1, 2])))["accuracy"] == 3


def test_mean_squared_error_is_a_sum_of_squares() -> None:
    task = TASKS["linear"](features=1)
    params = {"weights": np.array([2.0]), "bias": np.array(1.0)}
    assert task.evaluate(params, (np.array([[1.0], [2.0]]), np.array([1.0, 8.0]))) == {
        "loss": 6.5,
        "mse": 13.0,
    }


@pytest.mark.parametrize(
    ("kind", "args", "targets", "said"),
    [
        ("linear", {"l2": -1}, "real", "task_args.l2 is -1, expected a number of at least 0"),
        ("linear", {"l2": "1"}, "real", "task_args.l2 is '1'"),
        ("linear", {"l2": True}, "real", "task_args.l2 is True"),
        ("linear", {"features": 4}, "real", "task_args.features is 4, but made up has 5"),
        ("linear", {}, "pairs", r"targets have shape \(2,\) a sample"),
        ("logistic", {}, "four", "the labels are 0, 1, 2, 3; logistic takes 0 and 1, or -1 and 1"),
        ("logistic", {}, "real", "logistic takes 0 and 1"),
        ("svm", {}, "four", "svm takes 0 and 1, or -1 and 1"),
        ("svm", {"loss": "huber"}, "two", "task_args.loss is 'huber', expected one of hinge"),
        ("softmax", {}, "real", "the labels are no whole numbers"),
        ("softmax", {}, "signs", "the labels run from -1 to 1, expected 0 to .*relabel"),
        ("softmax", {"classes": 3}, "four", "the labels run from 0 to 3, expected 0 to 2"),
        ("softmax", {"classes": 1}, "four", "task_args.classes is 1"),
        ("mlp", {"hidden": 5}, "four", "task_args.hidden is 5, expected a list"),
        ("mlp", {"hidden": [0]}, "four", "task_args.hidden is 0"),
        ("mlp", {"hidden": [2.5]}, "four", "task_args.hidden is 2.5"),
        ("mlp", {"hidden": [1] * 65}, "four", "65 layers, at most 64"),
        ("mlp", {"activation": "gelu"}, "four", "'gelu', expected one of relu, tanh"),
        ("mlp", {"loss": "hinge"}, "four", "'hinge', expected one of softmax, squared"),
        ("mlp", {"loss": "squared", "classes": 3}, "real", 'goes with loss "softmax"'),
    ],
)
def test_arguments_and_labels_that_do_not_fit_are_named(
    kind: str, args: dict[str, Any], targets: str, said: str
) -> None:
    with pytest.raises(TaskError, match=said):
        TASKS[kind](**args, dataset=samples(targets))


@pytest.mark.parametrize(
    ("kind", "said"), [("linear", "task_args.features"), ("softmax", "task_args.features")]
)
def test_without_data_the_sizes_must_be_given(kind: str, said: str) -> None:
    with pytest.raises(TaskError, match=said):
        TASKS[kind]()


def test_labels_of_a_foreign_data_set_are_found_by_looking_at_all_samples() -> None:
    class Foreign:
        def __len__(self) -> int:
            return 9000

        def get(self, indices: Any) -> Any:
            return np.ones((len(indices), 2)), np.where(indices == 8999, 6, 0)

    assert TASKS["softmax"](dataset=Foreign()).init(np.random.default_rng())["bias"].shape == (7,)


def test_a_batch_that_is_no_pair_is_named() -> None:
    with pytest.raises(TaskError, match=r"take batches \(x, y\); the data set gives ndarray"):
        TASKS["linear"](features=1).loss_and_grad({}, np.ones(3))
