"""How partitions come to lie on more, fewer or other shards while a job trains, and who may be lost on the way."""

from __future__ import annotations

from scheduler_desk import Desk
from test_scheduler_scaling import beats, running, scale, told

from elps.contracts.ids import ShardId
from elps.contracts.messages import DirectJob, DropJob, HostJob
from elps.contracts.state import Allocation, JobState
from elps.scheduler.core.events import ShardRefused


def allocation(desk: Desk) -> Allocation:
    found = desk.record().allocation
    assert found is not None
    return found


def named(direct: DirectJob) -> list[str]:
    return [address.shard for address in direct.shards]


def test_a_new_shard_takes_part_under_the_same_term_and_the_leader_is_told_until_it_shows_that_it_heard() -> (
    None
):
    desk = running()
    term = desk.term()
    scale(desk, shards=2)
    hosts = [(to, m) for to, m in desk.sent if isinstance(m, HostJob)]
    assert [(to, m.term, [a.shard for a in m.shards]) for to, m in hosts] == [
        ("s1", term, ["s0", "s1"])
    ]
    beats(desk, holders=["s0"], obeys=0)
    (_, direct), *_ = desk.take_sent(DirectJob)
    assert (named(direct), direct.plan, direct.goal) == (["s0", "s1"], 1, "run")
    desk.wait(2)
    assert len(desk.take_sent(DirectJob)) >= 2
    beats(desk, holders=["s0"], moving="moving 3 partitions to s1")
    desk.wait(2)
    assert desk.take_sent(DirectJob) == []
    assert desk.state() is JobState.RUNNING


def test_a_shard_that_is_not_wanted_keeps_its_slot_until_it_holds_nothing() -> None:
    desk = running(shards=2)
    scale(desk, shards=1)
    assert allocation(desk).targets == ["s0"]
    beats(desk)
    assert desk.places() == ["s0", "s1"]
    beats(desk, holders=["s0"], obeys=0)
    assert desk.places() == ["s0", "s1"], "the leader may still give it something"
    desk.sent.clear()
    beats(desk, holders=["s0"])
    assert desk.places() == ["s0"]
    assert [to for to, _ in desk.take_sent(DropJob)] == ["s1"]
    assert told(desk, "resized") == [
        "gives up s1: of 2 shards 1 is wanted",
        "shard s1 holds nothing any more and is let go",
    ]


def test_a_change_back_before_the_first_is_done_takes_the_same_shard_again() -> None:
    desk = running(shards=2)
    scale(desk, shards=1)
    beats(desk, obeys=0)
    scale(desk, shards=2)
    assert (allocation(desk).targets, allocation(desk).plan) == (["s0", "s1"], 2)
    beats(desk, obeys=1, holders=["s0"])
    assert desk.places() == ["s0", "s1"]
    beats(desk)
    assert desk.take_sent(DropJob) == []


def test_the_leader_stays_and_of_the_others_those_go_that_hold_nothing_yet() -> None:
    desk = running(shards=2)
    scale(desk, shards=3)
    beats(desk, holders=["s0", "s1"])
    scale(desk, shards=2)
    assert allocation(desk).targets == ["s0", "s1"]
    scale(desk, shards=1)
    assert allocation(desk).targets == ["s0"]


def test_a_leaving_shard_is_replaced_and_let_go_once_its_partitions_have_moved() -> None:
    desk = running(shards=2)
    term = desk.term()
    desk.shard("s1", leaving=True)
    assert (desk.places(), allocation(desk).targets) == (["s0", "s1", "s2"], ["s0", "s2"])
    assert told(desk, "resized")[0] == "shard s1 is leaving"
    beats(desk)
    assert desk.places() == ["s0", "s1", "s2"]
    beats(desk, holders=["s0", "s2"])
    assert desk.places() == ["s0", "s2"]
    assert (desk.state(), desk.term()) == (JobState.RUNNING, term)
    del desk.shards["s1"]
    desk.wait(7)
    assert (desk.state(), desk.term()) == (JobState.RUNNING, term)


def test_a_leaving_shard_that_nobody_can_replace_leaves_the_job_with_fewer_until_one_comes() -> (
    None
):
    desk = running(shards=2, pool=2)
    desk.shard("s1", leaving=True)
    beats(desk, holders=["s0"])
    assert desk.places() == ["s0"]
    desk.shard("s9")
    assert desk.places() == ["s0", "s9"]


def test_a_leaving_shard_of_a_job_that_cannot_do_without_has_it_placed_anew() -> None:
    desk = Desk()
    for shard in ("s0", "s1"):
        desk.shard(shard)
    desk.agent()
    desk.submit(shards={"min": 2, "max": 2})
    beats(desk)
    desk.sent.clear()
    desk.shard("s1", leaving=True)
    assert desk.take_sent(DirectJob)[-1][1].goal == "pause"
    beats(desk, phase="paused")
    assert desk.state() is JobState.QUEUED
    assert "shard s1 is leaving and no other is free" in desk.record().changes[-1].reason


def test_a_shard_that_dies_before_it_holds_anything_costs_the_job_nothing() -> None:
    desk = running(pool=2)
    term = desk.term()
    scale(desk, shards=2)
    beats(desk, holders=["s0"])
    desk.shard("s1", incarnation="2", jobs=[])
    assert (desk.state(), desk.term(), desk.places()) == (JobState.RUNNING, term, ["s0"])
    assert "held nothing yet" in told(desk, "resized")[-1]
    desk.wait(1)
    assert desk.places() == ["s0"], "the leader may still take it for the one that died"
    beats(desk, holders=["s0"])
    beats(desk, holders=["s0"])
    assert desk.places() == ["s0", "s1"]
    assert desk.term() == term


def test_a_shard_that_dies_with_what_it_holds_is_told_to_the_leader_and_replaced_once_that_has_heard() -> (
    None
):
    desk = running(pool=2)
    term = desk.term()
    scale(desk, shards=2)
    beats(desk)
    desk.out.clear()
    desk.shard("s1", incarnation="2", jobs=[])
    assert (desk.state(), desk.term(), desk.places()) == (JobState.RUNNING, term, ["s0"])
    assert "with what it held" in told(desk, "resized")[-1]
    *_, said = [m for _, m in desk.sent if isinstance(m, DirectJob)]
    assert (said.lost, [a.shard for a in said.shards]) == (["s1"], ["s0"])
    beats(desk, obeys=0, holders=["s0", "s1"])
    assert desk.places() == ["s0"], "it may still count on the one that died"
    beats(desk, holders=["s0"])
    beats(desk, holders=["s0"])
    assert desk.places() == ["s0", "s1"]
    assert desk.term() == term


def test_a_lost_shard_that_nobody_can_replace_leaves_the_job_smaller_than_it_asked() -> None:
    desk = running(shards=2, pool=2)
    assert desk.record().document.shards.min == 1
    scale(desk, shards=2)
    beats(desk)
    desk.feed(ShardRefused(ShardId("s1"), "1"))
    beats(desk, holders=["s0"])
    assert (desk.state(), desk.places()) == (JobState.RUNNING, ["s0"])


def test_a_leader_that_needs_a_shard_that_is_gone_has_its_job_placed_anew_in_bounded_time() -> None:
    desk = running(pool=2)
    term = desk.term()
    scale(desk, shards=2)
    beats(desk, holders=["s0"])
    del desk.shards["s1"]
    desk.wait(6)
    assert (desk.places(), desk.term()) == (["s0"], term)
    beats(desk, holders=["s0", "s1"], phase="waiting", reason="cannot reach s1")
    desk.wait(7)
    assert any("which is gone, held a part" in c.reason for c in desk.record().changes)


def test_a_shard_that_does_not_take_the_job_in_time_is_passed_over_for_another_one() -> None:
    desk = running(pool=2)
    term = desk.term()
    scale(desk, shards=2)
    for _ in range(125):
        desk.shard("s1", jobs=[])
        desk.agent()
        desk.shard("s0", jobs=[desk.hosts(
            phase="running", ready=list(desk.workers()), holders=["s0"], obeys=allocation(desk).plan,
        )])  # fmt: skip
        desk.wait(1)
    assert desk.places() == ["s0"]
    assert any("has not taken the job within 120 s" in reason for reason in told(desk, "resized"))
    desk.shard("s2", jobs=[])
    assert desk.places() == ["s0", "s2"]
    assert desk.term() == term


def test_only_the_process_that_was_chosen_is_asked_to_take_part() -> None:
    desk = running(pool=2)
    scale(desk, shards=2)
    assert allocation(desk).incarnations == {"s0": "1", "s1": "1"}
