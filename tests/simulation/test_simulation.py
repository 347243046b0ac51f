"""What a simulation is worth: a seed replays exactly, and every rule that is left out is found.

``make simulation SEED=4711`` tells a seed line by line.
"""

from __future__ import annotations

import os

import pytest
from simulation.omissions import OMISSIONS
from simulation.running import simulate

SEED = int(os.environ.get("SEED") or 0)


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
    changes, acts = omission.changes, omission.acts
    bad = next((seed for seed in omission.seeds if simulate(seed, changes, acts).faults), None)
    assert bad is not None, omission.what
    assert not simulate(bad, acts=acts).faults, "it is bad with the rule as well"
