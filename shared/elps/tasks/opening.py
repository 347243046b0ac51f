"""From a job's document to something that computes: the task found and made, its data opened, its
parameters laid out.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from elps.contracts.errors import TaskError
from elps.contracts.job import JobDocument
from elps.data import allowed
from elps.data.dataset import Dataset
from elps.data.failing import UserCode
from elps.data.opening import OpenData, open_data, opened_by_task
from elps.stream.order import init_rng, permutation
from elps.tasks import builtin
from elps.tasks.layout import Layout
from elps.tasks.running import OpenJob
from elps.tasks.starting import read_start
from elps.tasks.task import ANY, arguments_of

__all__ = ["OpenJob", "open_job", "preload"]


def open_job(document: JobDocument, env: Mapping[str, str]) -> OpenJob:
    """Find the task, open the data, make the task and lay its parameters out.

    `task` is a built-in name, or ``module:Class`` from the directories of ``ELPS_TASK_PATH``
    (appended to `sys.path`), or from a package that registers itself under the entry point group
    ``elps.tasks`` (then the entry point's name will do). Paths of data files are relative to the
    directories of ``ELPS_DATA_PATH``. Raises `TaskError` that says what to mend.
    """
    made_by, code_hash = _find_task(document.task, env)
    data = open_data(document.data, env, document.dtype) if document.data is not None else None
    task = _make(made_by, document, data)
    if data is None:
        if not hasattr(task, "data"):
            raise TaskError(
                f"task {document.task!r} brings no data of its own, and the document has no data table; add one"
            )
        with UserCode(f"task {document.task!r}: data"):
            given = task.data()
        data = opened_by_task(given, f"task {document.task!r}: data")
    with UserCode(f"task {document.task!r}: init"):
        arrays = task.init(init_rng(document.seed))
    try:
        layout = Layout.of(arrays, document.dtype, getattr(task, "state_rules", None))
    except TaskError as error:
        raise TaskError(f"task {document.task!r}: {error}") from error.__cause__
    if layout.rules and document.bound is not None:
        raise TaskError(
            f"task {document.task!r}: its state {', '.join(layout.rules)} has a rule for what all workers found in an "
            f"iteration, and under sync {document.sync!r} there is no such moment; give 'bsp'"
        )
    return OpenJob(
        document=document,
        task=task,
        train=data.train,
        test=data.test,
        layout=layout,
        fingerprint=_fingerprint(document, data),
        code_hash=hashlib.sha256(f"{code_hash} {data.code_hash}".encode()).hexdigest(),
        start=partial(read_start, file, env, layout) if (file := document.init) else None,
    )


def preload() -> None:
    """Import what the built-in tasks and sources import on first use, for the process that trainers
    are forked from.
    """
    importlib.import_module("scipy.sparse")


def _find_task(name: str, env: Mapping[str, str]) -> tuple[Any, str]:
    if name in builtin.TASKS:
        return builtin.TASKS[name], builtin.source_hash()
    try:
        code = allowed.load(name, env, "task")
    except TaskError as error:
        if ":" in name:
            raise
        raise TaskError(f"{error}; built in: {', '.join(builtin.TASKS)}") from error.__cause__
    return code.value, code.source_hash


def _make(made_by: Any, document: JobDocument, data: OpenData | None) -> Any:
    arguments = dict(document.task_args)
    if "dataset" in arguments:
        raise TaskError(
            f"task {document.task!r}: task_args may not hold dataset; it is the opened training part"
        )
    known = arguments_of(made_by)
    if ANY not in known and (unknown := [name for name in arguments if name not in known]):
        names = ", ".join(sorted(known - {"dataset"})) or "none"
        raise TaskError(
            f"task {document.task!r}: task_args: {', '.join(unknown)} unknown; known: {names}"
        )
    dataset: Dataset | None = data.train if data is not None else None
    if dataset is not None and "dataset" in known:
        arguments["dataset"] = dataset
    with UserCode(f"task {document.task!r}: making it with {document.task_args!r:.200}"):
        task = made_by(**arguments)
    for method in ("init", "loss_and_grad"):
        other = ("grad_into", "grad_stream") if method == "loss_and_grad" else ()
        if not any(callable(getattr(task, name, None)) for name in (method, *other)):
            raise TaskError(
                f"task {document.task!r} has no method {method}; see elps.tasks.task for what a task is"
            )
    return task


def _fingerprint(document: JobDocument, data: OpenData) -> str:
    """One digest over the data and the order in which this numpy would draw it: equal for trainers
    that fit together.
    """
    order = permutation(document.seed, 0, min(len(data.train), 1000))
    digest = hashlib.sha256(data.fingerprint.encode())
    digest.update(f"{len(data.train)} {0 if data.test is None else len(data.test)}".encode())
    digest.update(np.ascontiguousarray(order, dtype="<i8").tobytes())
    return digest.hexdigest()
