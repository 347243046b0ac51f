"""`elps schema`: the JSON Schema of a job file."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from typing import Any

import msgspec
import orjson

from elps.contracts import job as job_module
from elps.contracts.ids import ID_PATTERN
from elps.contracts.job import JobDocument


def job_schema() -> dict[str, Any]:
    """JSON Schema 2020-12 of a job document, made from its types and their docstrings."""
    schema = msgspec.json.schema(JobDocument)
    for name, definition in schema["$defs"].items():
        for field, text in _field_docs(getattr(job_module, name)).items():
            definition["properties"][field]["description"] = text
    document = schema["$defs"]["JobDocument"]
    document["properties"]["id"]["anyOf"][0]["pattern"] = f"^{ID_PATTERN}$"
    document["oneOf"] = [
        {"required": [field], "properties": {field: {"type": "integer"}}}
        for field in ("passes", "iterations")
    ]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "elps job",
        **schema,
    }


def _field_docs(kind: type[msgspec.Struct]) -> dict[str, str]:
    """The string below each field of a struct, by the field's name in a document."""
    names = {f.name: f.encode_name for f in msgspec.structs.fields(kind)}
    [definition] = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(definition, ast.ClassDef)
    docs: dict[str, str] = {}
    for field, below in zip(definition.body, definition.body[1:], strict=False):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(
                value=ast.Constant(value=str(text))
            ):
                docs[names[name]] = inspect.cleandoc(text)
    return docs


def schema() -> None:
    """Print the JSON Schema of a job file."""
    sys.stdout.write(orjson.dumps(job_schema(), option=orjson.OPT_INDENT_2).decode() + "\n")
