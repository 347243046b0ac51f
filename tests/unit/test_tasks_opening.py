"""Finding and making a job's task: what a document may name, and what it may not."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elps.contracts.codec import parse_job
from elps.contracts.errors import TaskError
from elps.data import allowed
from elps.stream.interval import Interval
from elps.tasks.opening import OpenJob, open_job

TASK = """
import numpy as np
from subprocess import Popen

class Numbers:
    def __len__(self):
        return 10
    def get(self, indices):
        return indices.astype(float)

class Mean:
    def __init__(self, start=0.0):
        self.start = start
    def data(self):
        return Numbers(), None
    def init(self, rng):
        return {"mean": np.array(float(self.start))}
    def loss_and_grad(self, params, batch):
        off = params["mean"] - batch
        return 0.5 * (off**2).sum(), {"mean": off.sum()}
"""
_serial = itertools.count()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def write_module(folder: Path, body: str = TASK, name: str = "") -> str:
    """A module with a name that no other test has imported."""
    name = name or f"elps_test_task_{next(_serial)}"
    (folder / f"{name}.py").write_text(body)
    return name


def open_task(task: str, folder: Path | None = None, **more: Any) -> OpenJob:
    env = {} if folder is None else {"ELPS_TASK_PATH": str(folder)}
    return open_job(parse_job({"task": task, "passes": 1, **more}), env)


def test_a_task_of_an_allowed_folder_is_opened_and_computes(folder: Path) -> None:
    name = write_module(folder)
    job = open_task(f"{name}:Mean", folder, task_args={"start": 2}, dtype="float64")
    assert (job.samples, job.test, job.layout.size, job.initial().tolist()) == (10, None, 1, [2.0])
    out = np.empty(1)
    job.gradient(job.initial(), Interval(0, 10), job.order(), out)
    assert out.tolist() == [-25.0]


def test_the_folder_comes_last_on_the_path(folder: Path) -> None:
    before = list(sys.path)
    open_task(f"{write_module(folder)}:Mean", folder)
    assert sys.path == [*before, str(folder)]


def test_a_package_of_an_allowed_folder_is_opened(folder: Path) -> None:
    package = folder / f"elps_test_package_{next(_serial)}"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "inner" / "__init__.py").touch()
    write_module(package / "inner", TASK, "tasks")
    assert open_task(f"{package.name}.inner.tasks:Mean", folder).samples == 10


@pytest.mark.parametrize(
    "task", ["os:system", "subprocess:Popen", "elps.cli.main:main", "numpy:array", "builtins:eval"]
)
def test_other_code_is_refused_with_how_to_allow_it(task: str, folder: Path) -> None:
    for where in (None, folder):
        with pytest.raises(
            TaskError, match=r"refused: .*make down, then ELPS_TASK_PATH="
        ) as caught:
            open_task(task, where)
        assert "entry point group elps.tasks" in str(caught.value)


def test_a_refused_module_is_never_run(folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    name = write_module(outside, f"open({str(tmp_path / 'ran')!r}, 'w')\n" + TASK)
    sys.path.append(str(outside))
    with pytest.raises(TaskError, match="is refused"):
        open_task(f"{name}:Mean", tmp_path / "allowed")
    assert not (tmp_path / "ran").exists()
    assert name not in sys.modules


@pytest.mark.parametrize(
    "task",
    [
        "nothing",
        "a:b:c",
        "a.b",
        ":x",
        "a:",
        "a:b.c",
        "a:b()",
        "../x:Y",
        "a/b:C",
        "a b:C",
        ".a:B",
        "a..b:C",
        "1a:B",
    ],
)
def test_malformed_references_are_refused(task: str, folder: Path) -> None:
    with pytest.raises(TaskError, match="neither built in nor module:Name"):
        open_task(task, folder)


def test_an_unknown_name_is_answered_with_those_built_in() -> None:
    with pytest.raises(TaskError, match="built in: linear, logistic, softmax, svm, mlp"):
        open_task("logistc")


@pytest.mark.parametrize("attribute", ["Popen", "np"])
def test_what_an_allowed_module_merely_imports_stays_out_of_reach(
    attribute: str, folder: Path
) -> None:
    with pytest.raises(
        TaskError, match=f"{attribute} is not a class or function defined in an allowed place"
    ):
        open_task(f"{write_module(folder)}:{attribute}", folder, task_args={"args": ["touch", "x"]})


@pytest.mark.parametrize("name", ["json", "antigravity", "numpy"])
def test_a_file_that_bears_the_name_of_an_installed_module_is_refused(
    name: str, folder: Path
) -> None:
    write_module(folder, TASK, name)
    with pytest.raises(
        TaskError, match=f"the name {name} already belongs to a module of .*rename the file"
    ):
        open_task(f"{name}:Mean", folder)


def test_a_missing_class_and_a_failing_import_are_named(folder: Path) -> None:
    with pytest.raises(TaskError, match="has no Median"):
        open_task(f"{write_module(folder)}:Median", folder)
    broken = write_module(folder, "import not_installed_here\n")
    with pytest.raises(
        TaskError,
        match=f"importing {broken}: ModuleNotFoundError: No module named 'not_installed_here'",
    ):
        open_task(f"{broken}:Mean", folder)


def test_a_folder_that_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"not there: .*nowhere"):
        open_task("tasks:Mean", tmp_path / "nowhere")


def test_a_registered_package_may_be_named_by_entry_point_or_module(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = write_module(folder)
    sys.path.append(str(folder))
    monkeypatch.setattr(allowed, "_entry_points", lambda: {"mean": f"{name}:Mean"})
    assert open_task("mean").samples == 10
    assert open_task(f"{name}:Mean").samples == 10
    with pytest.raises(TaskError, match="defined in an allowed place"):
        open_task(f"{name}:Popen")


def test_the_code_hash_changes_with_the_source(folder: Path) -> None:
    first = open_task(f"{write_module(folder)}:Mean", folder).code_hash
    again = open_task(f"{write_module(folder)}:Mean", folder).code_hash
    changed = open_task(f"{write_module(folder, TASK + '# changed')}:Mean", folder).code_hash
    assert len({first, again, changed}) == 3  # the file's name counts too
    same = write_module(folder)
    assert (
        open_task(f"{same}:Mean", folder).code_hash == open_task(f"{same}:Mean", folder).code_hash
    )


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"task_args": {"begin": 1}}, "task_args: begin unknown; known: start"),
        ({"task_args": {"start": "x"}}, "init: ValueError: could not convert"),
        ({"task_args": {"dataset": 1}}, "task_args may not hold dataset"),
        (
            {"data": {"source": "digits", "args": {"n": 1}}},
            "data source 'digits': args: n is unknown",
        ),
    ],
)
def test_wrong_arguments_are_named(more: dict[str, Any], said: str, folder: Path) -> None:
    with pytest.raises(TaskError, match=said):
        open_task(f"{write_module(folder)}:Mean", folder, **more)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            TASK.replace("def data", "def other"),
            "brings no data of its own, and the document has no data table",
        ),
        (TASK.replace("def init", "def start"), "has no method init"),
        (TASK.replace("def loss_and_grad", "def loss"), "has no method loss_and_grad"),
        (
            TASK.replace("return Numbers(), None", "return 5"),
            "data gave int as training part; expected an object with len",
        ),
        (TASK.replace("return Numbers(), None", "return Numbers(), []"), "gave list as test part"),
        (TASK.replace("return 10", "return 0"), "the training part is empty"),
        (
            TASK.replace("return indices.astype(float)", "raise OSError('disk')"),
            "first look at the training part: OSError: disk",
        ),
        (TASK.replace("np.array(float(self.start))", "3"), "parameter 'mean' is of int64"),
        (
            TASK.replace(
                "def __init__(self, start=0.0):", "def __init__(self, start=0.0):\n        1 / 0"
            ),
            "ZeroDivisionError",
        ),
    ],
)
def test_a_task_that_is_none_is_told_why(body: str, said: str, folder: Path) -> None:
    with pytest.raises(TaskError, match=said):
        open_task(f"{write_module(folder, body)}:Mean", folder)


def test_a_user_task_may_be_given_the_opened_data(folder: Path) -> None:
    body = TASK.replace(
        "def __init__(self, start=0.0):",
        "def __init__(self, start=0.0, *, dataset):\n        start = len(dataset)",
    )
    job = open_task(
        f"{write_module(folder, body)}:Mean",
        folder,
        data={"source": "diabetes", "test_fraction": 0.5},
    )
    assert job.initial().tolist() == [221.0]


def test_fingerprints_tell_data_and_order_apart_and_not_paths_or_hosts(folder: Path) -> None:
    name = write_module(folder)
    base = {"data": {"source": "diabetes", "test_fraction": 0.2}}
    prints = [
        open_task("linear", **base).fingerprint,
        open_task("linear", **base).fingerprint,
        open_task("linear", seed=1, **base).fingerprint,
        open_task(
            "linear", data={"source": "diabetes", "test_fraction": 0.2, "split_seed": 1}
        ).fingerprint,
        open_task("linear", data={"source": "diabetes", "test_fraction": 0.3}).fingerprint,
        open_task(f"{name}:Mean", folder).fingerprint,
    ]
    assert prints[0] == prints[1]
    assert len(set(prints)) == 5


def test_a_data_source_of_the_users_own_is_called_and_split(folder: Path) -> None:
    body = TASK + "\ndef numbers(copies):\n    assert copies == 1\n    return Numbers()\n"
    name = write_module(folder, body)
    data = {"source": f"{name}:numbers", "args": {"copies": 1}, "test_fraction": 0.3}
    job = open_task(f"{name}:Mean", folder, data=data)
    assert job.test is not None
    seen = [part.get(np.arange(len(part), dtype=np.int64)) for part in (job.train, job.test)]
    assert sorted(np.concatenate(seen).tolist()) == list(range(10))
    with pytest.raises(TaskError, match="path and scale are for the built-in sources"):
        open_task(f"{name}:Mean", folder, data={**data, "scale": "standard"})
    with pytest.raises(TaskError, match="data source 'os:system' is refused"):
        open_task(f"{name}:Mean", folder, data={"source": "os:system"})
