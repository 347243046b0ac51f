"""The names of batch policies: what a document may say is what there is."""

from __future__ import annotations

from typing import Any

import pytest

from elps.balance import PREDICTORS, Policy
from elps.contracts import batching
from elps.contracts.codec import parse_job
from elps.contracts.errors import InvalidDocument
from elps.contracts.ids import JobId, WorkerId
from elps.contracts.job import JobDocument
from elps.contracts.messages import IterationRow, IterationRows, LogLines, WorkerTiming
from elps.monitor.core.forwarding import NEWEST, timings_of


def job(**fields: Any) -> JobDocument:
    return parse_job({"task": "linear", "iterations": 3, "workers": {"max": 2}, **fields})


def test_every_name_stands_for_a_policy_and_every_predictor_has_its_name() -> None:
    assert set(batching.PREDICTORS) == set(PREDICTORS)
    for name in batching.POLICIES:
        assert Policy.named(name).fixed == (name == "fixed")
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


def rows(count: int, balanced: bool) -> IterationRows:
    timing = WorkerTiming(
        worker=WorkerId("w"), samples=3, compute_s=0.1, pull_s=0, wait_s=0, push_s=0, lease_s=0
    )
    return IterationRows(
        job=JobId("j"), balanced=balanced,
        rows=[
            IterationRow(
                iteration=t, passes=0, samples=3, skipped=0, loss=None, duration_s=0.1, at=0, term=2,
                plan=1, lr=1, workers=[timing],
            )
            for t in range(count)
        ],
    )  # fmt: skip


def test_the_newest_timings_are_passed_on_if_somebody_waits_for_them() -> None:
    assert timings_of(rows(9, balanced=False)) is None
    assert timings_of(rows(0, balanced=True)) is None
    assert timings_of(LogLines(job=JobId("j"), worker=WorkerId("w"), at=0, lines=[])) is None
    found = timings_of(rows(9, balanced=True))
    assert found is not None
    assert found.term == 2
    assert [row.iteration for row in found.rows] == list(range(9 - NEWEST, 9))
    assert found.rows[0].workers[0].samples == 3
