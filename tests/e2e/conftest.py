"""Whole jobs through all services."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]  # for the harness beside, and the plain loop


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests here carry the mark, and share one event loop per module with its cluster."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.e2e)
