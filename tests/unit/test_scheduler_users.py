"""What the scheduler does with what users send it."""

from __future__ import annotations

import pytest
from scheduler_desk import Desk

from elps.contracts.codec import encode
from elps.contracts.errors import InvalidDocument
from elps.contracts.ids import JobId
from elps.contracts.messages import DirectJob, DropJob, HostJob, StartTrainer, StopTrainer
from elps.contracts.requests import Reply, SuspendCommand
from elps.contracts.state import JobState, Progress
from elps.scheduler.core.events import (
    Answer,
    AskTerm,
    PublishEvent,
    RemoveKeys,
    Request,
    UserAsked,
    WriteRecord,
)
from elps.scheduler.core.users import MAX_DOCUMENT_BYTES, derived_id, read_submission

# --- submitting -------------------------------------------------------------------------------------------------------


def test_a_submitted_job_is_placed_at_once_and_everyone_is_told() -> None:
    desk = Desk()
    desk.shard()
    desk.agent()
    assert desk.submit().ok
    assert desk.state() is JobState.STARTING
    assert desk.events() == ["queued", "starting"]
    kinds = [(member, type(message)) for member, message in desk.sent]
    assert kinds == [("s1", HostJob), ("a1", StartTrainer)]
    start = desk.sent[1][1]
    assert (start.worker, start.leader.port, start.secret) == ("j-w1", 7, "secret")


def test_a_record_is_written_before_the_event_and_the_answer() -> None:
    desk = Desk()
    desk.submit()
    kinds = [type(c) for c in desk.out if not isinstance(c, AskTerm)]
    assert kinds.index(WriteRecord) < kinds.index(PublishEvent) < kinds.index(Answer)


def test_published_records_hold_no_secret() -> None:
    desk = Desk()
    desk.start()
    published = [c.event.record for c in desk.out if isinstance(c, PublishEvent)]
    assert all(record is not None and record.secret == "" for record in published)
    assert desk.record().secret == "secret"


def test_the_same_document_twice_is_one_job_and_another_one_under_its_id_is_refused() -> None:
    desk = Desk()
    desk.submit()
    again = desk.submit()
    assert again.ok
    assert again.reason.startswith("already there, queued: ")
    assert "choose another id" not in again.reason
    desk.ask("kill")
    again = desk.submit()
    assert again.ok, "a repeated message is answered alike"
    assert again.reason.endswith(
        "killed by its user; to train again, choose another id or delete this job first: elps delete j"
    )
    other = desk.submit(iterations=10)
    assert not other.ok
    assert "another document" in other.reason
    assert len(desk.core.book.records) == 1


def test_a_document_without_id_gets_the_same_one_whenever_its_message_comes() -> None:
    body = encode({"task": "my.models:Deep Net", "iterations": 1})
    first, second = read_submission(body, "m-1"), read_submission(body, "m-1")
    assert first == second
    assert first.id is not None
    assert first.id.startswith("deep-net-")
    assert read_submission(body, "m-2").id != first.id
    assert read_submission(body, "").id == read_submission(body, "").id


@pytest.mark.parametrize("task", ["linear", "a.b:C", "ü", "x" * 500, "a:-", "::", "a/b", "../x"])
def test_a_derived_id_is_always_an_identifier(task: str) -> None:
    assert derived_id(task, b"1")


def test_a_bad_document_is_refused_with_every_problem() -> None:
    with pytest.raises(InvalidDocument) as caught:
        read_submission(b'{"id": "a/b", "task": "", "batch": {"global": 0}, "iteration": 3}', "m")
    text = " ".join(caught.value.problems)
    assert all(
        word in text for word in ("id:", "task:", "batch.global", "did you mean iterations?")
    )


def test_a_document_that_is_too_deep_or_too_large_for_a_record_is_refused() -> None:
    deep = b"[" * 900 + b"]" * 900
    for args in (b'{"x": ' + deep + b"}", b'{"x": "' + b"y" * MAX_DOCUMENT_BYTES + b'"}'):
        with pytest.raises(InvalidDocument):
            read_submission(b'{"task": "linear", "iterations": 1, "task_args": ' + args + b"}", "m")


def test_an_id_of_an_unreadable_record_is_not_given_away() -> None:
    desk = Desk()
    desk.core.book.reserved[JobId("j")] = None
    assert not desk.submit().ok


# --- kill, pause, resume ----------------------------------------------------------------------------------------------


def test_kill_drops_the_job_and_stops_its_trainers_at_once() -> None:
    desk = Desk()
    desk.start()
    desk.sent.clear()
    assert desk.ask("kill").ok
    assert desk.state() is JobState.KILLED
    assert [(m, type(x)) for m, x in desk.sent] == [("s1", DropJob), ("a1", StopTrainer)]


def test_the_keys_of_a_killed_job_go_once_its_shards_have_dropped_it() -> None:
    desk = Desk()
    desk.start()
    desk.ask("kill")
    assert not [c for c in desk.out if isinstance(c, RemoveKeys)]
    desk.shard(jobs=[])
    assert [c for c in desk.out if isinstance(c, RemoveKeys)] == [RemoveKeys(JobId("j"), all=True)]


def test_what_a_shard_writes_for_a_job_that_has_ended_meanwhile_goes_once_it_has_dropped_it() -> (
    None
):
    desk = Desk()
    desk.start()
    zombie = desk.hosts(phase="running")
    desk.shard(jobs=[desk.hosts(phase="finished")])
    assert desk.state() is JobState.FINISHED
    desk.shard(jobs=[])
    strays = RemoveKeys(JobId("j"), all=False)
    assert [c for c in desk.out if isinstance(c, RemoveKeys)] == [strays]
    desk.shard("s9", jobs=[zombie])
    assert [c for c in desk.out if isinstance(c, RemoveKeys)] == [strays]
    desk.shard("s9", jobs=[])
    assert [c for c in desk.out if isinstance(c, RemoveKeys)] == [strays, strays]


def test_the_next_job_starts_when_the_slots_of_the_killed_one_are_seen_to_be_free() -> None:
    desk = Desk()
    desk.start()
    desk.submit("next")
    desk.ask("kill")
    assert desk.state("next") is JobState.QUEUED
    desk.shard(jobs=[])
    assert desk.state("next") is JobState.QUEUED, "its trainer is still reported"
    desk.agent(trainers=[])
    assert desk.state("next") is JobState.STARTING


def test_orders_are_repeated_each_heartbeat_until_they_are_seen_to_be_obeyed() -> None:
    desk = Desk()
    desk.start()
    desk.ask("kill")
    desk.sent.clear()
    desk.wait(3)
    assert len(desk.take_sent(DropJob)) == 3
    desk.shard(jobs=[])
    desk.agent(trainers=[])
    desk.sent.clear()
    desk.wait(3)
    assert desk.sent == []


def test_a_repeated_message_does_nothing_new() -> None:
    desk = Desk()
    desk.start()
    request = desk.request()
    desk.ask("pause", request=request)
    desk.ask("resume")
    assert desk.ask("pause", request=request).ok
    assert not desk.record().pausing, "an old pause that comes again must not pause the job again"


@pytest.mark.parametrize("what", ["kill", "pause", "resume"])
def test_commands_on_unknown_jobs_are_refused(what: str) -> None:
    desk = Desk()
    for name in ("nobody", "../x", "a.#", "", "x" * 300):
        reply = desk.ask(what, name)
        assert not reply.ok
        assert "there is no job" in reply.reason
        assert len(reply.reason) < 120


def test_commands_on_ended_jobs_are_refused_but_killing_twice_is_fine() -> None:
    desk = Desk()
    desk.submit()
    desk.ask("kill")
    assert desk.ask("kill").ok
    assert not desk.ask("pause").ok
    assert "been killed" in desk.ask("resume").reason


def test_pause_is_reached_when_the_leader_says_so_and_then_everything_is_released() -> None:
    desk = Desk()
    desk.start()
    desk.sent.clear()
    assert desk.ask("pause").state is JobState.RUNNING
    ((member, order),) = desk.take_sent(DirectJob)
    assert (member, order.goal) == ("s1", "pause")
    progress = Progress(iteration=5, checkpoint=5)
    desk.shard(jobs=[desk.hosts(phase="paused", ready=["j-w1"], progress=progress)])
    assert desk.state() is JobState.PAUSED
    assert desk.record().allocation is None
    assert desk.record().progress.checkpoint == 5
    assert {type(m) for _, m in desk.sent} == {DropJob, StopTrainer}


def test_a_pause_is_taken_back_before_it_is_reached() -> None:
    desk = Desk()
    desk.start()
    desk.ask("pause")
    assert "taken back" in desk.ask("resume").reason
    assert desk.take_sent(DirectJob)[-1][1].goal == "pause"
    desk.shard(jobs=[desk.hosts(phase="pausing", ready=["j-w1"])])
    assert desk.take_sent(DirectJob)[-1][1].goal == "run"
    desk.shard(jobs=[desk.hosts(phase="running", ready=["j-w1"])])
    assert desk.state() is JobState.RUNNING


def test_a_pause_that_was_reached_before_it_was_taken_back_costs_a_new_term() -> None:
    desk = Desk()
    desk.start()
    before = desk.term()
    desk.ask("pause")
    desk.ask("resume")
    desk.shard(jobs=[desk.hosts(phase="paused", ready=["j-w1"])])
    assert desk.state() is JobState.QUEUED, "a leader that rests does not go on"
    desk.shard(jobs=[])
    desk.agent(trainers=[])
    assert desk.state() is JobState.STARTING
    assert desk.term().number > before.number


def test_a_queued_job_is_paused_at_once_and_resumes_in_its_old_place() -> None:
    desk = Desk()
    desk.submit("first")
    desk.submit("second")
    assert desk.ask("pause", "first").state is JobState.PAUSED
    assert desk.ask("resume", "first").state is JobState.QUEUED
    assert list(desk.core.book.live) == ["first", "second"]
    desk.shard()
    desk.agent()
    assert desk.state("first") is JobState.STARTING


def test_a_job_that_loses_its_shard_while_pausing_is_paused() -> None:
    desk = Desk()
    desk.start()
    desk.ask("pause")
    desk.shard(incarnation="2", jobs=[])
    assert desk.state() is JobState.PAUSED


def test_a_pause_is_reached_though_no_worker_is_left_and_none_will_come() -> None:
    desk = Desk()
    desk.start()
    progress = Progress(iteration=7, checkpoint=4)
    desk.shard(jobs=[desk.hosts(phase="running", ready=["j-w1"], progress=progress)])
    del desk.agents["a1"]
    desk.wait(7)
    desk.shard(jobs=[desk.hosts(phase="waiting", reason="no worker is ready", progress=progress)])
    desk.ask("pause")
    desk.wait(14)
    assert desk.state() is JobState.WAITING, "an agent may still come back"
    desk.wait(3)
    assert desk.state() is JobState.PAUSED
    assert "not reached within 15 s (no worker is ready)" in desk.record().reason
    assert "from the checkpoint of iteration 4" in desk.record().reason
    assert desk.record().allocation is None


def test_a_pause_waits_for_a_worker_that_is_getting_ready() -> None:
    desk = Desk()
    desk.start()
    desk.agent(trainers=[desk.trainer("j-w1", state="exited", how="signal 9")])
    desk.agent(trainers=[])
    desk.agent(trainers=[desk.trainer("j-w2", state="starting")])
    desk.shard(jobs=[desk.hosts(phase="waiting", reason="no worker is ready")])
    desk.ask("pause")
    desk.wait(60)
    assert desk.state() is JobState.WAITING
    desk.shard(jobs=[desk.hosts(phase="pausing", ready=["j-w2"])])
    desk.shard(jobs=[desk.hosts(phase="paused")])
    assert desk.state() is JobState.PAUSED
    assert "paused by its user at iteration" in desk.record().reason


def test_a_leader_that_is_writing_its_last_checkpoint_is_not_hurried() -> None:
    desk = Desk()
    desk.start()
    desk.ask("pause")
    del desk.agents["a1"]
    desk.shard(jobs=[desk.hosts(phase="pausing", reason="checkpoint of version 9")])
    desk.wait(60)
    assert desk.record().pausing


def test_a_job_that_ends_before_its_pause_has_ended() -> None:
    desk = Desk()
    desk.start()
    desk.ask("pause")
    desk.shard(jobs=[desk.hosts(phase="finished")])
    assert desk.state() is JobState.FINISHED


# --- suspending -------------------------------------------------------------------------------------------------------


def suspend(desk: Desk) -> Request:
    request = desk.request()
    desk.feed(UserAsked(request, "suspend", SuspendCommand()))
    return request


def replies(desk: Desk, request: Request) -> list[Reply]:
    return [c.reply for c in desk.out if isinstance(c, Answer) and c.request == request]


def test_suspend_answers_when_all_jobs_are_checkpointed_and_starts_nothing_more() -> None:
    desk = Desk()
    desk.start()
    request = suspend(desk)
    assert replies(desk, request) == []
    assert desk.take_sent(DirectJob)[-1][1].goal == "pause"
    desk.shard(jobs=[desk.hosts(phase="paused")])
    assert replies(desk, request)[0].ok
    assert desk.state() is JobState.QUEUED
    desk.shard(jobs=[])
    desk.agent(trainers=[])
    desk.submit("late")
    desk.wait(5)
    assert desk.state() is JobState.QUEUED
    assert desk.state("late") is JobState.QUEUED
    assert "going down" in desk.record("late").reason


def test_a_stack_that_was_not_taken_down_after_all_goes_on() -> None:
    desk = Desk()
    desk.start()
    suspend(desk)
    desk.shard(jobs=[desk.hosts(phase="paused")])
    desk.shard(jobs=[])
    desk.agent(trainers=[])
    desk.wait(50)
    assert desk.state() is JobState.QUEUED
    desk.wait(20)
    assert desk.state() is JobState.STARTING


def test_suspend_lists_the_jobs_that_could_not_be_checkpointed_in_time() -> None:
    desk = Desk()
    desk.start(iteration=7)
    request = suspend(desk)
    desk.wait(31)
    (reply,) = replies(desk, request)
    assert not reply.ok
    assert "j: not checkpointed within 30 s, running, iteration 7" in reply.problems[0]


def test_a_job_without_workers_does_not_keep_the_stack_from_going_down() -> None:
    desk = Desk()
    desk.start()
    del desk.agents["a1"]
    desk.wait(7)
    desk.shard(jobs=[desk.hosts(phase="waiting", reason="no worker is ready")])
    request = suspend(desk)
    desk.wait(20)
    (reply,) = replies(desk, request)
    assert reply.ok
    assert desk.state() is JobState.QUEUED
    assert "it goes on from the beginning" in desk.record().reason


def test_after_a_restart_suspended_jobs_start_again() -> None:
    desk = Desk()
    desk.start()
    suspend(desk)
    desk.shard(jobs=[desk.hosts(phase="paused")])
    after = Desk([desk.record()])
    after.shard()
    after.agent()
    assert after.state() is JobState.STARTING


def test_a_document_with_a_key_given_twice_is_refused_as_neither_can_be_meant() -> None:
    body = b'{"task": "linear", "iterations": 1, "optimizer": {"lr": 0.1, "lr": 0.01}}'
    with pytest.raises(InvalidDocument, match=r"optimizer\.lr: given twice"):
        read_submission(body, "m")
