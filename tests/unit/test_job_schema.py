"""docs/job.schema.json says what the types say, and the examples follow it."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from elps.contracts.codec import parse_job
from elps.contracts.schema import job_schema, job_schema_text, main

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(
    path
    for ext in ("toml", "json", "yaml", "yml")
    for path in (ROOT / "examples").rglob(f"*.{ext}")
    if path.parent.name != "workloads"  # of the simulator
)

GOOD: dict[str, Any] = {"task": "mlp", "data": {"source": "digits"}, "passes": 2}


def read(path: Path) -> Any:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".toml":
        return tomllib.loads(text)
    return json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)


def complaints(document: object) -> list[str]:
    validator = jsonschema.Draft202012Validator(job_schema())
    return [error.message for error in validator.iter_errors(document)]


def test_the_schema_is_one_itself() -> None:
    jsonschema.Draft202012Validator.check_schema(job_schema())


def test_the_file_in_docs_is_up_to_date() -> None:
    assert main(["--check", str(ROOT / "docs" / "job.schema.json")]) == 0


def test_a_file_that_is_not_up_to_date_is_found(tmp_path: Path) -> None:
    old = tmp_path / "job.schema.json"
    assert main(["--check", str(old)]) == 1
    old.write_text(job_schema_text().replace("2020-12", "2019-09"), encoding="utf-8")
    assert main(["--check", str(old)]) == 1
    assert main(["--write", str(old)]) == 0
    assert main(["--check", str(old)]) == 0


def test_every_field_is_described_or_plain() -> None:
    document = job_schema()["$defs"]["JobDocument"]
    assert document["additionalProperties"] is False
    assert "global" in job_schema()["$defs"]["Batch"]["properties"]
    assert job_schema()["$defs"]["Batch"]["properties"]["global"]["description"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"passes": None},
        {"iterations": 5},
        {"id": "a/b"},
        {"id": ""},
        {"task": ""},
        {"batch": {"global": 0}},
        {"batch": {"globl": 8}},
        {"workers": {"min": 0}},
        {"optimizer": {"name": "adamax"}},
        {"unknown": 1},
    ],
    ids=str,
)
def test_what_the_code_refuses_the_schema_refuses(wrong: dict[str, Any]) -> None:
    assert complaints(GOOD) == []
    assert complaints(GOOD | wrong) != []
    with pytest.raises(Exception, match="job document"):
        parse_job(GOOD | wrong)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_each_example_follows_the_schema_and_is_accepted(path: Path) -> None:
    document = read(path)
    assert complaints(document) == []
    parse_job(document)
