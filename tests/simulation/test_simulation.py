"""All of elps in one thread and virtual time: whatever fails, each job comes to its right end, exactly.

A bad seed is told line by line by ``SEED=4711 pytest -s tests/simulation -k one_seed``, or in the folder `tests` by
``python -m simulation 4711``; it replays exactly.
"""

from __future__ import annotations

import os

import pytest
from simulation.omissions import OMISSIONS
from simulation.running import simulate

SEED = int(os.environ.get("SEED") or 0)
SEEDS = 500
CHUNK = 50


@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_every_job_comes_to_its_right_end_whatever_fails(first: int) -> None:
    for seed in range(first, first + CHUNK):
        outcome = simulate(seed)
        assert not outcome.faults, f"{outcome.told}\nrepeat with: SEED={seed} pytest -k one_seed"


def test_one_seed_comes_to_its_right_end() -> None:
    outcome = simulate(SEED)
    print(outcome.told)
    assert not outcome.faults


def test_the_same_seed_tells_the_same_story() -> None:
    first, second = simulate(SEED), simulate(SEED)
    assert first.lines == second.lines
    assert first.lines != simulate(SEED + 1).lines


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", OMISSIONS)
def test_a_rule_that_is_left_out_is_found(name: str) -> None:
    omission = OMISSIONS[name]
    assert any(simulate(seed, omission.changes).faults for seed in omission.seeds), omission.what
