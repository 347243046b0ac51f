"""What the scheduler does with what leaders and trainers do."""

from __future__ import annotations

from scheduler_desk import Desk

from elps.contracts.epoch import Term
from elps.contracts.ids import JobId
from elps.contracts.messages import (
    DirectJob,
    HostJob,
    StopTrainer,
)
from elps.contracts.state import JobState, Progress
from elps.scheduler.core.events import (
    EchoHeard,
    WriteRecord,
)
from elps.scheduler.core.trainers import APART_S, FAILURE_LIMIT

# --- what the leader reports ------------------------------------------------------------------------------------------


def test_progress_is_stored_every_two_seconds_and_with_each_change() -> None:
    desk = Desk()
    desk.start()
    desk.out.clear()
    for n in range(1, 9):
        desk.time += 0.5
        desk.feed(EchoHeard())
        progress = Progress(iteration=n)
        desk.shard(jobs=[desk.hosts(phase="running", ready=["j-w1"], progress=progress)])
    assert len([c for c in desk.out if isinstance(c, WriteRecord)]) == 2
    assert desk.record().progress.iteration == 8
    desk.shard(jobs=[desk.hosts(phase="finished", progress=Progress(iteration=9))])
    assert desk.record().progress.iteration == 9
    assert desk.state() is JobState.FINISHED


def test_a_leader_that_waits_makes_the_job_wait_with_its_reason() -> None:
    desk = Desk()
    desk.start()
    desk.shard(jobs=[desk.hosts(phase="waiting", ready=["j-w1"], reason="for shard s2")])
    assert (desk.state(), desk.record().reason) == (JobState.WAITING, "for shard s2")
    desk.shard(jobs=[desk.hosts(phase="running", ready=["j-w1"])])
    assert desk.state() is JobState.RUNNING


def test_the_reason_of_a_running_job_is_what_its_leader_says_now() -> None:
    desk = Desk()
    desk.start()
    for said, shown in [
        ("waiting for j-w2 to be ready", "waiting for j-w2 to be ready"),
        ("", "training"),
        ("iteration 9 is computed: waiting for s2", "iteration 9 is computed: waiting for s2"),
        ("", "training"),
    ]:
        desk.shard(jobs=[desk.hosts(phase="running", ready=["j-w1"], reason=said)])
        assert desk.record().reason == shown


def test_what_a_leader_says_last_is_stored_within_two_seconds_and_not_more_often() -> None:
    desk = Desk()
    desk.start()
    desk.out.clear()
    for n in range(7):
        desk.time += 0.5
        desk.feed(EchoHeard())
        desk.shard(jobs=[desk.hosts(phase="running", ready=["j-w1"], reason=f"for {n} s")])
    desk.wait(2)
    written = [c.record.reason for c in desk.out if isinstance(c, WriteRecord)]
    assert written == ["for 3 s", "for 6 s"]


def test_a_job_that_starts_says_what_it_waits_for() -> None:
    desk = Desk()
    desk.shard()
    desk.agent()
    desk.submit()
    desk.shard(jobs=[desk.hosts(phase="loading", reason="waiting for a trainer to be ready")])
    assert desk.state() is JobState.STARTING
    assert desk.record().reason == "waiting for a trainer to be ready"


def test_a_job_that_goes_to_its_boundary_says_why_and_who_is_waited_for() -> None:
    desk = Desk()
    desk.start()
    desk.ask("pause")
    said = "[0, 8) lent to j-w1 for 3.0 s"
    desk.shard(jobs=[desk.hosts(phase="pausing", ready=["j-w1"], reason=said)])
    assert desk.state() is JobState.RUNNING
    assert desk.record().reason == (
        f"asked to pause: on the way to the next iteration boundary; {said}"
    )


def test_a_failed_job_keeps_the_leaders_reason_and_releases_everything() -> None:
    desk = Desk()
    desk.start()
    desk.shard(jobs=[desk.hosts(phase="failed", reason="Traceback: boom")])
    assert (desk.state(), desk.record().reason) == (JobState.FAILED, "Traceback: boom")
    assert desk.record().allocation is None


def test_counters_do_not_go_back_when_a_new_leader_has_not_loaded_yet() -> None:
    desk = Desk()
    desk.start(iteration=40)
    desk.shard(incarnation="2", jobs=[])
    desk.agent(trainers=[])
    assert desk.state() is JobState.STARTING
    assert desk.take_sent(HostJob)[-1][1].progress.iteration == 40
    for phase in ("loading", "waiting"):
        desk.shard(jobs=[desk.hosts(phase=phase, progress=Progress())])
        assert desk.record().progress.iteration == 40


def test_a_dismissed_trainer_is_stopped_and_replaced_under_a_new_name() -> None:
    desk = Desk()
    desk.start()
    desk.shard(jobs=[desk.hosts(phase="running", dismissed={"j-w1": "hung for 30 s"})])
    ((_, stop),) = desk.take_sent(StopTrainer)
    assert stop.worker == "j-w1"
    assert desk.state() is JobState.WAITING
    assert "hung for 30 s" in desk.record().reason
    desk.agent(trainers=[])
    assert list(desk.workers()) == ["j-w2"]
    orders = dict(desk.sent)
    assert orders["a1"].worker == "j-w2"
    assert orders["s1"].workers == ["j-w2"]
    assert "hung" in orders["s1"].exits["j-w1"]


# --- trainers ---------------------------------------------------------------------------------------------------------


def test_an_exited_trainer_is_replaced_and_its_leader_told() -> None:
    desk = Desk()
    desk.start()
    desk.agent(trainers=[desk.trainer("j-w1", state="exited", how="signal 9")])
    assert desk.state() is JobState.WAITING
    assert "signal 9" in desk.record().reason
    desk.agent(trainers=[])
    assert list(desk.workers()) == ["j-w2"]
    assert desk.state() is JobState.WAITING, "until its leader says that it trains"


def test_five_exits_in_a_row_before_anything_was_ready_fail_the_job() -> None:
    desk = Desk()
    desk.shard()
    desk.agent()
    desk.submit()
    for n in range(1, 6):
        exited = desk.trainer(f"j-w{n}", state="exited", how="ImportError: no module named x")
        desk.agent(trainers=[exited])
        if n < 5:
            desk.agent(trainers=[])
    assert desk.state() is JobState.FAILED
    assert "5 trainers in a row" in desk.record().reason
    assert "ImportError" in desk.record().reason


def test_trainers_that_the_network_lets_down_fail_their_job_only_when_that_lasts() -> None:
    desk = Desk()
    desk.shard()
    desk.agent()
    desk.submit()

    def cut_off() -> None:
        [worker] = desk.workers()
        exited = desk.trainer(worker, state="exited", how="exit code 3", cut_off=True)
        desk.agent(trainers=[exited])
        if desk.state() is not JobState.FAILED:
            desk.agent(trainers=[])

    for _ in range(20):
        cut_off()
        desk.shard()
    assert desk.state() is not JobState.FAILED
    for _ in range(FAILURE_LIMIT - 1):  # one was counted
        assert desk.state() is not JobState.FAILED
        desk.wait(APART_S)
        cut_off()
    assert desk.state() is JobState.FAILED


def test_a_bad_agent_does_not_fail_a_job_that_trains_elsewhere() -> None:
    desk = Desk()
    desk.shard()
    desk.agent("a1")
    desk.agent("bad")
    desk.submit(workers={"min": 1, "max": 2})
    good, worker = list(desk.workers())
    desk.agent("a1", trainers=[desk.trainer(good)])
    desk.shard(jobs=[desk.hosts(phase="running", ready=[good])])
    for _ in range(5):
        desk.agent("bad", trainers=[desk.trainer(worker, state="exited", how="exit code 1")])
        desk.agent("bad", trainers=[])
        worker = list(desk.workers())[-1]
    assert desk.state() is JobState.RUNNING
    assert list(desk.workers().values()) == ["a1"]


def alone_with_a_bad_agent() -> Desk:
    """A job whose trainers do not start on one of two agents, and that has lost the other one."""
    desk = Desk()
    desk.shard()
    desk.agent("a1")
    desk.agent("bad")
    desk.submit(workers={"min": 1, "max": 2})
    good, worker = list(desk.workers())
    desk.agent("a1", trainers=[desk.trainer(good)])
    desk.shard(jobs=[desk.hosts(phase="running", ready=[good])])
    for _ in range(FAILURE_LIMIT):
        desk.agent("bad", trainers=[desk.trainer(worker, state="exited", how="exit code 1")])
        desk.agent("bad", trainers=[])
        worker = list(desk.workers())[-1]
    lines = desk.ask("explain").lines
    assert any("but not on bad, where 5 in a row did not get ready" in line for line in lines)
    assert "it would get more at once if a worker slot were free on another agent" in lines
    del desk.agents["a1"]
    desk.shards["s1"]["jobs"] = [desk.hosts(phase="waiting", reason="no worker is ready")]
    desk.wait(desk.core.bounds.lost_s + 2)
    assert desk.state() is JobState.WAITING
    assert desk.workers() == {}
    assert "not on bad, where 5 in a row did not get ready" in desk.record().reason
    return desk


def test_a_job_without_any_worker_tries_a_bad_agent_again_before_it_waits_for_ever() -> None:
    desk = alone_with_a_bad_agent()
    desk.wait(desk.core.bounds.again_s)
    (worker,) = desk.workers()
    assert desk.workers()[worker] == "bad"
    desk.agent("bad", trainers=[desk.trainer(worker)])
    desk.shard(jobs=[desk.hosts(phase="running", ready=[worker])])
    assert desk.state() is JobState.RUNNING


def test_an_agent_that_comes_back_soon_saves_its_job_from_the_bad_one() -> None:
    desk = alone_with_a_bad_agent()
    desk.wait(desk.core.bounds.again_s / 2)
    assert desk.workers() == {}
    desk.agent("a1", incarnation="2", trainers=[])
    desk.wait(2)
    assert list(desk.workers().values()) == ["a1"]


def test_a_job_whose_trainers_start_nowhere_fails_in_bounded_time() -> None:
    desk = alone_with_a_bad_agent()
    desk.wait(desk.core.bounds.again_s)
    for _ in range(FAILURE_LIMIT):
        (worker,) = desk.workers()
        desk.agent("bad", trainers=[desk.trainer(worker, state="exited", how="exit code 1")])
        if desk.state() is not JobState.FAILED:
            desk.agent("bad", trainers=[])
    assert desk.state() is JobState.FAILED
    assert "5 trainers in a row ended before they were ready" in desk.record().reason


def test_trainers_that_are_not_ready_in_time_are_replaced_and_then_fail_the_job() -> None:
    desk = Desk()
    desk.shard()
    desk.agent()
    desk.submit(limits={"start_s": 10})
    for n in range(1, 4):
        assert list(desk.workers()) == [f"j-w{n}"]
        desk.agent(trainers=[desk.trainer(f"j-w{n}", state="starting")])
        desk.shard(jobs=[desk.hosts(phase="loading")])
        desk.wait(11)
        desk.agent(trainers=[])
    assert desk.state() is JobState.FAILED
    assert "not ready within 10 s, 3 times in a row" in desk.record().reason


def test_shards_that_never_take_a_job_fail_it_in_bounded_time() -> None:
    desk = Desk()
    desk.shard()
    desk.agent()
    desk.submit(limits={"start_s": 10})
    desk.wait(60)
    assert desk.state() is JobState.FAILED
    assert "shard s1 has not taken the job within 10 s" in desk.record().reason


def test_a_trainer_of_an_old_term_or_an_unknown_job_is_stopped() -> None:
    desk = Desk()
    desk.start()
    old = desk.trainer("j-w0", term=Term(0, 0))
    unknown = desk.trainer("x-w1", job="x", term=Term(3, 3))
    desk.sent.clear()
    desk.agent(slots=3, trainers=[old, unknown, desk.trainer("j-w1")])
    stops = desk.take_sent(StopTrainer)
    assert [(s.worker, s.term) for _, s in stops] == [("j-w0", Term(0, 0)), ("x-w1", Term(3, 3))]


def test_a_trainer_that_its_agent_forgot_is_replaced() -> None:
    desk = Desk()
    desk.start()
    desk.agent(trainers=[])
    desk.agent()
    assert list(desk.workers()) == ["j-w2"]


def test_a_lost_agents_trainers_are_replaced_even_when_nobody_is_queued() -> None:
    desk = Desk()
    desk.start()
    del desk.agents["a1"]
    desk.wait(7)
    assert desk.state() is JobState.WAITING
    assert "agent a1 not heard for 5 s" in desk.record().reason
    desk.agent("a2")
    assert desk.workers() == {"j-w2": "a2"}


def test_a_leaving_agent_gives_its_trainers_away_without_blame() -> None:
    desk = Desk()
    desk.start()
    desk.agent("a2")
    desk.agent("a1", leaving=True, trainers=[desk.trainer("j-w1", state="exited", how="leaving")])
    assert desk.workers() == {"j-w2": "a2"}
    assert desk.core.book.live[JobId("j")].failures == 0


def test_a_records_changes_tell_its_life_from_its_submission_on() -> None:
    desk = Desk()
    desk.start()
    changes = desk.record().changes
    assert [c.state for c in changes] == [JobState.QUEUED, JobState.STARTING, JobState.RUNNING]
    assert changes[0].reason == "submitted"
    assert changes[-1].at == desk.record().changed_at


def test_the_leader_hears_whom_the_network_or_its_machine_has_let_down() -> None:
    desk = Desk()
    desk.start()
    [worker] = desk.workers()
    desk.agent(trainers=[desk.trainer(worker, state="exited", how="exit code 3", cut_off=True)])
    told = desk.take_sent(DirectJob)[-1][1]
    assert (list(told.exits), told.spared) == ([worker], [worker])
    desk = Desk()
    desk.start()
    [worker] = desk.workers()
    desk.agent(trainers=[desk.trainer(worker, state="exited", how="signal 9")])
    told = desk.take_sent(DirectJob)[-1][1]
    assert (list(told.exits), told.spared) == ([worker], [])
    desk = Desk()
    desk.start()
    [worker] = desk.workers()
    del desk.agents["a1"]
    desk.wait(7)
    assert desk.take_sent(DirectJob)[-1][1].spared == [worker]
