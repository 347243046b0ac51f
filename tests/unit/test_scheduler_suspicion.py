"""Shards that have ended are found by the refusal of their system, long before their silence shows it."""

from __future__ import annotations

import pytest
from scheduler_desk import Desk
from test_scheduler_scaling import beats, running, told

from elps.contracts.ids import ShardId
from elps.contracts.state import JobState
from elps.scheduler.core.events import EchoHeard, Probe, ShardRefused, Ticked


def probes(desk: Desk) -> list[str]:
    """Shards probed since the last look."""
    found = [c.shard for c in desk.out if isinstance(c, Probe)]
    desk.out.clear()
    return found


def tick(desk: Desk, seconds: float) -> None:
    desk.time += seconds
    desk.feed(EchoHeard())
    desk.feed(Ticked())


@pytest.mark.parametrize("up_s", [0.0, 39_000.0, 5e6], ids=lambda s: f"up for {s:g} s")
def test_a_shard_whose_heartbeat_is_late_is_looked_after_and_one_that_is_in_time_is_not(
    up_s: float,
) -> None:
    desk = running(shards=2, pool=2)
    desk.time += (
        up_s  # differences of clocks are rounded otherwise on a machine that is up for longer
    )
    desk.wait(3)
    desk.out.clear()
    tick(desk, 1.0)
    assert probes(desk) == []
    desk.shard("s1")
    tick(desk, 0.3)
    assert probes(desk) == ["s0"]
    tick(desk, 0.1)
    assert probes(desk) == [], "not again so soon"
    tick(desk, 0.2)
    assert probes(desk) == ["s0"]


def test_a_shard_that_is_refused_is_lost_at_once_with_all_that_it_held() -> None:
    desk = running(shards=2, pool=3)
    beats(desk)
    term = desk.term()
    desk.feed(ShardRefused(ShardId("s1"), "1"))
    assert "s1" not in desk.core.book.pool.shards
    assert (desk.state(), desk.term()) == (JobState.RUNNING, term), "the leader goes on without it"
    assert "s1" not in desk.places()
    assert "shard s1 has ended: connections to it are refused" in told(desk, "resized")[0]


def test_a_refusal_that_is_meant_for_the_process_before_says_nothing() -> None:
    desk = running(shards=2, pool=2)
    beats(desk)
    desk.feed(ShardRefused(ShardId("s1"), "0"))
    desk.feed(ShardRefused(ShardId("s9"), "1"))
    assert desk.state() is JobState.RUNNING


def test_who_the_leader_has_lost_its_link_to_is_looked_after() -> None:
    desk = running(shards=2, pool=2)
    desk.out.clear()
    beats(desk, unreachable=["s1", "s7"])
    assert probes(desk) == ["s1"]


def test_the_leader_of_a_trainer_that_ended_is_looked_after() -> None:
    desk = running(shards=2, pool=2)
    desk.out.clear()
    worker = next(iter(desk.workers()))
    desk.agent(trainers=[desk.trainer(worker, state="exited", how="exit code 3")])
    assert probes(desk) == ["s0"]
