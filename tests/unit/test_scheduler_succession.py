"""Another shard leads a job in place of one that leaves, or that is lost and held nothing."""

from __future__ import annotations

import pytest
from scheduler_desk import Desk, reborn
from test_scheduler_scaling import beats, running, scale, told

from elps.contracts.epoch import Epoch, Term
from elps.contracts.ids import ShardId
from elps.contracts.messages import DirectJob, DropJob, HostJob, StartTrainer, StopTrainer
from elps.contracts.state import Allocation, JobState
from elps.scheduler.core.events import AskTerm, ShardRefused, TermGranted


def allocation(desk: Desk) -> Allocation:
    found = desk.record().allocation
    assert found is not None
    return found


def given_away(shards: int = 2, **more: object) -> Desk:
    """A job whose leader s0 leaves and has given all that it held to s1 (and s2, ...)."""
    desk = running(shards=shards, **more)
    desk.shard("s0", leaving=True)
    beats(desk, holders=[s for s in desk.places() if s != "s0"])
    return desk


def test_a_leader_that_leaves_gives_its_partitions_away_before_another_one_is_named() -> None:
    desk = running(shards=2)
    term = desk.term()
    desk.shard("s0", leaving=True)
    assert (desk.places(), allocation(desk).targets) == (["s0", "s1", "s2"], ["s1", "s2"])
    beats(desk, holders=["s0", "s1"])
    assert (desk.term(), desk.state()) == (term, JobState.RUNNING)
    desk.sent.clear()
    beats(desk, holders=["s1", "s2"])
    assert desk.places() == ["s1", "s2"]
    assert desk.term().number == term.number + 1
    assert allocation(desk).inherits == Epoch(term, 1)
    assert desk.record().reason == "shard s0 is leaving: s1 leads now"


def test_nobody_is_named_while_partitions_are_on_their_way_and_nothing_moves_while_one_is_named() -> (
    None
):
    desk = running(shards=2)
    term = desk.term()
    desk.shard("s0", leaving=True)
    beats(desk)
    beats(desk, holders=["s1", "s2"], moving="moving 1 partitions to s2")
    assert desk.term() == term
    desk.granting = False
    beats(desk, holders=["s1", "s2"])
    before = allocation(desk).plan
    scale(desk, shards=1)
    desk.shard("s9")
    assert (allocation(desk).plan, desk.places()) == (before, ["s0", "s1", "s2"])


def test_the_new_term_is_told_to_those_that_hold_the_job_and_only_the_old_leader_drops_it() -> None:
    desk = running(shards=2)
    term = desk.term()
    desk.shard("s0", leaving=True)
    beats(desk)
    desk.sent.clear()
    beats(desk, holders=["s1", "s2"])
    sent = desk.sent
    hosts = {to: m for to, m in sent if isinstance(m, HostJob)}
    assert sorted(hosts) == ["s1", "s2"]
    assert {m.inherits for m in hosts.values()} == {Epoch(term, 1)}
    assert [a.shard for a in hosts["s1"].shards] == ["s1", "s2"]
    assert [(to, m.term) for to, m in sent if isinstance(m, DropJob)] == [("s0", term)]
    assert [(m.worker, m.term) for _, m in sent if isinstance(m, StartTrainer)] == [
        ("j-w2", desk.term())
    ]
    assert [m.worker for _, m in sent if isinstance(m, StopTrainer)] == ["j-w1"]
    beats(desk)
    assert desk.state() is JobState.RUNNING


def test_a_leader_of_a_job_of_one_shard_waits_for_another_one_to_be_free() -> None:
    desk = running(shards=1, pool=2)
    desk.shard("s0", leaving=True)
    assert desk.places() == ["s0", "s1"]
    assert allocation(desk).targets == ["s1"]
    beats(desk, holders=["s0"])
    beats(desk, holders=["s1"])
    assert desk.places() == ["s1"]


def test_a_leader_that_nobody_can_replace_has_its_job_checkpointed() -> None:
    desk = running(shards=1, pool=1)
    desk.sent.clear()
    desk.shard("s0", leaving=True)
    assert desk.take_sent(DirectJob)[-1][1].goal == "pause"
    beats(desk, phase="paused")
    assert desk.state() is JobState.QUEUED


def test_a_pause_or_a_kill_while_the_term_is_asked_for_comes_first() -> None:
    for what in ("pause", "kill"):
        desk = running(shards=2)
        desk.granting = False
        desk.shard("s0", leaving=True)
        beats(desk)
        beats(desk, holders=["s1", "s2"])
        assert desk.core.book.live[desk.record().id].succession is not None
        desk.ask(what)
        live = desk.core.book.live.get(desk.record().id)
        assert live is None or live.succession is None


def test_a_lost_leader_that_held_nothing_is_replaced_and_one_that_held_something_is_not() -> None:
    desk = running(shards=2)
    term = desk.term()
    beats(desk, holders=["s1"])
    del desk.shards["s0"]
    desk.wait(7)
    assert (desk.places()[0], allocation(desk).inherits) == ("s1", Epoch(term, 1))
    assert desk.state() is JobState.STARTING
    other = running(shards=2)
    beats(other)
    del other.shards["s0"]
    other.wait(7)
    assert allocation(other).inherits is None
    assert "newest checkpoint" in other.record().changes[-2].reason


def test_a_scheduler_that_restarts_in_between_names_one_all_the_same() -> None:
    desk = running(shards=2)
    desk.shard("s0", leaving=True)
    beats(desk)
    desk.granting = False
    beats(desk, holders=["s1", "s2"])
    again = reborn(desk)
    again.shards, again.agents = desk.shards, desk.agents
    again.shards["s0"]["leaving"] = True
    again.seq = desk.seq
    beats(again, holders=["s1", "s2"])
    assert again.places() == ["s1", "s2"]
    assert again.state() is JobState.STARTING


def test_one_that_leaves_while_it_starts_under_its_inherited_term_gives_away_in_turn() -> None:
    desk = given_away(shards=2)
    assert desk.places() == ["s1", "s2"]
    desk.shard("s9")
    desk.shard("s1", leaving=True)
    assert desk.state() is JobState.STARTING
    beats(desk)
    assert allocation(desk).targets == ["s2", "s9"]
    beats(desk, holders=["s2", "s9"])
    assert desk.places() == ["s2", "s9"]
    assert [e for e in told(desk, "resized") if "s1 is leaving" in e]


# --- with replicas ----------------------------------------------------------------------------------------------------


def test_a_leader_that_is_lost_with_what_it_held_is_replaced_where_there_are_replicas() -> None:
    desk = running(shards=2, replicas=1)
    beats(desk)
    term = desk.term()
    desk.feed(ShardRefused(ShardId("s0"), "1"))
    assert (desk.term().number, desk.places()[0]) == (term.number + 1, "s1")
    assert allocation(desk).inherits == Epoch(term, 1)
    assert JobState.QUEUED not in [c.state for c in desk.record().changes[2:]]


@pytest.mark.parametrize("late", [False, True], ids=["before the term is asked for", "meanwhile"])
def test_it_is_replaced_also_if_another_process_has_its_name_already(late: bool) -> None:
    desk = running(shards=2, replicas=1)
    beats(desk)
    term = desk.term()
    desk.granting = not late
    if late:
        desk.feed(ShardRefused(ShardId("s0"), "1"))
    desk.shard("s0", incarnation="2", jobs=[])
    if late:
        (ask,) = [c for c in desk.out if isinstance(c, AskTerm)]
        desk.feed(TermGranted(ask.job, ask.attempt, Term(term.number + 1, 5), "secret"))
    assert (desk.term().number, desk.places()[0]) == (term.number + 1, "s1")
    assert allocation(desk).inherits == Epoch(term, 1)


@pytest.mark.parametrize("back", [False, True], ids=["gone", "another process has its name"])
def test_it_is_replaced_also_by_a_scheduler_that_has_never_heard_it(back: bool) -> None:
    desk = running(shards=2, replicas=1)
    beats(desk)
    term = desk.term()
    again = reborn(desk)
    again.shards, again.agents, again.seq = desk.shards, desk.agents, desk.seq
    if back:
        again.shard("s0", incarnation="2", jobs=[])
    else:
        del again.shards["s0"]
    again.wait(7)
    assert (again.term().number, again.places()[0]) == (term.number + 1, "s1")
    assert allocation(again).inherits == Epoch(term, 0)
    assert JobState.QUEUED not in [c.state for c in again.record().changes[2:]]


def test_without_replicas_a_leader_that_was_never_heard_costs_a_checkpoint() -> None:
    desk = running(shards=2)
    beats(desk)
    again = reborn(desk)
    again.shards, again.agents, again.seq = desk.shards, desk.agents, desk.seq
    del again.shards["s0"]
    again.wait(7)
    assert allocation(again).inherits is None


def test_a_shard_that_its_leader_cannot_reach_is_lost_to_the_job_after_a_while() -> None:
    desk = running(shards=2)
    term = desk.term()
    for _ in range(13):
        beats(desk, unreachable=["s1"])
        desk.wait(1)
    beats(desk)
    for _ in range(13):
        beats(desk, unreachable=["s1"])
        desk.wait(1)
    assert "s1" in desk.places()
    for _ in range(4):
        beats(desk, unreachable=["s1"])
        desk.wait(1)
    assert (desk.places(), desk.term()) == (["s0", "s2"], term)
    assert "s1 is out of reach of the leader for 15 s" in told(desk, "resized")[0]


@pytest.mark.parametrize("replicas", [0, 1])
def test_a_leader_that_cannot_reach_any_other_is_replaced_where_they_have_replicas(
    replicas: int,
) -> None:
    desk = running(shards=3, replicas=replicas)
    term = desk.term()
    for _ in range(17):
        beats(desk, unreachable=["s1", "s2"], holders=["s0", "s1", "s2"], opened=Epoch(term, 0))
        desk.wait(1)
        if desk.places() != ["s0", "s1", "s2"]:
            break
    if replicas:
        assert (desk.places(), desk.term().number) == (["s1", "s2"], term.number + 1)
        assert desk.record().reason == (
            "leader s0 is out of reach of all others for 15 s: s1 leads now"
        )
        assert "s0" in [to for to, m in desk.sent if isinstance(m, DropJob)]
    else:
        assert (desk.places(), desk.term()) == (["s0", "s2"], term)
