"""All of elps in one thread and virtual time: whatever fails, each job comes to its right end, exactly.

``make simulation SEED=4711`` tells a bad seed line by line; it replays exactly.
"""

from __future__ import annotations

import pytest
from simulation.running import simulate

SEEDS = 500
CHUNK = 50


@pytest.mark.thorough
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_every_job_comes_to_its_right_end_whatever_fails(first: int) -> None:
    for seed in range(first, first + CHUNK):
        outcome = simulate(seed)
        assert not outcome.faults, f"{outcome.told}\nrepeat with: make simulation SEED={seed}"
