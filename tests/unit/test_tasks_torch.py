"""The adapter for torch's modules."""

from __future__ import annotations

import sys
import tomllib
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not a dependency")

import torch_loop  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from elps.contracts.codec import parse_job  # noqa: E402
from elps.contracts.errors import TaskError  # noqa: E402
from elps.contracts.ids import PartitionId  # noqa: E402
from elps.contracts.job import Batch, JobDocument  # noqa: E402
from elps.data.fingerprint import dataset_fingerprint  # noqa: E402
from elps.psshard.core.part import Advance  # noqa: E402
from elps.psshard.live import blocks_of  # noqa: E402
from elps.psshard.untrained import Segment  # noqa: E402
from elps.stream.geometry import Geometry  # noqa: E402
from elps.stream.interval import Interval  # noqa: E402
from elps.tasks.layout import Layout  # noqa: E402
from elps.tasks.opening import open_job  # noqa: E402
from elps.tasks.running import OpenJob  # noqa: E402
from elps.tasks.torch import BATCH_NORM, Items, TorchTask  # noqa: E402

EXAMPLE = torch_loop.FOLDER / "digits_cnn.toml"
ENV = {"ELPS_TASK_PATH": str(torch_loop.FOLDER)}


class Points:
    """Samples of 6 numbers and a class."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.x, self.y = rng.standard_normal((120, 6)), rng.integers(0, 3, 120)

    def __len__(self) -> int:
        return 120

    def get(self, indices: Any) -> Any:
        return self.x[indices], self.y[indices]


def opened(task: TorchTask, dtype: str = "float32", granule: int = 1) -> OpenJob:
    document = JobDocument(
        task="t", passes=1, dtype=dtype, batch=Batch(global_=24, granule=granule)
    )
    layout = Layout.of(task.init(np.random.default_rng(0)), dtype, task.state_rules)
    points = Points()
    return OpenJob(document, task, points, points, layout, "", "")


def gradient(job: OpenJob, lo: int, hi: int, params: Any = None) -> tuple[float, Any]:
    out = np.full(job.layout.size, np.nan, job.layout.dtype)
    start = job.initial() if params is None else params
    loss = job.gradient(start, Interval(lo, hi), job.order(), out)
    return loss, out


def dense(*more: Any) -> Any:
    return lambda: nn.Sequential(nn.Linear(6, 8), *more, nn.Linear(8, 3))


def trained_in_pieces(job: OpenJob, iterations: int) -> tuple[Any, list[float]]:
    """What trainers and shards compute: iterations cut at random, two partitions, parts added in any order."""
    rng, document = np.random.default_rng(1), job.document
    geometry = Geometry(job.samples, document.batch.global_, document.batch.granule)
    half = job.layout.size // 2
    slices = [(0, 0, half), (1, half, job.layout.size)]
    rules = tuple(
        Segment(p.offset, p.offset + p.size, p.rule) for p in job.layout.parameters if p.rule
    )
    blocks = blocks_of(document, slices, iterations, rules)
    values, out, losses = job.initial(), np.empty_like(job.initial()), []
    for n, lo, hi in slices:
        blocks[PartitionId(n)].load(0, 0, {"values": values[lo:hi]})
    for t in range(iterations):
        whole, loss = geometry.iteration(t), 0.0
        cut = [c for c in geometry.cut(whole, rng.integers(1, 5, 3).tolist()) if c.size]
        for at in rng.permutation(len(cut)):
            loss += job.gradient(values, cut[at], job.order(), out)
            for n, lo, hi in slices:
                blocks[PartitionId(n)].add(t, cut[at], out[lo:hi])
        for n, lo, hi in slices:
            blocks[PartitionId(n)].write(Advance(PartitionId(n), t, whole.size, t + 1, ()))
            values[lo:hi] = blocks[PartitionId(n)].values(t + 1)
        losses.append(loss / whole.size)
    return values, losses


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-4), ("float64", 1e-10)])
def test_the_example_cut_in_pieces_equals_torchs_plain_loop(dtype: str, tolerance: float) -> None:
    text = tomllib.loads(EXAMPLE.read_text())
    job = open_job(parse_job({**text, "dtype": dtype, "task_args": {"width": 4}}), ENV)
    values, losses = trained_in_pieces(job, 30)
    net = sys.modules["digits_cnn"].Net(4)
    expected, their_losses = torch_loop.train(job, net, 30)
    assert set(expected) == {p.name for p in job.layout.parameters}
    for name, view in job.layout.views(values).items():
        np.testing.assert_allclose(
            view, expected[name].numpy(), rtol=tolerance, atol=tolerance, err_msg=name
        )
    np.testing.assert_allclose(losses, their_losses, rtol=tolerance)
    assert losses[-1] < 0.7 * losses[0]
    sums = job.evaluate(values, 0, job.test_samples)
    theirs = torch_loop.accuracy(job, net)
    assert sums["accuracy"] / job.test_samples == pytest.approx(theirs, abs=1.5 / job.test_samples)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_parameters_and_gradients_of_the_module_are_views_of_the_flat_vectors(dtype: str) -> None:
    modules: list[Any] = []

    def build() -> Any:
        modules.append(dense(nn.ReLU())())
        return modules[-1]

    job = opened(TorchTask(build, functional.cross_entropy), dtype)
    start, out = job.initial(), np.empty(job.layout.size, dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        job.gradient(start, Interval(0, 12), job.order(), out)
    for flat, tensors in (
        (start, list(modules[-1].parameters())),
        (out, [p.grad for p in modules[-1].parameters()]),
    ):
        at = flat.__array_interface__["data"][0]
        for tensor, p in zip(tensors, job.layout.parameters, strict=True):
            assert tensor.data_ptr() == at + p.offset * flat.itemsize
            assert tensor.dtype is getattr(torch, dtype)
    first = out.copy()
    start += 1  # the next version comes into the same memory
    job.gradient(start, Interval(0, 12), job.order(), out)
    assert not np.allclose(first, out)
    np.testing.assert_allclose(gradient(job, 0, 12, start.copy())[1], out, rtol=1e-6)


def test_sums_add_up_and_one_call_gives_the_same_again() -> None:
    job = opened(TorchTask(dense(nn.Tanh()), nn.CrossEntropyLoss(reduction="sum")), "float64")
    loss, whole = gradient(job, 0, 24)
    (l1, first), (l2, second) = gradient(job, 0, 7), gradient(job, 7, 24)
    np.testing.assert_allclose(first + second, whole, rtol=1e-10, atol=1e-12)
    assert l1 + l2 == pytest.approx(loss)
    assert gradient(job, 0, 24)[1].tobytes() == whole.tobytes()


def test_dropout_and_batch_normalisation_depend_on_the_cut_without_a_granule_only() -> None:
    def job(granule: int) -> OpenJob:
        layers = dense(nn.BatchNorm1d(8), nn.Dropout(0.5))
        return opened(
            TorchTask(layers, functional.cross_entropy, state=BATCH_NORM), "float64", granule
        )

    coupled, whole = job(1), gradient(job(1), 0, 24)[1]
    assert (
        gradient(coupled, 0, 24)[1].tobytes() == whole.tobytes()
    )  # one cut: the same, bit for bit
    halves = [gradient(coupled, lo, lo + 12)[1] for lo in (0, 12)]
    trained = coupled.layout.trained
    assert np.abs(sum(halves) - whole)[:trained].max() > 0.1
    granular = job(12)
    whole = gradient(granular, 0, 24)[1]
    halves = [gradient(granular, lo, lo + 12)[1] for lo in (0, 12)]
    np.testing.assert_allclose(sum(halves)[:trained], whole[:trained], rtol=1e-10, atol=1e-12)


def test_buffers_without_a_rule_are_refused_by_name_with_what_to_do() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dense = nn.Linear(6, 3)
            self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
            self.register_buffer("scale", torch.ones(6), persistent=False)

        def forward(self, x: Any) -> Any:
            self.seen += len(x)
            return self.dense(x * self.scale)

    with pytest.raises(TaskError, match=r"'1.running_mean'.*state=BATCH_NORM"):
        opened(TorchTask(dense(nn.BatchNorm1d(8)), functional.cross_entropy))
    with pytest.raises(TaskError, match=r"the module's 'seen'.*state=\{'seen': 'mean'\}.*'max'"):
        opened(TorchTask(Counting, functional.cross_entropy))
    with pytest.raises(TaskError, match="'sene', which is no buffer of the module: seen, scale"):
        opened(TorchTask(Counting, functional.cross_entropy, state={"seen": "max", "sene": "max"}))
    with pytest.raises(TaskError, match=r"'sum' for 'seen'; expected mean, max, last or fixed"):
        TorchTask(Counting, functional.cross_entropy, state={"seen": "sum"})
    job = opened(TorchTask(Counting, functional.cross_entropy, state={"seen": "last"}))
    assert job.layout.rules == {"seen": "last"}
    assert gradient(job, 0, 5)[1][-1] == 5
    job = opened(TorchTask(Counting, functional.cross_entropy, state={"seen": "fixed"}))
    assert job.layout.rules == {}
    with pytest.raises(TaskError, match=r"changed its buffer 'seen'.*declare"):
        gradient(job, 0, 5)


def test_an_evaluation_changes_nothing_and_gives_the_loss_beside_the_metrics() -> None:
    task = TorchTask(
        dense(nn.BatchNorm1d(8), nn.Dropout(0.5)),
        functional.cross_entropy,
        metrics=lambda scores, y: {"right": (scores.argmax(1) == y).sum()},
        state=BATCH_NORM,
    )
    job = opened(task)
    start = job.initial()
    before = start.copy()
    whole = job.evaluate(start, 0, 120)
    assert sorted(whole) == ["loss", "right"]
    assert whole["right"] == int(whole["right"])
    parts = [job.evaluate(start, 0, 50), job.evaluate(start, 50, 120)]
    for name, value in whole.items():
        assert sum(part[name] for part in parts) == pytest.approx(value, rel=1e-5)
    assert start.tobytes() == before.tobytes()


@pytest.mark.parametrize(
    ("metrics", "told"),
    [
        (
            lambda scores, y: {"right": scores.argmax(1) == y},
            r"shape \(5,\) for 'right'; expected one",
        ),
        (lambda scores, y: (scores.argmax(1) == y).sum(), "metrics gives Tensor; expected a dict"),
        (lambda scores, y: None, "metrics gives NoneType; expected a dict"),
    ],
)
def test_metrics_that_are_no_sums_by_name_are_refused_with_what_to_give(
    metrics: Any, told: str
) -> None:
    job = opened(TorchTask(dense(), functional.cross_entropy, metrics=metrics))
    with pytest.raises(TaskError, match=told):
        job.evaluate(job.initial(), 0, 5)


def test_the_first_values_come_from_the_jobs_seed_alone() -> None:
    task = TorchTask(dense(), functional.cross_entropy)
    torch.manual_seed(1)
    first = task.init(np.random.default_rng(5))
    torch.manual_seed(2)
    again, other = task.init(np.random.default_rng(5)), task.init(np.random.default_rng(6))
    for name, value in first.items():
        assert value.tobytes() == again[name].tobytes() != other[name].tobytes()


def test_what_elps_cannot_train_is_refused_with_what_to_do() -> None:
    with pytest.raises(TaskError, match="a function that makes the module"):
        TorchTask(nn.Linear(2, 2), functional.mse_loss)
    with pytest.raises(TaskError, match=r"MSELoss gives the mean.*reduction='sum'"):
        TorchTask(dense(), nn.MSELoss())
    with pytest.raises(TaskError, match=r"the class MSELoss; give an object.*reduction='sum'"):
        TorchTask(dense(), nn.MSELoss)
    with pytest.raises(TaskError, match="no parameter that requires a gradient"):
        opened(TorchTask(nn.ReLU, functional.mse_loss))
    with pytest.raises(TaskError, match=r"made int; expected a torch.nn.Module"):
        opened(TorchTask(lambda: 3, functional.mse_loss))
    job = opened(TorchTask(dense(), lambda scores, y: scores))
    with pytest.raises(TaskError, match=r"the loss is shape \(5, 3\); expected a tensor: the sum"):
        gradient(job, 0, 5)
    job = opened(TorchTask(dense(), lambda scores, y: scores.detach().sum()))
    with pytest.raises(TaskError, match="does not depend on any parameter"):
        gradient(job, 0, 5)

    class Clipping(nn.Linear):
        def forward(self, x: Any) -> Any:
            with torch.no_grad():
                self.weight.clamp_(-0.1, 0.1)
            return super().forward(x)

    job = opened(TorchTask(lambda: Clipping(6, 3), functional.cross_entropy))
    with pytest.raises(TaskError, match="changed its parameter 'weight'"):
        gradient(job, 0, 5)


def test_sparse_and_thrown_away_gradients_end_where_they_belong() -> None:
    class Bag(nn.Module):
        def __init__(self, sparse: bool) -> None:
            super().__init__()
            self.table = nn.Embedding(3, 3, sparse=sparse)

        def forward(self, x: Any) -> Any:
            if not self.table.sparse:
                self.table.weight.grad = None
            return self.table((x[:, 0] > 0).long())

    outs = []
    for sparse in (True, False):
        job = opened(
            TorchTask(lambda s=sparse: Bag(s), functional.cross_entropy), "float64", granule=6
        )
        outs.append(gradient(job, 0, 24)[1])
    np.testing.assert_allclose(outs[0], outs[1], rtol=1e-12)
    assert np.abs(outs[0]).max() > 1


def test_a_dataset_of_torch_is_the_data_of_a_job() -> None:
    points = Points()
    dataset = torch.utils.data.TensorDataset(torch.tensor(points.x), torch.tensor(points.y))
    job = opened(TorchTask(dense(nn.Tanh()), functional.cross_entropy))
    mine, theirs = gradient(job, 3, 20), gradient(replace(job, train=Items(dataset)), 3, 20)
    assert len(Items(dataset)) == 120
    assert (mine[0], mine[1].tobytes()) == (theirs[0], theirs[1].tobytes())
    assert dataset_fingerprint(Items(dataset)) == dataset_fingerprint(Items(dataset))
    other = torch.utils.data.TensorDataset(torch.tensor(points.x + 1), torch.tensor(points.y))
    assert dataset_fingerprint(Items(dataset)) != dataset_fingerprint(Items(other))


def test_a_trainer_computes_with_one_thread() -> None:
    TorchTask(dense(), functional.cross_entropy)
    assert torch.get_num_threads() == 1


def test_the_example_is_documented_where_it_lies() -> None:
    assert Path(EXAMPLE).read_text().startswith("# A convolutional net")
