"""Shards that have ended are found by the refusal of their system, long before their silence shows it."""

from __future__ import annotations

import pytest
from scheduler_desk import Desk
from test_scheduler_scaling import beats, running, scale, told

from elps.contracts.ids import AgentId, ShardId
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


def deserted(desk: Desk, *, late_s: float, gone: int) -> bool:
    """Whether an agent is given up that is late when so many of its trainers have left their leader."""
    workers = list(desk.workers())
    desk.agent("a2", slots=4)
    beats(desk, ready=workers[gone:], gone=workers[:gone])
    for _ in range(round(late_s / 0.25)):
        tick(desk, 0.25)
        desk.agent("a2")
        for shard in desk.shards:
            desk.shard(shard)
    return "a1" not in desk.core.book.pool.agents


def test_an_agent_that_is_late_and_whose_trainers_are_all_gone_is_lost_and_replaced() -> None:
    desk = running(workers=2)
    assert deserted(desk, late_s=1.5, gone=2)
    assert list(desk.workers().values()) == [AgentId("a2")] * 2


def test_an_agent_that_is_heard_keeps_what_it_has_although_its_trainers_are_gone() -> None:
    desk = running(workers=2)
    assert not deserted(desk, late_s=1.0, gone=2)


def test_an_agent_that_is_late_keeps_what_it_has_while_one_of_its_trainers_is_there() -> None:
    desk = running(workers=2)
    assert not deserted(desk, late_s=4.0, gone=1)
    assert deserted(running(workers=2), late_s=6.0, gone=0), "its silence is enough"


def test_a_trainer_that_is_not_ready_yet_says_nothing_of_its_agent() -> None:
    desk = running(workers=1)
    old = list(desk.workers())
    scale(desk, workers=2)
    assert len(desk.workers()) == 2
    beats(desk, ready=[], gone=old)
    for _ in range(6):
        tick(desk, 0.25)
    assert "a1" not in desk.core.book.pool.agents
