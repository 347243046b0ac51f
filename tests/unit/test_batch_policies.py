"""The names of batch policies: what a document may say is what there is."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from elps.balance import PREDICTORS, Policy
from elps.contracts import batching
from elps.contracts.codec import parse_job
from elps.contracts.errors import InvalidDocument
from elps.contracts.ids import JobId, WorkerId
from elps.contracts.job import JobDocument
from elps.contracts.telemetry import (
    ExtraLeases,
    IterationRow,
    IterationRows,
    LogLines,
    WorkerTiming,
)
from elps.monitor.core.forwarding import timings_of


def job(**fields: Any) -> JobDocument:
    return parse_job({"task": "linear", "iterations": 3, "workers": {"max": 2}, **fields})


def test_every_name_stands_for_a_policy_and_every_predictor_has_its_name() -> None:
    assert set(batching.PREDICTORS) == set(PREDICTORS)
    for name in batching.POLICIES:
        assert Policy.named(name).fixed == (name == "fixed")
        assert Policy.named(name).may_tail == (name == "lb-bsp")
        assert job(batch={"policy": name}).batch_policy == name


def test_batches_are_balanced_unless_the_job_is_deterministic_or_says_fixed() -> None:
    assert job().balanced
    assert job().batch_policy == "lb-bsp"
    assert not job(deterministic=True).balanced
    assert not job(batch={"policy": "fixed"}).balanced
    assert not job(workers={"max": 1}).balanced
    assert job(deterministic=True, batch={"policy": "fixed"}).batch_policy == "fixed"


def test_a_deterministic_job_with_balanced_batches_is_refused_with_the_reason() -> None:
    with pytest.raises(InvalidDocument, match="must not depend on") as caught:
        job(deterministic=True, batch={"policy": "lb-bsp"})
    assert len(caught.value.problems) == 1


def test_an_unknown_policy_is_refused_with_those_there_are() -> None:
    with pytest.raises(InvalidDocument, match=r"'lbbsp' is unknown, expected one of fixed, lb-bsp"):
        job(batch={"policy": "lbbsp"})


def row(t: int, term: int = 2, **samples: int) -> IterationRow:
    return IterationRow(
        iteration=t, passes=0, samples=3, skipped=0, loss=None, duration_s=0.1, at=0, term=term,
        plan=1, lr=1,
        workers=[
            WorkerTiming(
                worker=WorkerId(w), samples=n, compute_s=n * 0.5, pull_s=t, wait_s=0, push_s=0, lease_s=0
            )
            for w, n in samples.items()
        ],
    )  # fmt: skip


def test_timings_are_passed_on_only_if_somebody_waits_for_them() -> None:
    rows = IterationRows(job=JobId("j"), rows=[row(1, a=4)])
    assert timings_of(rows) is None
    assert timings_of(IterationRows(job=JobId("j"), rows=[], balanced=True)) is None
    assert timings_of(LogLines(job=JobId("j"), worker=WorkerId("w"), at=0, lines=[])) is None


def test_rows_that_come_together_are_one_mean_of_each_workers_parts() -> None:
    rows = [row(6, 1, a=9), row(7, a=4, b=2), row(8, a=6, b=0), row(9, a=8)]
    found = timings_of(IterationRows(job=JobId("j"), rows=rows, balanced=True))
    assert found is not None
    assert (found.job, found.term, found.iteration) == ("j", 2, 9)
    told = {w.worker: (w.samples, w.compute_s, w.pull_s) for w in found.workers}
    assert told == {"a": (6.0, 3.0, 8.0), "b": (2.0, 1.0, 7.0)}


def test_rows_that_a_rollback_made_void_are_not_among_them() -> None:
    again = msgspec.structs.replace(row(3, a=2), n=1)
    rows = IterationRows(job=JobId("j"), rows=[row(8, a=4), row(9, a=4), again], balanced=True)
    found = timings_of(rows)
    assert found is not None
    assert (found.iteration, found.n) == (3, 1)
    assert [w.samples for w in found.workers] == [2.0]


def test_more_leases_are_told_as_means_over_all_the_iterations_of_a_worker() -> None:
    def with_extra(t: int, leases: int) -> IterationRow:
        (timing,) = row(t, a=4).workers
        extra = ExtraLeases(leases=leases, samples=2, compute_s=0.5, wait_s=0.25)
        timing = msgspec.structs.replace(timing, extra=extra if leases else None)
        return msgspec.structs.replace(row(t), workers=[timing])

    def passed_on(*leases: int) -> ExtraLeases | None:
        rows = [with_extra(t, n) for t, n in enumerate(leases)]
        found = timings_of(IterationRows(job=JobId("j"), rows=rows, balanced=True))
        assert found is not None
        return found.workers[0].extra

    assert passed_on(0, 0) is None
    assert passed_on(3) == ExtraLeases(leases=3.0, samples=2.0, compute_s=0.5, wait_s=0.25)
    assert passed_on(1, 0, 2, 0) == ExtraLeases(
        leases=0.75, samples=1.0, compute_s=0.25, wait_s=0.125
    )


def test_of_processor_and_memory_the_newest_is_passed_on_and_rows_without_say_nothing() -> None:
    def with_cpu(t: int, cpu: float | None) -> IterationRow:
        (timing,) = row(t, a=4).workers
        memory = None if cpu is None else 4096
        timing = msgspec.structs.replace(timing, cpu_process=cpu, cpu_host=cpu, memory_bytes=memory)
        return msgspec.structs.replace(row(t), workers=[timing])

    def passed_on(*cpus: float | None) -> tuple[float | None, float | None, int | None]:
        rows = [with_cpu(t, cpu) for t, cpu in enumerate(cpus)]
        found = timings_of(IterationRows(job=JobId("j"), rows=rows, balanced=True))
        assert found is not None
        return (
            found.workers[0].cpu_process,
            found.workers[0].cpu_host,
            found.workers[0].memory_bytes,
        )

    assert passed_on(0.25, 0.75) == (0.75, 0.75, 4096)
    assert passed_on(None, None) == (None, None, None)
