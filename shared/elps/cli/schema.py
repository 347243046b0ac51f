"""`elps schema`: the JSON Schema of a job file."""

from __future__ import annotations

import sys

from elps.contracts.schema import job_schema_text


def schema() -> None:
    """Print the JSON Schema of a job file."""
    sys.stdout.write(job_schema_text())
