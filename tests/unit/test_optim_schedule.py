"""The factor on the learning rate."""

from __future__ import annotations

import importlib.util
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elps.contracts.job import Schedule
from elps.optim.schedule import factor


def factors(schedule: Schedule, steps: int, total: int = 100) -> list[float]:
    return [factor(schedule, step, total) for step in range(1, steps + 1)]


def test_constant_is_1() -> None:
    assert factors(Schedule(), 3) == [1.0, 1.0, 1.0]


def test_warm_up_rises_from_one_part_to_the_whole() -> None:
    assert factors(Schedule(warmup=4), 6) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert factors(Schedule(warmup=1), 2) == [1.0, 1.0]


def test_step_falls_by_gamma_after_each_step_size() -> None:
    assert factors(Schedule(name="step", step_size=2, gamma=0.5), 5) == [1.0, 1.0, 0.5, 0.5, 0.25]


def test_step_underflows_to_0_and_does_not_raise() -> None:
    assert factor(Schedule(name="step", step_size=1, gamma=1e-9), 10**6, 100) == 0.0


def test_cosine_falls_from_1_through_the_middle_to_the_floor_and_stays() -> None:
    schedule = Schedule(name="cosine", floor=0.2)
    assert factor(schedule, 1, 10) == 1.0
    assert factor(schedule, 6, 10) == pytest.approx(0.6)
    assert factor(schedule, 11, 10) == pytest.approx(0.2)
    assert factor(schedule, 500, 10) == pytest.approx(0.2)


def test_cosine_takes_its_own_total_before_the_jobs() -> None:
    assert factor(Schedule(name="cosine", total=4), 3, 1000) == pytest.approx(0.5)


@pytest.mark.parametrize("name", ["cosine", "polynomial"])
def test_a_schedule_with_an_end_is_refused_without_a_length(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} needs the number of steps"):
        factor(Schedule(name=name), 1, 0)  # type: ignore[arg-type]


def test_polynomial_falls_to_the_floor_and_stays() -> None:
    assert factors(Schedule(name="polynomial", total=4), 6) == [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    squared = Schedule(name="polynomial", total=4, power=2, floor=0.2)
    assert factors(squared, 6) == pytest.approx([1.0, 0.65, 0.4, 0.25, 0.2, 0.2])


def test_inverse_square_root_rises_to_1_at_the_end_of_the_warm_up_and_falls_from_there() -> None:
    rising = factors(Schedule(name="inverse_sqrt", warmup=4), 4)
    assert rising == [0.25, 0.5, 0.75, 1.0]
    assert factor(Schedule(name="inverse_sqrt", warmup=4), 16, 0) == 0.5
    assert factors(Schedule(name="inverse_sqrt"), 4) == pytest.approx(
        [s**-0.5 for s in (1, 2, 3, 4)]
    )


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not a dependency")
@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_polynomial_is_torchs(power: float) -> None:
    torch: Any = pytest.importorskip("torch")
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    theirs = torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=7, power=power)
    for ours in factors(Schedule(name="polynomial", total=7, power=power), 9):
        assert ours == pytest.approx(theirs.get_last_lr()[0], rel=1e-12, abs=1e-12)
        optimizer.step()
        theirs.step()


def test_warm_up_multiplies_the_schedule() -> None:
    both = factor(Schedule(name="cosine", warmup=10), 5, 100)
    assert both == pytest.approx(0.5 * (1 + math.cos(math.pi * 0.04)) / 2)


def test_steps_count_from_1() -> None:
    with pytest.raises(ValueError, match="count from 1"):
        factor(Schedule(), 0, 10)


@given(
    name=st.sampled_from(["constant", "step", "cosine", "inverse_sqrt", "polynomial"]),
    warmup=st.integers(0, 50),
    step=st.integers(1, 10**7),
    total=st.integers(1, 10**6),
    floor=st.floats(0, 1),
)
def test_the_factor_lies_between_0_and_1(
    name: str, warmup: int, step: int, total: int, floor: float
) -> None:
    schedule = Schedule(name=name, warmup=warmup, floor=floor)  # type: ignore[arg-type]
    assert 0.0 <= factor(schedule, step, total) <= 1.0 + 1e-12
