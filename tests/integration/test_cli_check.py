"""`elps check` on real tasks, built in and written by a user."""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from elps.cli.main import main
from elps.optim.kernels import KERNELS_SETTING, chosen_kernels

JOB = """
passes = 5
[data]
source = "digits"
test_fraction = 0.2
scale = "standard"
[batch]
global = 60
[optimizer]
lr = 0.001
"""

USER_TASK = """
import numpy as np

class Base:
    def init(self, rng):
        return {"w": rng.standard_normal((64, 10)) * 0.1, "b": np.zeros(10)}

    def loss_and_grad(self, params, batch):
        x, y = batch
        off = x @ params["w"] + params["b"] - np.eye(10)[y]
        return 0.5 * (off**2).sum(), {"w": x.T @ off, "b": off.sum(axis=0)}

class Good(Base):
    pass

class Raises(Base):
    def loss_and_grad(self, params, batch):
        return 1 / 0

class WrongShape(Base):
    def loss_and_grad(self, params, batch):
        loss, g = super().loss_and_grad(params, batch)
        return loss, {"w": g["w"].T, "b": g["b"]}

class Mean(Base):
    def loss_and_grad(self, params, batch):
        loss, g = super().loss_and_grad(params, batch)
        n = len(batch[1])
        return loss / n, {name: value / n for name, value in g.items()}

class BatchNorm(Base):
    def loss_and_grad(self, params, batch):
        x, y = batch
        return super().loss_and_grad(params, (x - x.mean(axis=0), y))

class Random(Base):
    def loss_and_grad(self, params, batch):
        x, y = batch
        return super().loss_and_grad(params, (x * np.random.default_rng().random(x.shape), y))

class Nan(Base):
    def loss_and_grad(self, params, batch):
        loss, g = super().loss_and_grad(params, batch)
        return loss, {"w": g["w"] * float("nan"), "b": g["b"]}

class Single(Base):
    def loss_and_grad(self, params, batch):
        x, y = batch
        narrow = {name: value.astype(np.float32) for name, value in params.items()}
        return super().loss_and_grad(narrow, (x.astype(np.float32), y))

class Ends(Base):
    def loss_and_grad(self, params, batch):
        raise SystemExit(0)

class TwoOrMore(Base):
    def loss_and_grad(self, params, batch):
        if len(batch[1]) < 2:
            raise ValueError("one sample has no variance")
        return super().loss_and_grad(params, batch)

class Prints(Base):
    def loss_and_grad(self, params, batch):
        params["w"][0] = 1
"""


class Done(NamedTuple):
    """What a command left."""

    returncode: int
    stdout: str
    stderr: str


Check = Callable[..., Done]
_serial = itertools.count()


@pytest.fixture
def check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Check]:
    """Run the command in this process; ``my_task`` stands for a module of this test's own."""
    module = f"my_task_{next(_serial)}"
    (tmp_path / "job.toml").write_text(JOB)
    (tmp_path / f"{module}.py").write_text(USER_TASK)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in [n for n in os.environ if n.startswith("ELPS_") and n != "ELPS_TEST_RUN"]:
        monkeypatch.delenv(name)
    monkeypatch.setenv(KERNELS_SETTING, "numpy")  # as the command sets it for its process
    chosen_kernels.cache_clear()

    def run(*arguments: str) -> Done:
        named = [a.replace("my_task", module) for a in arguments]
        code = main(["check", str(tmp_path / "job.toml"), *named])
        told = capsys.readouterr()
        return Done(code, told.out.replace(module, "my_task"), told.err.replace(module, "my_task"))

    yield run
    chosen_kernels.cache_clear()


@pytest.mark.parametrize(
    "settings",
    [
        ["--set", "task=softmax"],
        ["--set", "task=mlp", "--set", "task_args.hidden=[16]", "--set", "optimizer.name=adam"],
        ["--set", "task=my_task:Good"],
        ["--set", "task=my_task:Good", "--set", "dtype=float64"],
    ],
)
def test_a_good_job_is_ready(check: Check, settings: list[str]) -> None:
    done = check(*settings, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert told["ok"]
    assert {f["about"] for f in told["findings"]} >= {
        "finite",
        "step",
        "additive",
        "slope",
        "evaluate",
    }
    assert told["samples"] + told["test_samples"] == 1797
    assert told["loss_after"] < told["loss_before"]


@pytest.mark.parametrize(
    ("task", "told"),
    [
        ("Mean", "multiply loss and gradients by the number of samples"),
        ("BatchNorm", "Set batch.granule"),
        ("Random", "take random numbers only from the rng"),
        ("Nan", "gradient not finite in w"),
    ],
)
def test_a_bad_task_is_told_what_to_do(check: Check, task: str, told: str) -> None:
    done = check("--set", f"task=my_task:{task}")
    assert done.returncode == 1
    assert told in done.stdout
    assert "not ready: 1 problem above" in done.stdout


def test_a_task_that_fails_on_the_rest_of_a_pass_is_told_so(check: Check) -> None:
    rest = ["--set", "data.test_fraction=0.0", "--set", "batch.global=4"]  # 1797 = 449 · 4 + 1
    done = check("--set", "task=my_task:TwoOrMore", *rest, "--set", "batch.granule=4")
    assert done.returncode == 1
    assert "the last batch of a pass, of 1 sample" in done.stdout
    assert "one sample has no variance. Set batch.global or batch.granule" in done.stdout


def test_what_is_being_done_is_said_meanwhile_on_standard_error(check: Check) -> None:
    done = check("--set", "task=softmax", "--json")
    assert json.loads(done.stdout)["ok"]
    told = done.stderr.splitlines()
    assert told[0] == "checking: opening task and data"
    assert told[1] == "checking: a gradient of 60 samples"
    assert any("finite differences" in line for line in told)
    assert "held-out samples" in told[-1]


def test_a_granule_makes_a_coupling_task_ready(check: Check) -> None:
    done = check("--set", "task=my_task:BatchNorm", "--set", "batch.granule=15")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "cut at multiples of 15" in done.stdout


def test_a_task_in_single_precision_is_not_blamed_for_it(check: Check) -> None:
    done = check("--set", "task=my_task:Single")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the task computes in float32" in done.stdout


@pytest.mark.parametrize(
    ("task", "told", "place"),
    [
        ("my_task:Raises", "ZeroDivisionError", 'my_task.py", line 18'),
        ("my_task:WrongShape", "has shape (10, 64), expected (64, 10)", ""),
        ("my_task:Prints", "read-only", "my_task.py"),
        ("my_task:Absent", "no Absent", ""),
        ("my_task:Ends", "ended the process, with 0: a trainer would end there too", "my_task.py"),
        ("os:system", "refused", ""),
    ],
)
def test_an_error_of_the_task_is_one_line_under_its_traceback(
    check: Check, task: str, told: str, place: str
) -> None:
    done = check("--set", f"task={task}")
    assert done.returncode == 1
    assert told in done.stderr.splitlines()[-1]
    assert place in done.stderr
    assert "elps/cli/main.py" not in done.stderr


def test_a_metric_to_stop_at_must_be_one_of_the_tasks(check: Check) -> None:
    stop = ["--set", "stop.metric=accurracy", "--set", "stop.target=0.9"]
    done = check("--set", "task=softmax", *stop)
    assert done.returncode == 1
    assert "stop.metric 'accurracy' is none of the task's metrics: " in done.stdout
