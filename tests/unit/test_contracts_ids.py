"""Identifiers become parts of routing keys, Redis keys and file names: nothing in them may have a meaning there."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elps.contracts import topology
from elps.contracts.codec import parse_job
from elps.contracts.errors import InvalidDocument
from elps.contracts.ids import MAX_ID_LENGTH, JobId, id_problem, parse_job_id
from elps.messaging.topics import topic_matches


@pytest.mark.parametrize("good", ["a", "A9", "job-1", "job_1-x", "0", "a" * MAX_ID_LENGTH])
def test_a_plain_name_is_an_identifier(good: str) -> None:
    assert id_problem(good) is None
    assert parse_job_id(good) == good


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "a/b",
        "../x",
        "..",
        ".",
        "a.b",
        "a.b.#",
        "a.#",
        "*",
        "#",
        "job:1",
        "-a",
        "_a",
        "a" * 65,
        "a" * 300,
        "größe",
        "a b",
        " a",
        "a\n",
        "a\x00",
        "\u0661",  # a digit, but not an ASCII one
        "a\u202eb",
        "%2e",
        "$(x)",
    ],
)
def test_anything_else_is_refused_with_what_was_expected(bad: str) -> None:
    problem = id_problem(bad)
    assert problem is not None
    assert "expected 1 to 64 of A-Z a-z 0-9 _ -" in problem
    assert len(problem) < 400
    with pytest.raises(InvalidDocument, match="is not an identifier"):
        parse_job_id(bad)
    with pytest.raises(InvalidDocument, match="id: "):
        parse_job({"id": bad, "task": "softmax", "passes": 1})


@given(
    st.from_regex(r"[A-Za-z0-9_.:*#/-]{1,12}", fullmatch=True),
    st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,9}", fullmatch=True),
)
def test_no_job_hears_or_touches_what_is_of_another(one: str, other: str) -> None:
    if id_problem(one) is not None or one == other:
        return
    a, b = JobId(one), JobId(other)
    assert not topic_matches(f"job.{a}.#", topology.event_key(b, "failed"))
    assert not topic_matches(topology.telemetry_key(a), topology.telemetry_key(b))
    for key in (
        topology.term_key(b),
        topology.manifests_key(b),
        topology.chunk_key(b, "c", 0, "p"),
    ):
        assert not key.startswith(topology.job_prefix(a))
    assert topology.job_prefix(a) != topology.JOB_INDEX
