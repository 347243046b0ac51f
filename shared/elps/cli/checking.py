"""`elps check`: one local step of a job, without any service."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from rich.table import Table

from elps.cli import figures
from elps.cli.output import console, console_err, plain, print_json
from elps.cli.submitting import local_env, read_job
from elps.cli.trial import (
    Finding,
    Floats,
    Gradient,
    Step,
    computes_in_float32,
    geometry_of,
    judge_means,
    judge_slope,
    judge_step,
    judge_sums,
    judge_tail,
    take_step,
)
from elps.contracts.errors import TaskError
from elps.contracts.job import JobDocument
from elps.data.failing import traceback_text
from elps.optim.kernels import KERNELS_SETTING
from elps.stream.geometry import Geometry
from elps.stream.interval import Interval
from elps.tasks.opening import OpenJob, open_job

SLOPE_BUDGET_S = 5.0
"""Finite differences are taken when they are expected to cost no more."""
SLOPE_CALLS = 20
"""Gradients that they take, about."""
SLOPE_SAMPLES = 64
"""The slope needs no more samples than that; float64's digits go further with fewer."""


@dataclass(frozen=True)
class Checked:
    """What was seen."""

    job: OpenJob
    geometry: Geometry
    open_s: float
    gradient_s: float
    step: Step
    findings: list[Finding]

    @property
    def good(self) -> bool:
        """Whether training can begin."""
        return all(finding.ok or not finding.grave for finding in self.findings)


def check_file(file: str, settings: list[str] | None, *, as_json: bool) -> bool:
    """Check the job in a file and print what was seen; returns whether training can begin."""
    document, _ = read_job(file, settings)
    # The same bits as with numba, whose loading takes longer than all the rest.
    os.environ.setdefault(KERNELS_SETTING, "numpy")
    try:
        with _telling() as tell, _ending_is_an_error():
            checked = check_job(document, local_env(os.environ, file), tell)
    except TaskError as error:
        if error.__cause__ is not None:
            console_err().print(f"[dim]{plain(traceback_text(error).rstrip())}[/]")
        raise
    if as_json:
        print_json(_as_values(checked))
    else:
        _print(checked)
    return checked.good


Tell = Callable[[str], None]
"""Told what is being done, since some of it can take as long as the task does."""


@contextmanager
def _telling() -> Iterator[Tell]:
    """On standard error: one line that changes and goes, on a terminal; else a line for each."""
    out = console_err()
    if not sys.stderr.isatty():
        yield lambda doing: out.print(f"[dim]checking: {plain(doing)}[/]")
        return
    with out.status("checking") as status:
        yield lambda doing: status.update(f"checking: {plain(doing)}")


@contextmanager
def _ending_is_an_error() -> Iterator[None]:
    """The user's `sys.exit` as a `TaskError`: a check that ends without a word says nothing."""
    try:
        yield
    except SystemExit as end:
        raise TaskError(
            f"the code of the task or its data ended the process, with {end.code!r}: a trainer would end there too. "
            "What a module does as a program belongs under if __name__ == '__main__'"
        ) from end


def check_job(document: JobDocument, env: dict[str, str], tell: Tell = lambda _: None) -> Checked:
    """Open the job, take its first step and look at all that `elps.cli.trial` asks. Raises `TaskError`."""
    tell("opening task and data")
    began = time.monotonic()
    job = open_job(document, env)
    open_s = time.monotonic() - began
    geometry = geometry_of(document, job.samples)
    batch, start, gradient = geometry.iteration(0), job.initial(), gradient_of(job)
    tell(f"a gradient of {batch.size} samples")
    first = gradient(start, batch)  # the first call pays for imports and caches
    tell("the same again")
    began = time.monotonic()
    again = gradient(start, batch)
    gradient_s = time.monotonic() - began
    tell(f"one step of {document.optimizer.name}; a gradient takes {figures.seconds(gradient_s)}")
    step = take_step(document, job.layout, start, first, gradient, geometry)
    findings = [*_judge_geometry(document, job, geometry), *judge_step(step)]
    if all(finding.ok for finding in findings if finding.about == "finite"):
        tell("the sum over two halves")
        findings += judge_sums(document, start, (first, again), gradient, geometry)
        findings += judge_means(start, gradient, geometry)
        tail = geometry.last_of_pass
        if tail.size < batch.size:
            tell(f"the last batch of a pass, {tail.size} samples")
            findings += judge_tail(start, gradient, geometry)
        if not any(finding.grave and not finding.ok for finding in findings):
            tell("finite differences")
            findings += _try_slope(document, env, geometry, gradient_s)
    if job.test is not None:
        tell(f"evaluating {job.test_samples} held-out samples")
    findings += _try_evaluation(job, start)
    return Checked(job, geometry, open_s, gradient_s, step, findings)


def gradient_of(job: OpenJob) -> Gradient:
    """The job's gradient as a function that allocates what it returns; 0 for what is not trained."""
    order = job.order()

    def gradient(params: Floats, interval: Interval) -> tuple[float, Floats]:
        out = np.empty(job.layout.size, job.layout.dtype)
        loss = job.gradient(params, interval, order, out)
        out[job.layout.trained :] = 0
        return loss, out

    return gradient


def _judge_geometry(document: JobDocument, job: OpenJob, geometry: Geometry) -> Iterator[Finding]:
    if document.batch.global_ > job.samples:
        text = f"batch.global {document.batch.global_} is above the {job.samples} samples: an iteration is a whole pass"
        yield Finding("batch", False, text, False)
    cuts = -(-geometry.iteration(0).size // geometry.granule)
    if cuts < document.workers.max:
        text = f"a batch can be cut in {cuts}, and workers.max is {document.workers.max}: some would have nothing to do"
        yield Finding("batch", False, text, False)
    if document.stop.metric is not None and job.test is None:
        yield Finding("stop", False, "stop.metric needs held-out samples: set data.test_fraction")


def _try_slope(
    document: JobDocument, env: dict[str, str], geometry: Geometry, gradient_s: float
) -> Iterator[Finding]:
    batch = geometry.iteration(0)
    size = min(batch.size, max(SLOPE_SAMPLES, geometry.granule))
    batch = (
        Interval(batch.lo, batch.lo + size // geometry.granule * geometry.granule)
        if size < batch.size
        else batch
    )
    expected_s = gradient_s * SLOPE_CALLS * batch.size / geometry.iteration(0).size
    if expected_s > SLOPE_BUDGET_S:
        text = f"finite differences not tried: they would take about {figures.seconds(expected_s)}"
        yield Finding("slope", True, text)
        return
    exact = open_job(msgspec.structs.replace(document, dtype="float64"), env)
    gradient = gradient_of(exact)
    start = exact.initial()
    if computes_in_float32(start, gradient, batch):
        text = "finite differences not tried: the task computes in float32 whatever it is given"
        yield Finding("slope", True, text)
        return
    yield judge_slope(start, gradient, batch)


def _try_evaluation(job: OpenJob, start: Floats) -> Iterator[Finding]:
    if job.test is None:
        return
    metrics = job.evaluate(start, 0, job.test_samples)
    told = ", ".join(f"{name} {figures.value(x / job.test_samples)}" for name, x in metrics.items())
    yield Finding(
        "evaluate", True, f"before training, on {job.test_samples} held-out samples: {told}"
    )
    wanted = job.document.stop.metric
    if wanted is not None and wanted not in metrics:
        yield Finding(
            "stop",
            False,
            f"stop.metric {wanted!r} is none of the task's metrics: {', '.join(metrics)}",
        )


def _print(checked: Checked) -> None:
    job, step, out = checked.job, checked.step, console()
    document, geometry = job.document, checked.geometry
    held_out = f", {figures.count(job.test_samples)} held out" if job.test is not None else ""
    granule = f", cut at multiples of {geometry.granule}" if geometry.granule > 1 else ""
    total = document.iterations or (document.passes or 0) * geometry.per_pass
    out.print(f"[bold]{plain(document.task)}[/]  opened in {figures.seconds(checked.open_s)}")
    out.print(f"data       {figures.count(job.samples)} samples{held_out}")
    out.print(
        f"batch      {document.batch.global_} samples{granule}; {geometry.per_pass} iterations a pass, {total} in all; "
        f"one gradient takes {figures.seconds(checked.gradient_s)} here"
    )
    out.print(
        f"model      {figures.count(job.layout.size)} parameters of {document.dtype}, "
        f"{figures.size(job.layout.size_bytes)}"
    )
    out.print(_parameters(step))
    for finding in checked.findings:
        mark = "[green]✓[/]" if finding.ok else "[red]✗[/]" if finding.grave else "[yellow]![/]"
        out.print(f"{mark} {plain(finding.text)}")
    if checked.good:
        out.print("[green]ready:[/] `elps run` trains it here, `elps submit` on the stack")
    else:
        problems = sum(not f.ok and f.grave for f in checked.findings)
        out.print(f"[red]not ready:[/] {problems} problem{'s' if problems > 1 else ''} above")


def _parameters(step: Step, most: int = 30) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("parameter")
    for name in ("shape", "|value|", "|mean gradient|"):
        table.add_column(name, justify="right")
    for p in step.parameters[:most]:
        shape = "×".join(map(str, p.shape)) or "scalar"
        table.add_row(
            plain(p.name), shape, figures.value(p.value_norm), figures.value(p.gradient_norm)
        )
    if len(step.parameters) > most:
        table.add_row(f"and {len(step.parameters) - most} more", "", "", "")
    return table


def _as_values(checked: Checked) -> dict[str, Any]:
    step = checked.step
    return {
        "ok": checked.good,
        "task": checked.job.document.task,
        "samples": checked.job.samples,
        "test_samples": checked.job.test_samples,
        "parameters": checked.job.layout.size,
        "size_bytes": checked.job.layout.size_bytes,
        "batch_samples": checked.geometry.batch,
        "granule": checked.geometry.granule,
        "iterations_per_pass": checked.geometry.per_pass,
        "gradient_s": checked.gradient_s,
        "loss_before": step.loss_before,
        "loss_after": step.loss_after,
        "gradient_norm": step.gradient_norm,
        "arrays": [
            {
                "name": p.name,
                "shape": p.shape,
                "value_norm": p.value_norm,
                "gradient_norm": p.gradient_norm,
            }
            for p in step.parameters
        ],
        "findings": [
            {"about": f.about, "ok": f.ok, "grave": f.grave, "text": f.text}
            for f in checked.findings
        ],
    }
