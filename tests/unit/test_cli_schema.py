from __future__ import annotations

import jsonschema
import msgspec
import pytest

from elps.contracts.codec import parse_job
from elps.contracts.errors import InvalidDocument
from elps.contracts.schema import job_schema


def check(document: object) -> bool:
    return bool(jsonschema.Draft202012Validator(job_schema()).is_valid(document))


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(job_schema())


@pytest.mark.parametrize(
    "document",
    [
        {"task": "mlp", "passes": 3},
        {"task": "mlp", "passes": 3, "batch": {"global": 64, "granule": 8}, "workers": {"max": 4}},
        {"task": "mlp"},
        {"task": "mlp", "passes": 3, "iterations": 5},
        {"task": "mlp", "passes": 0},
        {"task": "mlp", "passes": 1, "id": "a/b"},
        {"task": "mlp", "passes": 1, "optimizer": {"name": "adamm"}},
        {"task": "mlp", "passes": 1, "unknown": 1},
    ],
)
def test_schema_and_parser_agree(document: dict[str, object]) -> None:
    try:
        parse_job(document)
        fits = True
    except InvalidDocument:
        fits = False
    assert check(document) is fits


def test_a_whole_document_written_out_fits() -> None:
    assert check(msgspec.to_builtins(parse_job({"task": "mlp", "passes": 3})))


def test_fields_carry_their_descriptions() -> None:
    schema = job_schema()["$defs"]
    assert "Samples in one iteration" in schema["Batch"]["properties"]["global"]["description"]
    assert "held out" in schema["Data"]["properties"]["test_fraction"]["description"]
