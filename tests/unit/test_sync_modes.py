"""The modes a job document may name, and what does not go with them."""

from __future__ import annotations

from typing import Any

import pytest

from elps.contracts.codec import parse_job
from elps.contracts.errors import InvalidDocument
from elps.contracts.job import STALENESS, UNBOUNDED, JobDocument


def job(**fields: Any) -> JobDocument:
    shards = {"min": 1, "max": 2}
    return parse_job({"task": "linear", "iterations": 3, "shards": shards, **fields})


def test_the_bound_is_the_jobs_own_or_a_usual_one() -> None:
    assert job().sync == "bsp"
    assert job().bound is None
    assert job(sync="ssp").bound == STALENESS
    assert job(sync="ssp", staleness=0).bound == 0
    assert job(sync="asp").bound == UNBOUNDED


def test_batches_are_not_balanced_without_a_barrier() -> None:
    assert job(workers={"max": 2}).balanced
    assert not job(workers={"max": 2}, sync="asp").balanced
    assert job(sync="ssp", batch={"policy": "fixed"}).batch_policy == "fixed"


@pytest.mark.parametrize("sync", ["ssp", "asp"])
@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"deterministic": True}, "in an order that no two runs share; give 'bsp' or leave"),
        ({"replicas": 1}, "there are no replicas in this version"),
        ({"batch": {"policy": "lb-bsp"}}, "sizes batches so that workers meet at a barrier"),
    ],
)
def test_what_needs_a_barrier_is_refused_with_the_reason(
    sync: str, fields: dict[str, Any], text: str
) -> None:
    with pytest.raises(InvalidDocument, match=text) as caught:
        job(sync=sync, **fields)
    assert len(caught.value.problems) == 1


@pytest.mark.parametrize("sync", ["bsp", "asp"])
def test_a_bound_without_ssp_is_refused(sync: str) -> None:
    with pytest.raises(InvalidDocument, match="a bound goes with sync 'ssp'"):
        job(sync=sync, staleness=2)


@pytest.mark.parametrize("fields", [{"sync": "hogwild"}, {"sync": "ssp", "staleness": -1}])
def test_an_unknown_mode_and_a_bound_that_is_none_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidDocument):
        job(**fields)
