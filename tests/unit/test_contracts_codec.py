"""Reading what comes from outside: every fault is named, nothing hostile gets through."""

from __future__ import annotations

import pickle
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elps.contracts.codec import (
    MAX_MESSAGE_BYTES,
    decode,
    encode,
    loads,
    loads_document,
    parse_job,
)
from elps.contracts.errors import InvalidDocument
from elps.contracts.requests import JobCommand, Reply
from elps.contracts.state import JobState, Progress

GOOD: dict[str, Any] = {"task": "softmax", "data": {"source": "digits"}, "passes": 1}


def problems(document: object) -> list[str]:
    with pytest.raises(InvalidDocument) as caught:
        parse_job(document)
    return list(caught.value.problems)


def test_a_good_document_is_read_with_its_defaults() -> None:
    job = parse_job(GOOD)
    assert (job.task, job.passes, job.batch.global_, job.workers.max) == ("softmax", 1, 32, 1)


def test_every_fault_of_a_document_is_listed_with_its_path() -> None:
    found = problems(
        {
            "id": "a/b",
            "optimiser": {},
            "data": {"source": "", "stratify": "yes", "pth": "x"},
            "optimizer": {"name": "adamm", "lr": -1, "momentum": 1.0},
            "batch": {"global": 0, "granule": 2.5},
            "workers": [1],
            "seed": -1,
        }
    )
    paths = {problem.split(":")[0] for problem in found}
    assert paths == {
        "id",
        "optimiser",
        "task",
        "data.source",
        "data.stratify",
        "data.pth",
        "optimizer.name",
        "optimizer.lr",
        "optimizer.momentum",
        "batch.global",
        "batch.granule",
        "workers",
        "seed",
        "passes, iterations",
    }
    assert "optimiser: unknown; did you mean optimizer?" in found
    assert "data.pth: unknown; did you mean path?" in found
    assert (
        "optimizer.name: 'adamm' is not one of sgd, momentum, nesterov, adagrad, rmsprop, adam, adamw, ftrl"
        in found
    )
    assert "workers: expected a table, got a list" in found
    assert "task: missing" in found


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"iterations": 5}, "exactly one"),
        ({"passes": None}, "exactly one"),
        ({"workers": {"min": 3, "max": 2}}, "workers: min 3 is above max 2"),
        ({"shards": {"min": 2}}, "shards: min 2 is above max 1"),
        ({"stop": {"metric": "loss"}}, "metric goes with target, patience or both"),
        ({"stop": {"target": 1.0}}, "metric goes with target, patience or both"),
        ({"stop": {"patience": 3}}, "metric goes with target, patience or both"),
        ({"stop": {"metric": "m", "target": 1, "min_delta": 0.1}}, "min_delta goes with patience"),
        (
            {"passes": None, "iterations": 5, "feedback": {"iterations": 10**9}},
            "feedback, iterations: it is given after 1000000000 iterations, which is beyond the job's 5; give 5",
        ),
        (
            {"passes": 2, "feedback": {"passes": 2.5}},
            "feedback, passes: it is given after 2.5 passes, which is beyond the job's 2; give 2 or less",
        ),
        ({"batch": {"global": 10, "granule": 4}}, "not a multiple"),
    ],
)
def test_faults_that_no_single_field_shows_are_found(change: dict[str, Any], fault: str) -> None:
    (problem,) = problems(GOOD | change)
    assert fault in problem


def test_feedback_may_be_given_at_the_very_end() -> None:
    by_iterations = {"passes": None, "iterations": 5, "feedback": {"iterations": 5}}
    for change in (by_iterations, {"passes": 2, "feedback": {"passes": 2.0, "iterations": 99}}):
        parse_job(GOOD | change)


@pytest.mark.parametrize("document", [None, [], "task", 7, True])
def test_a_document_that_is_no_table_is_refused(document: object) -> None:
    (problem,) = problems(document)
    assert problem.startswith("document: expected a table")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("seed", int("9" * 30)),
        ("seed", 2**63),
        ("passes", 0),
        ("passes", 1.5),
        ("passes", True),
        ("passes", "3"),
        ("passes", 2**53 + 1),
        ("optimizer.lr", float("nan")),
        ("optimizer.lr", float("inf")),
        ("optimizer.lr", "0.1"),
        ("optimizer.lr", 1e13),
        ("optimizer.lr", 0),
        ("optimizer.beta1", 1.0),
        ("data.test_fraction", 1),
        ("data.test_fraction", float("nan")),
        ("batch.global", None),
        ("task", ""),
        ("task", "x" * 513),
        ("task", b"softmax"),
        ("task_args", []),
        ("deterministic", 1),
        ("workers.max", 4097),
        ("group", "g" * 65),
    ],
)
def test_a_hostile_value_is_refused_where_it_stands(path: str, value: object) -> None:
    document = {**GOOD}
    *tables, field = path.split(".")
    inner = document
    for table in tables:
        inner[table] = dict(inner.get(table, {}))
        inner = inner[table]
    inner[field] = value
    (problem,) = [p for p in problems(document) if not p.startswith("passes, iterations")]
    assert problem.startswith(f"{path}:")
    assert len(problem) < 300


def test_text_of_a_fault_is_bounded_however_large_the_value() -> None:
    for problem in problems(GOOD | {"x" * 10_000: 1, "seed": "y" * 10_000}):
        assert len(problem) < 1000


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nonsense",
        b'{"job":"a"} trailing',
        b'{"job":"\xff\xfe"}',
        b'{"job":NaN}',
        b'{"job":Infinity}',
        b"[" * 100_000,
        b'{"a":' * 2000 + b"1" + b"}" * 2000,
        pickle.dumps({"job": "a"}),
        b"\x00" * 100,
    ],
    ids=lambda body: repr(body[:12]),
)
def test_what_is_no_json_is_refused_as_a_document(body: bytes) -> None:
    with pytest.raises(InvalidDocument, match="not JSON"):
        decode(body, JobCommand)


def test_a_body_above_the_limit_is_not_even_looked_at() -> None:
    with pytest.raises(InvalidDocument, match=f"at most {MAX_MESSAGE_BYTES}"):
        loads(b" " * (MAX_MESSAGE_BYTES + 1))
    assert loads(b" " * (MAX_MESSAGE_BYTES - 2) + b"[]") == []


@pytest.mark.parametrize(
    "body", [b"[]", b"null", b"{}", b'{"job":1}', b'{"job":"a","extra":1}', b'{"job":null}']
)
def test_json_of_the_wrong_shape_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidDocument):
        decode(body, JobCommand)


def test_a_number_of_thirty_digits_in_json_is_refused() -> None:
    with pytest.raises(InvalidDocument, match="seed"):
        parse_job(loads(b'{"task":"softmax","passes":1,"seed":' + b"9" * 30 + b"}"))


def test_numbers_that_json_lacks_become_null() -> None:
    progress = Progress(loss=float("nan"), metrics={"accuracy": float("inf")})
    assert decode(encode(progress), Progress) == Progress(loss=None, metrics={"accuracy": None})


def test_numbers_of_numpy_are_written_as_plain_ones() -> None:
    progress = Progress(loss=np.float32(0.5), iteration=np.int64(3), passes=np.float64(1.5))  # type: ignore[arg-type]
    assert decode(encode(progress), Progress) == Progress(loss=0.5, iteration=3, passes=1.5)
    assert (
        encode({"array": np.arange(3), "bad": np.float32("nan")}) == b'{"array":[0,1,2],"bad":null}'
    )


def test_what_json_cannot_hold_is_a_fault_of_the_caller() -> None:
    with pytest.raises(NotImplementedError, match="object"):
        encode({"x": object()})


def test_a_reply_comes_back_as_it_was() -> None:
    reply = Reply(ok=False, job="a", state=JobState.FAILED, reason="☃", problems=["x: y"])
    assert decode(encode(reply), Reply) == reply


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
fields = st.sampled_from(
    [
        "id",
        "task",
        "task_args",
        "data",
        "optimizer",
        "batch",
        "passes",
        "iterations",
        "seed",
        "workers",
        "stop",
        "limits",
    ]
)


@settings(deadline=None)
@given(st.dictionaries(fields | st.text(max_size=5), json_values, max_size=8))
def test_any_document_is_either_read_or_refused(document: dict[str, Any]) -> None:
    try:
        job = parse_job(document)
    except InvalidDocument:
        pass
    else:
        assert msgspec.convert(msgspec.to_builtins(job), type(job)) == job


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_either_read_or_refused(body: bytes) -> None:
    try:
        assert decode(body, JobCommand).job is not None
    except InvalidDocument:
        pass


def test_a_key_given_twice_in_a_document_is_refused_wherever_it_stands() -> None:
    body = (
        b'{"task": "mlp", "optimizer": {"lr": 0.1, "lr": 0.2, "lr": 3}, "seed": 1, "seed": 1,'
        b' "task_args": {"layers": [{"width": 1, "width": 2}]}}'
    )
    with pytest.raises(InvalidDocument) as caught:
        loads_document(body)
    assert list(caught.value.problems) == [
        "optimizer.lr: given twice",
        "seed: given twice",
        "task_args.layers[0].width: given twice",
    ]


@pytest.mark.parametrize("body", [b"{", b"{} {}", b"\xff", b'{"a": NaN}', b"[" * 100_000])
def test_a_document_that_is_no_json_is_refused_as_any_message(body: bytes) -> None:
    with pytest.raises(InvalidDocument):
        loads_document(body)


@settings(deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(-9, 9) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_a_document_without_repeats_reads_as_it_was_written(value: object) -> None:
    assert loads_document(encode(value)) == value
