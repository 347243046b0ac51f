"""What the scheduler does when members are lost, late or restarted, and in the matter of terms."""

from __future__ import annotations

from scheduler_desk import Desk

from elps.contracts.epoch import Term
from elps.contracts.ids import JobId, ShardId, WorkerId
from elps.contracts.messages import (
    DirectJob,
    DropJob,
    HostedJob,
    HostJob,
    Refusal,
    StartTrainer,
    StopTrainer,
)
from elps.contracts.state import JobState, Progress
from elps.scheduler.core.events import (
    AskTerm,
    EchoHeard,
    PublishEvent,
    TermGranted,
    Ticked,
)
from elps.scheduler.core.pool import Holding
from elps.scheduler.core.trainers import FAILURE_LIMIT

# --- members lost, late and restarted ---------------------------------------------------------------------------------


def test_a_restarted_shard_has_lost_the_job_which_is_placed_anew_under_a_higher_term() -> None:
    desk = Desk()
    desk.start()
    before = desk.term()
    desk.shard(incarnation="2", jobs=[])
    assert desk.state() is JobState.QUEUED
    event = [c.event for c in desk.out if isinstance(c, PublishEvent)][-1]
    assert event.what == "queued"
    assert "shard s1 was restarted" in event.reason
    desk.agent(trainers=[])
    assert desk.state() is JobState.STARTING
    assert desk.term().number > before.number


def test_a_silent_shard_is_lost_and_told_to_drop_the_job_when_it_comes_back() -> None:
    desk = Desk()
    desk.start()
    kept = desk.shards.pop("s1")
    desk.wait(7)
    assert desk.state() is JobState.QUEUED
    desk.sent.clear()
    desk.shards["s1"] = kept
    desk.shard()
    assert [m.job for _, m in desk.take_sent(DropJob)] == ["j"]


def test_a_shard_that_no_longer_shows_the_job_has_lost_it() -> None:
    desk = Desk()
    desk.start()
    desk.shard(jobs=[])
    assert "queued" in desk.events()[-2:]


def test_late_and_repeated_heartbeats_change_nothing() -> None:
    desk = Desk()
    desk.start()
    seq = desk.seq
    desk.out.clear()
    desk.shard(seq=seq, jobs=[])
    desk.shard(seq=seq - 1, jobs=[desk.hosts(phase="failed", reason="old")])
    assert desk.out == []
    assert desk.state() is JobState.RUNNING


def test_a_heartbeat_of_an_earlier_incarnation_that_comes_late_changes_nothing() -> None:
    desk = Desk()
    desk.start()
    desk.shard(incarnation="2", jobs=[])
    desk.agent(trainers=[])
    state, term = desk.state(), desk.term()
    desk.shard(incarnation="1", jobs=[])
    assert (desk.state(), desk.term()) == (state, term)


def test_a_late_word_of_a_dead_process_does_not_silence_the_living_one() -> None:
    """A scheduler that has just started cannot know which of two incarnations is the newer one."""
    desk = Desk()
    desk.shard(incarnation="2")
    desk.shard(incarnation="1")
    del desk.shards["s1"]
    desk.agent()
    for n in range(8):
        desk.shard(incarnation="2")
        desk.wait(1, hear=False)
        desk.agent()
        if n == 2:
            assert desk.core.book.pool.shards[ShardId("s1")].incarnation == "1"
    assert desk.core.book.pool.shards[ShardId("s1")].incarnation == "2"
    desk.submit()
    assert desk.state() is JobState.STARTING
    desk.shard(incarnation="1")
    assert desk.state() is JobState.STARTING, "the other one is dead and stays so"


def test_a_dead_process_does_not_come_back_by_a_repeated_heartbeat() -> None:
    desk = Desk()
    desk.shard(incarnation="1")
    seq = desk.seq
    desk.shard(incarnation="2")
    desk.wait(7, hear=False)
    desk.shard(incarnation="1", seq=seq)
    assert not desk.core.book.pool.shards


def test_nobody_is_lost_while_the_scheduler_cannot_hear() -> None:
    desk = Desk()
    desk.start()
    for _ in range(60):
        desk.time += 1
        desk.feed(Ticked())
    assert desk.state() is JobState.RUNNING
    desk.feed(EchoHeard())
    desk.feed(Ticked())
    assert desk.state() is JobState.RUNNING, "everyone has time to be heard again"
    desk.wait(7, hear=False)
    assert desk.state() is JobState.QUEUED


def test_a_leaving_shard_whose_job_no_other_can_take_has_it_checkpointed_and_placed_later() -> None:
    desk = Desk()
    desk.start()
    desk.sent.clear()
    desk.shard("s1", leaving=True)
    assert desk.take_sent(DirectJob)[-1][1].goal == "pause"
    desk.shard("s1", jobs=[desk.hosts(phase="paused", progress=Progress(iteration=3))])
    assert desk.state() is JobState.QUEUED
    desk.agent(trainers=[])
    desk.shard("s2")
    assert desk.places() == ["s2"]


def test_the_trainers_of_a_restarted_agent_are_replaced_and_the_reason_is_told() -> None:
    desk = Desk()
    desk.start()
    desk.agent(incarnation="2", trainers=[])
    assert "agent a1 was restarted" in desk.record().reason
    desk.agent()
    assert list(desk.workers()) == ["j-w2"]
    assert desk.core.book.live[JobId("j")].failures == 0


def test_a_lost_member_that_returns_is_free_only_after_it_was_told_to_end_what_it_may_have() -> (
    None
):
    desk = Desk()
    desk.shard()
    desk.agent()
    desk.submit()  # the order to start is on its way to the agent
    kept = desk.agents.pop("a1")
    desk.wait(7)
    assert desk.state() is JobState.WAITING
    desk.sent.clear()
    desk.agents["a1"] = kept
    desk.agent()  # sent before it obeyed
    assert [m.worker for _, m in desk.take_sent(StopTrainer)] == ["j-w1"]
    assert desk.workers() == {}
    desk.agent()
    assert list(desk.workers()) == ["j-w2"]


# --- terms ------------------------------------------------------------------------------------------------------------


def test_a_term_that_comes_after_the_job_was_killed_or_placed_anew_is_not_used() -> None:
    desk = Desk()
    desk.granting = False
    desk.shard()
    desk.agent()
    desk.submit()
    (ask,) = [c for c in desk.out if isinstance(c, AskTerm)]
    desk.ask("pause")
    desk.ask("resume")
    desk.feed(TermGranted(ask.job, ask.attempt, Term(1, 1), "s"))
    assert desk.state() is JobState.QUEUED
    again = [c for c in desk.out if isinstance(c, AskTerm)][-1]
    desk.feed(TermGranted(again.job, again.attempt, Term(2, 2), "s"))
    assert desk.term() == Term(2, 2)


def test_a_place_whose_member_is_gone_before_the_term_comes_is_given_up() -> None:
    desk = Desk()
    desk.granting = False
    desk.shard()
    desk.agent()
    desk.submit()
    (ask,) = [c for c in desk.out if isinstance(c, AskTerm)]
    desk.shards.clear()
    desk.wait(7)
    desk.feed(TermGranted(ask.job, ask.attempt, Term(1, 1), "s"))
    assert desk.state() is JobState.QUEUED


def test_a_shard_that_knows_a_newer_term_than_the_record_leads_to_a_still_newer_one() -> None:
    desk = Desk()
    desk.start()
    forgotten = Term(desk.term().number + 4, 1)
    desk.shard(jobs=[desk.hosts(term=forgotten, phase="running")])
    desk.shard(jobs=[])
    desk.agent(trainers=[])
    assert desk.term().number > forgotten.number


def test_a_shard_that_holds_an_older_term_of_its_job_is_told_to_drop_it() -> None:
    desk = Desk()
    desk.granting = False
    desk.shard()
    desk.agent()
    desk.submit()
    (ask,) = [c for c in desk.out if isinstance(c, AskTerm)]
    desk.feed(TermGranted(ask.job, ask.attempt, Term(5, 5), "s"))
    desk.sent.clear()
    desk.shard(jobs=[desk.hosts(term=Term(4, 4))])
    ((member, drop),) = desk.take_sent(DropJob)
    assert (member, drop.term) == ("s1", Term(4, 4))
    assert desk.state() is JobState.STARTING


def test_equal_term_numbers_with_different_nonces_lead_to_a_higher_one() -> None:
    desk = Desk()
    desk.shard()
    desk.agent()
    desk.submit()
    twin = Term(desk.term().number, 1)
    desk.shard(jobs=[desk.hosts(term=twin)])
    assert (
        "forgotten its newest second"
        in [c.event for c in desk.out if isinstance(c, PublishEvent)][-1].reason
    )
    desk.shard(jobs=[])
    desk.agent(trainers=[])
    assert desk.term().number > twin.number


def test_a_term_that_a_shard_refuses_leads_to_one_above_the_highest_that_it_has_seen() -> None:
    """The store lost the counter, and the shard does not host the newer term any more: nothing else shows it."""
    desk = Desk()
    desk.shard()
    desk.agent()
    desk.submit()
    refused, seen = desk.term(), Term(desk.term().number + 4, 1)
    desk.shard(refused={JobId("j"): Refusal(term=refused, highest=seen)})
    assert desk.state() is JobState.QUEUED
    event = [c.event for c in desk.out if isinstance(c, PublishEvent)][-1]
    assert event.what == "queued"
    assert event.reason == (
        f"shard s1 knows term {seen.number}/1: the store has forgotten its newest second"
    )
    desk.agent(trainers=[])
    assert desk.state() is JobState.STARTING
    assert desk.term().number > seen.number
    term = desk.term()
    desk.shard()  # it has not heard of that one yet, and says the same again
    assert (desk.state(), desk.term()) == (JobState.STARTING, term)
    assert desk.take_sent(HostJob)[-1][1].term == term


def test_an_equal_number_with_another_nonce_that_a_shard_refuses_leads_to_a_higher_one() -> None:
    desk = Desk()
    desk.shard()
    desk.agent()
    desk.submit()
    twin = Term(desk.term().number, 1)
    desk.shard(refused={JobId("j"): Refusal(term=desk.term(), highest=twin)})
    desk.shard(refused={})
    desk.agent(trainers=[])
    assert desk.state() is JobState.STARTING
    assert desk.term().number > twin.number


def test_what_a_shard_refuses_of_a_job_that_is_not_there_or_not_under_that_term_changes_nothing() -> (
    None
):
    desk = Desk()
    desk.start()
    term = desk.term()
    old = Term(term.number, 5)
    desk.shard("s2", refused={JobId("j"): Refusal(term=term, highest=Term(term.number, 7))})
    desk.shard(refused={
        JobId("j"): Refusal(term=old, highest=term),
        JobId("ghost"): Refusal(term=old, highest=term),
    })  # fmt: skip
    assert (desk.state(), desk.term()) == (JobState.RUNNING, term)


# --- trainers that have nothing more to do ----------------------------------------------------------------------------


def test_nobody_takes_the_place_of_a_trainer_that_its_leader_has_sent_away_until_the_leader_is_heard() -> (
    None
):
    """The end of a job is told on two ways: its agent says that the trainer is done, its leader that the job is."""
    desk = Desk()
    desk.start()
    desk.take_sent(StartTrainer)
    done = desk.trainer("j-w1", state="exited", how="exit code 0", done=True)
    desk.agent(trainers=[done])
    desk.agent(trainers=[])
    assert desk.workers() == {}
    assert desk.state() is JobState.WAITING
    assert "waiting for its leader's word" in desk.record().reason
    assert desk.take_sent(StartTrainer) == []
    desk.shard(jobs=[desk.hosts(phase="finished", progress=Progress(iteration=9))])
    assert desk.state() is JobState.FINISHED


def test_another_trainer_starts_when_the_leader_of_one_that_was_done_trains_on() -> None:
    desk = Desk()
    desk.start()
    desk.agent(trainers=[desk.trainer("j-w1", state="exited", how="exit code 0", done=True)])
    desk.agent(trainers=[])
    desk.shard(jobs=[desk.hosts(phase="running")])
    assert list(desk.workers()) == ["j-w2"]


def test_trainers_that_are_done_at_once_each_time_fail_their_job() -> None:
    """A task may end its process in its first line; what its leader says then is that it waits for workers."""
    desk = Desk()
    desk.start()
    for n in range(1, 2 + FAILURE_LIMIT):
        assert desk.state() is not JobState.FAILED
        [worker] = desk.workers()
        assert worker == f"j-w{n}"
        desk.agent(trainers=[desk.trainer(worker, state="exited", how="exit code 0", done=True)])
        desk.agent(trainers=[])
        if not desk.state().ended:
            desk.shard(jobs=[desk.hosts(phase="running")])
    assert desk.state() is JobState.FAILED
    assert "in a row ended before they were ready" in desk.record().reason


def test_a_term_that_is_still_closing_on_a_shard_does_not_hide_the_next_one_there() -> None:
    desk = Desk()
    desk.start()
    before, workers = desk.term(), list(desk.workers())
    over = desk.hosts(term=Term(before.number - 1, 7), phase="failed", leads=True)
    desk.shard(jobs=[over, desk.hosts(phase="running", ready=workers)])
    assert (desk.state(), desk.term()) == (JobState.RUNNING, before)


def test_trainers_that_are_done_together_are_one_sign_of_the_end_and_not_many() -> None:
    desk = Desk()
    desk.shard()
    desk.agent(slots=8)
    desk.submit(workers={"min": 8, "max": 8})
    desk.shard(jobs=[desk.hosts(phase="running", ready=["j-w1"])])
    desk.agent(
        slots=8,
        trainers=[
            desk.trainer(w, state="exited", how="exit code 0", done=True) for w in desk.workers()
        ],
    )
    assert desk.state() is JobState.WAITING


def test_a_shard_and_an_agent_of_one_name_are_told_what_each_is_to_end() -> None:
    """They cannot both have the queue of that name; what they say is heard all the same, and must end nobody."""
    desk, term = Desk(), Term(3, 3)
    hosted = HostedJob(job=JobId("gone"), term=term, leads=True)
    desk.shard("same", jobs=[hosted])
    desk.core.book.pool.take_back(
        ShardId("same"), Holding(JobId("gone"), WorkerId("gone-w1")), term
    )
    desk.sent.clear()
    desk.wait(2)
    told = [message for member, message in desk.sent if member == "same"]
    assert {type(message) for message in told} >= {DropJob, StopTrainer}
