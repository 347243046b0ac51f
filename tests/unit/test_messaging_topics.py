"""Topic patterns against a plain definition."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elps.messaging.topics import routes, topic_matches

words = st.lists(st.sampled_from(["a", "b", "job"]), max_size=5).map(".".join)
patterns = st.lists(st.sampled_from(["a", "b", "job", "*", "#"]), max_size=5).map(".".join)


def by_definition(pattern: str, key: str) -> bool:
    """Every word of the key followed by a dot, so that a pattern is a plain regular expression."""
    parts = {"*": r"[^.]+\.", "#": r"(?:[^.]+\.)*"}
    expression = "".join(parts.get(p, re.escape(p) + r"\.") for p in pattern.split(".") if p)
    return re.fullmatch(expression, key + "." if key else "") is not None


@given(patterns, words)
def test_a_pattern_matches_as_defined(pattern: str, key: str) -> None:
    assert topic_matches(pattern, key) == by_definition(pattern, key)


@pytest.mark.parametrize(
    ("kind", "key", "expected"),
    [
        ("fanout", "x", True),
        ("direct", "a.*", True),
        ("direct", "a.b", False),
        ("topic", "a.b", True),
    ],
)
def test_each_kind_of_exchange_routes_its_way(kind: str, key: str, expected: bool) -> None:
    assert routes(kind, "a.*", key) is expected  # type: ignore[arg-type]
