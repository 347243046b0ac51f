"""The update protocol under random schedules, and under them again with each rule left out.

A bad schedule is told message by message by ``python tests/unit/protocol_world.py SEED``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

from protocol_faults import FAULTS, SPARE
from protocol_marks import later
from protocol_world import bad_among

SCHEDULES = 10_000
CHUNK = 1_000


BLOCKS = [
    pytest.param(first, marks=later(first, thorough=1_000, long=5_000))
    for first in range(0, SCHEDULES, CHUNK)
]
"""The later ones are no part of `make test`."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("first", BLOCKS)
def test_every_schedule_ends_exactly_as_the_plain_loop(first: int) -> None:
    bad = list(bad_among(range(first, first + CHUNK), thorough=True))
    told = "python tests/unit/protocol_world.py"
    assert not bad, "; ".join(f"{told} {seed}: {why}" for seed, why in bad[:5])


@pytest.mark.timeout(300)
@pytest.mark.parametrize("focus", [None, "hangs"])
def test_nor_is_anybody_waited_for_who_has_not_asked_yet(focus: str | None) -> None:
    bad = list(bad_among(range(100), asked_first=True, focus=focus, thorough=True))
    assert not bad, bad[:5]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", FAULTS)
def test_a_rule_that_is_left_out_is_found(name: str) -> None:
    fault = FAULTS[name]
    found = any(bad_among(fault.seeds, **fault.how))
    assert found, f"{fault.what}: nothing was wrong in {fault.within} schedules"


@pytest.mark.timeout(300)
@pytest.mark.thorough
@pytest.mark.parametrize("name", SPARE)
def test_what_is_only_there_for_clarity_changes_nothing(name: str) -> None:
    fault = SPARE[name]
    bad = [seed for seed, _ in bad_among(fault.seeds, **fault.how)]
    assert not bad, f"{fault.what}: it is needed after all, see schedules {bad[:5]}"
