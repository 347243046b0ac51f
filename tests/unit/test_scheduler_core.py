"""What the scheduler does in each situation, seen from outside: heartbeats and commands in, records and orders out."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import msgspec
import pytest

from elps.contracts.codec import decode, encode, parse_job
from elps.contracts.epoch import Term
from elps.contracts.errors import InvalidDocument
from elps.contracts.ids import AgentId, JobId, ShardId, WorkerId
from elps.contracts.messages import (
    AgentBeat,
    DirectJob,
    DropJob,
    HostedJob,
    HostJob,
    JobCommand,
    Reply,
    ScaleCommand,
    ShardBeat,
    StartTrainer,
    StopTrainer,
    SuspendCommand,
    TrainerStatus,
)
from elps.contracts.state import JobRecord, JobState, Progress
from elps.scheduler.core.core import Core
from elps.scheduler.core.events import (
    AgentBeaten,
    Answer,
    AskTerm,
    Command,
    EchoHeard,
    Event,
    JobSubmitted,
    Moment,
    PublishEvent,
    RemoveKeys,
    Request,
    ShardBeaten,
    TermGranted,
    Ticked,
    UserAsked,
    WriteRecord,
)
from elps.scheduler.core.users import MAX_DOCUMENT_BYTES, derived_id, read_submission


class Desk:
    """A core, the heartbeats of scripted members, and everything that came out."""

    def __init__(self, records: list[JobRecord] | None = None, settled: bool = True) -> None:
        self.time = 1000.0
        self.core = Core(records or [], self.now)
        self.shards: dict[str, dict[str, Any]] = {}
        self.agents: dict[str, dict[str, Any]] = {}
        self.out: list[Command] = []
        self.sent: list[tuple[str, Any]] = []
        self.granting = True
        self.seq = self.requests = self.terms = 0
        self.feed(EchoHeard())
        if settled:
            self.wait(3)

    @property
    def now(self) -> Moment:
        return Moment(self.time, 1e9 + self.time)

    def feed(self, event: Event) -> list[Command]:
        commands = self.core.handle(event, self.now)
        self.out += commands
        self.core.check_invariants()
        self.sent += [(s.member, s.message) for s in self.core.messages(self.now)]
        for ask in [c for c in commands if isinstance(c, AskTerm)]:
            if self.granting:
                self.terms = max(self.terms + 1, ask.at_least)
                term = Term(self.terms, 900 + self.terms)
                self.feed(TermGranted(ask.job, ask.attempt, term, "secret"))
        return commands

    def wait(self, seconds: float, step: float = 1.0, hear: bool = True) -> None:
        """Let time pass with everyone's heartbeats."""
        for _ in range(round(seconds / step)):
            self.time += step
            self.feed(EchoHeard())
            if hear:
                for shard in list(self.shards):
                    self.shard(shard)
                for agent in list(self.agents):
                    self.agent(agent)
            self.feed(Ticked())

    def shard(self, name: str = "s1", **state: Any) -> None:
        kept = self.shards.setdefault(name, {"incarnation": "1", "slots": 4, "jobs": []})
        kept |= state
        self.seq += 1
        beat = ShardBeat(
            shard=ShardId(name), seq=kept.get("seq", self.seq), host="h", pid=1, data_host="d",
            data_port=7, version="v", leaving=kept.get("leaving", False),
            **{k: kept[k] for k in ("incarnation", "slots", "jobs")},
        )  # fmt: skip
        self.feed(ShardBeaten(beat))

    def agent(self, name: str = "a1", **state: Any) -> None:
        kept = self.agents.setdefault(name, {"incarnation": "1", "slots": 1, "trainers": []})
        kept |= state
        self.seq += 1
        beat = AgentBeat(
            agent=AgentId(name), seq=kept.get("seq", self.seq), host="h", pid=1, version="v",
            leaving=kept.get("leaving", False),
            **{k: kept[k] for k in ("incarnation", "slots", "trainers")},
        )  # fmt: skip
        self.feed(AgentBeaten(beat))

    def submit(self, job: str = "j", **fields: Any) -> Reply:
        document = {"id": job, "task": "linear", "iterations": 9, **fields}
        return self.answered(JobSubmitted(self.request(), parse_job(document)))

    def request(self) -> Request:
        self.requests += 1
        return Request(f"r{self.requests}")

    def ask(self, what: str, job: str = "j", request: Request | None = None) -> Reply:
        return self.answered(UserAsked(request or self.request(), what, JobCommand(job=job)))

    def answered(self, event: JobSubmitted | UserAsked) -> Reply:
        self.feed(event)
        answers = [
            c.reply for c in self.out if isinstance(c, Answer) and c.request == event.request
        ]
        return answers[-1]

    def record(self, job: str = "j") -> JobRecord:
        return self.core.book.records[JobId(job)]

    def state(self, job: str = "j") -> JobState:
        return self.record(job).state

    def term(self, job: str = "j") -> Term:
        allocation = self.record(job).allocation
        assert allocation is not None
        return allocation.term

    def workers(self, job: str = "j") -> dict[WorkerId, AgentId]:
        allocation = self.record(job).allocation
        assert allocation is not None
        return allocation.workers

    def hosts(self, job: str = "j", term: Term | None = None, **fields: Any) -> HostedJob:
        return HostedJob(job=JobId(job), term=term or self.term(job), **{"leads": True, **fields})

    def trainer(
        self,
        worker: str,
        job: str = "j",
        term: Term | None = None,
        state: Any = "running",
        how: str = "",
    ) -> TrainerStatus:
        return TrainerStatus(
            job=JobId(job),
            term=term or self.term(job),
            worker=WorkerId(worker),
            state=state,
            exit=how,
        )

    def take_sent(self, kind: type[Any]) -> list[tuple[str, Any]]:
        """Orders of a kind since the last look; all others are forgotten too."""
        sent, self.sent = self.sent, []
        return [(member, message) for member, message in sent if isinstance(message, kind)]

    def events(self) -> list[str]:
        return [c.event.what for c in self.out if isinstance(c, PublishEvent)]

    def start(self, job: str = "j", iteration: int = 0) -> None:
        """One shard, one agent, and the job training on them."""
        self.shard()
        self.agent()
        if JobId(job) not in self.core.book.records:
            self.submit(job)
        (worker,) = self.workers(job)
        self.agent(trainers=[self.trainer(worker, job)])
        progress = Progress(iteration=iteration)
        self.shard(jobs=[self.hosts(job, phase="running", ready=[worker], progress=progress)])
        assert self.state(job) is JobState.RUNNING


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
    assert "already there" in again.reason
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


# --- kill, pause, resume, scale ---------------------------------------------------------------------------------------


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
    assert [c.job for c in desk.out if isinstance(c, RemoveKeys)] == ["j"]


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


def test_a_pause_not_yet_reached_is_taken_back_and_a_leader_that_paused_goes_on() -> None:
    desk = Desk()
    desk.start()
    desk.ask("pause")
    assert "taken back" in desk.ask("resume").reason
    desk.sent.clear()
    desk.shard(jobs=[desk.hosts(phase="paused", ready=["j-w1"])])
    assert desk.state() is JobState.RUNNING
    ((_, order),) = desk.take_sent(DirectJob)
    assert order.goal == "run"


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


def test_a_job_that_ends_before_its_pause_has_ended() -> None:
    desk = Desk()
    desk.start()
    desk.ask("pause")
    desk.shard(jobs=[desk.hosts(phase="finished")])
    assert desk.state() is JobState.FINISHED


def test_scale_is_refused_and_says_what_there_is() -> None:
    desk = Desk()
    desk.start()
    body = ScaleCommand(job="j", workers=4)
    reply = desk.answered(UserAsked(desk.request(), "scale", body))
    assert not reply.ok
    assert "fixed in this version" in reply.reason
    assert "1 workers and 1 shards" in reply.reason


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


def test_suspend_lists_the_jobs_that_could_not_be_checkpointed_in_time() -> None:
    desk = Desk()
    desk.start(iteration=7)
    request = suspend(desk)
    desk.wait(31)
    (reply,) = replies(desk, request)
    assert not reply.ok
    assert "j: not checkpointed within 30 s, running, iteration 7" in reply.problems[0]


def test_after_a_restart_suspended_jobs_start_again() -> None:
    desk = Desk()
    desk.start()
    suspend(desk)
    desk.shard(jobs=[desk.hosts(phase="paused")])
    after = Desk([desk.record()])
    after.shard()
    after.agent()
    assert after.state() is JobState.STARTING


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


def test_a_leaving_shard_has_its_job_checkpointed_and_placed_elsewhere() -> None:
    desk = Desk()
    desk.start()
    desk.shard("s2")
    desk.sent.clear()
    desk.shard("s1", leaving=True)
    assert desk.take_sent(DirectJob)[-1][1].goal == "pause"
    desk.shard("s1", jobs=[desk.hosts(phase="paused", progress=Progress(iteration=3))])
    assert desk.state() is JobState.QUEUED
    desk.agent(trainers=[])
    assert desk.record().allocation is not None
    assert desk.record().allocation.shards == ["s2"]


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


# --- the scheduler restarts -------------------------------------------------------------------------------------------


def reborn(desk: Desk) -> Desk:
    records = [decode(encode(r), JobRecord) for r in desk.core.book.records.values()]
    after = Desk(records, settled=False)
    after.terms = desk.terms
    return after


def test_after_a_restart_a_job_whose_members_still_show_it_goes_on_untouched() -> None:
    desk = Desk()
    desk.start()
    after = reborn(desk)
    after.shard(jobs=[after.hosts(phase="running", ready=["j-w1"])])
    after.agent(trainers=[after.trainer("j-w1")])
    after.wait(10)
    assert after.state() is JobState.RUNNING
    assert after.term() == desk.term()
    assert after.events() == []
    assert after.sent == []


def test_after_a_restart_a_job_whose_shards_are_gone_is_placed_anew() -> None:
    desk = Desk()
    desk.start()
    after = reborn(desk)
    after.shard("s9")
    after.agent("a9")
    after.wait(4)
    assert after.state() is JobState.RUNNING, "its shards may still be heard"
    after.wait(3)
    assert after.state() is JobState.STARTING
    assert after.record().allocation is not None
    assert after.record().allocation.shards == ["s9"]


def test_after_a_restart_a_shard_that_came_back_empty_has_lost_the_job() -> None:
    desk = Desk()
    desk.start()
    after = reborn(desk)
    after.shard(incarnation="2", jobs=[])
    after.agent(trainers=[])
    assert after.take_sent(HostJob) == [], "it must not join a job that has begun"
    after.wait(7)
    assert after.term() != desk.term()


def test_after_a_restart_a_pause_that_was_asked_for_is_still_wanted() -> None:
    desk = Desk()
    desk.start()
    desk.ask("pause")
    after = reborn(desk)
    after.shard(jobs=[after.hosts(phase="running", ready=["j-w1"])])
    assert after.take_sent(DirectJob)[-1][1].goal == "pause"


def test_after_a_restart_keys_of_killed_jobs_are_removed_and_those_of_others_kept() -> None:
    desk = Desk()
    desk.submit("dead")
    desk.ask("kill", "dead")
    desk.submit("alive")
    after = reborn(desk)
    after.core.keys_found([JobId("dead"), JobId("alive"), JobId("unknown")])
    after.feed(Ticked())
    assert [c.job for c in after.out if isinstance(c, RemoveKeys)] == ["dead"]


def test_after_a_restart_trainers_of_an_agent_that_is_gone_are_replaced() -> None:
    desk = Desk()
    desk.start()
    after = reborn(desk)
    after.shard(jobs=[after.hosts(phase="running", ready=["j-w1"])])
    after.wait(7)
    assert after.state() is JobState.WAITING
    assert "agent a1 was not heard since the scheduler started" in after.record().reason


# --- determinism ------------------------------------------------------------------------------------------------------

SCRIPT = """
import sys, hashlib
sys.path.insert(0, {folder!r})
import test_scheduler_core as t
desk = t.Desk()
for n in range(5):
    desk.shard(f"s{{n}}")
    desk.agent(f"a{{n}}", slots=2)
for n in range(6):
    desk.submit(f"j{{n}}", workers={{"min": 1, "max": 3}}, shards={{"min": 1, "max": 2}})
desk.shard("s1", incarnation="2")
desk.wait(7, hear=False)
desk.wait(3)
print(hashlib.sha256(repr((desk.out, desk.sent)).encode()).hexdigest())
"""


@pytest.mark.timeout(60)
def test_equal_events_give_equal_commands_whatever_the_order_of_sets() -> None:
    from pathlib import Path

    script = SCRIPT.format(folder=str(Path(__file__).parent))
    digests = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(digests) == 1


def test_records_survive_being_stored() -> None:
    desk = Desk()
    desk.start(iteration=3)
    record = desk.record()
    assert decode(encode(record), JobRecord) == record
    assert msgspec.structs.asdict(record)["allocation"].size == 1
