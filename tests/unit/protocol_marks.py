"""Which schedules are searched by `make test`, and which with `make chaos` or the long tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def later(first: int, *, thorough: int, long: int) -> list[pytest.MarkDecorator]:
    """Marks of a block of schedules by its first one."""
    if first >= long:
        return [pytest.mark.long]
    return [pytest.mark.thorough] if first >= thorough else []


def rare(faults: Iterable[str], *slow: str) -> list[Any]:
    """Faults by name, of which some show in few schedules only, so that many are searched."""
    return [
        pytest.param(name, marks=[pytest.mark.thorough] if name in slow else []) for name in faults
    ]
