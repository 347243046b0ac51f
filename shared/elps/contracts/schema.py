"""The JSON Schema of a job document, made from its types and their docstrings.

``python -m elps.contracts.schema`` prints it, ``--write FILE`` keeps it, ``--check FILE`` fails if FILE is not it.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import sys
import textwrap
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import orjson

from elps.contracts import job as job_module
from elps.contracts.ids import ID_PATTERN
from elps.contracts.job import JobDocument

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def job_schema() -> dict[str, Any]:
    """JSON Schema 2020-12 of a job document.

    It says all that one field can say of itself, and that `passes` and `iterations` exclude each other; the other
    faults that `semantic_problems` finds cannot be said in it.
    """
    schema = msgspec.json.schema(JobDocument)
    for name, definition in schema["$defs"].items():
        for field, text in field_docs(getattr(job_module, name)).items():
            definition["properties"][field]["description"] = text
    document = schema["$defs"]["JobDocument"]
    document["properties"]["id"]["anyOf"][0]["pattern"] = f"^{ID_PATTERN}$"
    document["oneOf"] = [
        {"required": [field], "properties": {field: {"type": "integer"}}}
        for field in ("passes", "iterations")
    ]
    return {"$schema": DIALECT, "title": "elps job", **schema}


def job_schema_text() -> str:
    """The schema as a file: the same bytes for the same types."""
    return orjson.dumps(job_schema(), option=orjson.OPT_INDENT_2).decode() + "\n"


def component_schemas(
    kinds: Iterable[type], modules: Iterable[ModuleType]
) -> dict[str, dict[str, Any]]:
    """JSON Schemas of types and all that they consist of, by name, as components of a larger description.

    The structs among them lie in `modules`.
    """
    _, found = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    structs = {name: kind for module in modules for name, kind in vars(module).items()}
    for name, schema in found.items():
        kind = structs[name]
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and "properties" in schema:
            for shown, text in field_docs(kind).items():
                schema["properties"][shown]["description"] = text
    return found


def field_docs(kind: type[msgspec.Struct]) -> dict[str, str]:
    """Return the string below each field of a struct, by the field's name in a document."""
    docs: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if issubclass(base, msgspec.Struct) and base.__module__.startswith("elps."):
            docs |= _own_docs(base)
    return docs


@cache
def _own_docs(kind: type[msgspec.Struct]) -> dict[str, str]:
    names = {field.name: field.encode_name for field in msgspec.structs.fields(kind)}
    [definition] = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(definition, ast.ClassDef)
    docs: dict[str, str] = {}
    for field, below in zip(definition.body, definition.body[1:], strict=False):
        match field, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                docs[names[name]] = inspect.cleandoc(text)
    return docs


def keep_file(program: str, about: str, text: str, arguments: list[str] | None) -> int:
    """Print a generated text, write it to a file, or check that the file is it; returns the exit code."""
    parser = argparse.ArgumentParser(prog=f"python -m {program}", description=about)
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--write", type=Path, metavar="FILE")
    group.add_argument("--check", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    if options.write is not None:
        options.write.write_text(text, encoding="utf-8")
    elif options.check is None:
        sys.stdout.write(text)
    elif not options.check.is_file() or options.check.read_text(encoding="utf-8") != text:
        sys.stderr.write(f"{options.check} is not up to date with the types: run 'make schema'\n")
        return 1
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Print, write or check the schema."""
    return keep_file("elps.contracts.schema", main.__doc__ or "", job_schema_text(), arguments)


if __name__ == "__main__":
    sys.exit(main())
