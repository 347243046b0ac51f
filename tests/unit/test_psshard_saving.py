"""When a checkpoint under way is hurried, and how long its writers rest otherwise."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from elps.psshard.core.commands import WriteCheckpoint
from elps.psshard.core.rules import Rules
from elps.psshard.core.saving import Saving
from elps.psshard.core.throttle import MOST_S, SHARE, Throttle
from elps.stream.geometry import Geometry


def saving(every: int = 0, every_s: float = 0.0) -> Saving:
    rules = Rules(
        Geometry(samples=64, batch=8),
        iterations=100,
        checkpoint_every=every,
        checkpoint_every_s=every_s,
    )
    return Saving(rules, None, 0.0)


def test_a_checkpoint_is_written_at_leisure_until_the_next_one_is_due() -> None:
    s = saving(every=5)
    assert s.reached(5) == []
    assert s.begin(5) == [WriteCheckpoint(5)]
    assert s.reached(6) == []
    assert s.reached(10) == [WriteCheckpoint(5, hurry=True)]
    assert s.reached(11) == [], "it was said"
    assert s.begin(11) == [], "one at a time"
    assert s.again() == [WriteCheckpoint(5, hurry=True)], "said again with the rest"
    s.written(5, 1.0)
    assert s.begin(11) == [WriteCheckpoint(11)], (
        "what was due meanwhile is begun at the next boundary, at leisure"
    )
    assert s.again() == [WriteCheckpoint(11)]


def test_by_time_too() -> None:
    s = saving(every_s=10.0)
    assert s.look(9.9) == []
    assert s.look(10.0) == []
    assert s.begin(3) == [WriteCheckpoint(3)]
    assert s.look(19.9) == []
    assert s.look(20.0) == [WriteCheckpoint(3, hurry=True)]
    assert s.look(30.0) == []


def test_what_rests_on_a_checkpoint_is_in_a_hurry_at_once() -> None:
    s = saving()
    assert s.hurry() == [], "nothing is under way"
    assert s.begin(3, whatever=True) == [WriteCheckpoint(3, hurry=True)]
    assert s.hurry() == []


@given(st.lists(st.floats(-1.0, 100.0), max_size=60))
def test_writers_rest_in_proportion_to_what_they_wrote_and_within_bounds(
    worked: list[float],
) -> None:
    throttle, rested = Throttle(), 0.0
    for worked_s in worked:
        rest_s = throttle.rest_s(worked_s)
        assert rest_s >= 0.0
        wanted = max(0.0, worked_s) * (1 - SHARE) / SHARE
        assert abs(rest_s - min(wanted, MOST_S - rested)) < 1e-6
        rested += rest_s
    assert rested <= MOST_S + 1e-6
