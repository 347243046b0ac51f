"""How long a link has been down, whatever it does meanwhile."""

from __future__ import annotations

from elps.psshard.reach import STEADY_S, Reach


def test_a_link_is_down_until_it_is_made_and_then_believed_at_once() -> None:
    reach = Reach(100.0)
    assert reach.down_s(102.5) == 2.5
    reach.made(103.0)
    assert reach.down_s(103.0) == 0


def test_the_time_begins_anew_with_each_outage_of_a_link_that_had_lasted() -> None:
    reach = Reach(0.0)
    reach.made(0.1)
    reach.lost(50.0)
    assert reach.down_s(50.5) == 0.5
    reach.made(50.75)
    assert reach.down_s(50.75) == 0, "a short outage is not shown when it is over"


def test_a_link_that_comes_and_goes_is_down_all_the_time() -> None:
    reach = Reach(0.0)
    reach.made(0.1)
    reach.lost(10.0)
    for n in range(20):
        reach.made(10.1 + n * 0.2)
        reach.lost(10.2 + n * 0.2)
    assert reach.down_s(14.5) == 4.5
    reach.made(15.0)
    assert reach.down_s(15.5) == 5.5, "it may be lost again at any moment"
    assert reach.down_s(15.0 + STEADY_S) == 0
    reach.lost(30.0)
    assert reach.down_s(31.0) == 1.0


def test_a_link_that_was_lost_at_once_when_the_job_began_is_down_since_then() -> None:
    reach = Reach(0.0)
    reach.made(0.2)
    reach.lost(0.3)
    reach.made(0.4)
    assert reach.down_s(1.2) == 1.2
