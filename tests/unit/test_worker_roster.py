from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from elps.contracts.codec import parse_job
from elps.contracts.epoch import Term
from elps.contracts.errors import IllegalEvent
from elps.contracts.ids import AgentId, JobId, ShardId, WorkerId
from elps.contracts.messages import Address, StartTrainer, StopTrainer
from elps.worker.core.commands import (
    BeatNow,
    Command,
    Fork,
    Kill,
    ReplaceZygote,
    Terminate,
    TrainerKey,
    key_of,
)
from elps.worker.core.roster import MAX_EXITED, REMEMBER_STOPPED_S, STUCK_S, Roster

DOCUMENT = parse_job({"task": "mlp", "iterations": 1})
LEADER = Address(shard=ShardId("shard-1"), host="127.0.0.1", port=1)


def roster(slots: int = 1) -> Roster:
    return Roster(AgentId("agent-1"), slots, stop_grace_s=1.0, leave_grace_s=10.0)


def start(job: str = "a", term: int = 1, n: int = 1, nonce: int = 7) -> StartTrainer:
    return StartTrainer(
        job=JobId(job),
        document=DOCUMENT,
        term=Term(term, nonce),
        worker=WorkerId(f"{job}-w{n}"),
        leader=LEADER,
        secret="s",
    )


def stop(command: StartTrainer) -> StopTrainer:
    return StopTrainer(job=command.job, term=command.term, worker=command.worker)


def shown(it: Roster) -> dict[str, str]:
    return {s.worker: s.state for s in it.statuses()}


def exits(it: Roster) -> dict[str, str]:
    return {s.worker: s.exit for s in it.statuses() if s.state == "exited"}


def forks(commands: list[Command]) -> list[TrainerKey]:
    return [c.key for c in commands if isinstance(c, Fork)]


def running(it: Roster, command: StartTrainer, pid: int = 100) -> TrainerKey:
    it.start(command, 0.0)
    it.forked(key_of(command), pid)
    it.began(key_of(command), pid)
    return key_of(command)


def test_a_trainer_is_forked_begins_exits_and_is_forgotten_when_stopped() -> None:
    it, command = roster(), start()
    key = key_of(command)
    assert it.start(command, 0.0) == [Fork(key, command), BeatNow()]
    assert shown(it) == {"a-w1": "starting"}
    assert it.forked(key, 42) == [BeatNow()]
    assert it.statuses()[0].pid == 42
    assert shown(it) == {"a-w1": "starting"}
    assert it.began(key, 42) == [BeatNow()]
    assert shown(it) == {"a-w1": "running"}
    assert it.exited(key, "exit code 3", 1.0) == [BeatNow()]
    assert exits(it) == {"a-w1": "exit code 3"}
    assert it.stop(stop(command), 2.0) == [BeatNow()]
    assert it.statuses() == []


def test_a_trainer_is_done_when_it_ends_well_by_itself_and_not_when_its_agent_ends_it() -> None:
    it = roster()
    it.exited(running(it, start()), "exit code 0", 1.0, done=True)
    assert it.statuses()[0].done
    it = roster()
    key = running(it, start())
    it.leave(0.0)
    it.exited(key, "exit code 0", 1.0, done=True)
    assert not it.statuses()[0].done


def test_starting_a_known_trainer_again_changes_nothing_in_any_of_its_states() -> None:
    it, command = roster(), start()
    key = key_of(command)
    it.start(command, 0.0)
    events: list[Callable[[], object]] = [
        lambda: it.forked(key, 42),
        lambda: it.began(key, 42),
        lambda: it.exited(key, "exit code 0", 0.0),
    ]
    for event in events:
        before = it.statuses()
        assert it.start(command, 0.0) == []
        assert it.statuses() == before
        event()
    assert it.start(command, 0.0) == []


def test_a_start_that_comes_after_its_stop_does_not_resurrect_the_trainer() -> None:
    it, command = roster(), start()
    it.stop(stop(command), 0.0)
    assert it.start(command, REMEMBER_STOPPED_S - 1) == []
    assert forks(it.start(command, REMEMBER_STOPPED_S + 1)) == [key_of(command)]


def test_a_stopped_trainer_is_not_resurrected_while_it_dies_nor_after() -> None:
    it, command = roster(), start()
    key = running(it, command)
    assert it.stop(stop(command), 1.0) == [Terminate(key), BeatNow()]
    assert it.start(command, 1.1) == []
    it.exited(key, "signal 15 (SIGTERM)", 1.2)
    assert it.statuses() == []
    assert it.start(command, 1.3) == []


def test_ending_goes_from_terminate_over_kill_to_replacing_the_zygote() -> None:
    it, command = roster(), start()
    key = running(it, command)
    it.stop(stop(command), 5.0)
    assert it.next_deadline() == 6.0
    assert it.tick(5.9) == []
    assert it.tick(6.0) == [Kill(key)]
    assert it.next_deadline() == 6.0 + STUCK_S
    assert [type(c) for c in it.tick(6.0 + STUCK_S)] == [ReplaceZygote]
    it.exited(key, "gone", 20.0)
    assert it.next_deadline() is None


def test_stopping_twice_does_not_signal_twice_and_does_not_prolong_the_grace() -> None:
    it, command = roster(), start()
    running(it, command)
    it.stop(stop(command), 5.0)
    assert it.stop(stop(command), 5.5) == [BeatNow()]
    assert it.next_deadline() == 6.0


def test_a_stop_during_the_fork_signals_the_process_that_comes() -> None:
    it, command = roster(), start()
    it.start(command, 0.0)
    assert it.stop(stop(command), 0.0) == [Terminate(key_of(command)), BeatNow()]
    it.forked(key_of(command), 42)
    it.exited(key_of(command), "signal 15 (SIGTERM)", 0.1)
    assert it.statuses() == []


def test_a_newer_term_ends_the_trainers_of_older_terms_and_takes_their_slot_when_they_are_gone() -> (
    None
):
    it, old, new = roster(), start(term=1, n=1), start(term=2, n=2)
    key = running(it, old)
    assert it.start(new, 1.0) == [Terminate(key), BeatNow()]
    assert shown(it) == {"a-w1": "running", "a-w2": "starting"}
    assert forks(it.exited(key, "signal 15 (SIGTERM)", 1.1)) == [key_of(new)]
    assert shown(it) == {"a-w2": "starting"}


def test_a_start_under_an_older_term_is_dropped_even_when_only_its_stop_told_of_the_newer() -> None:
    it = roster(slots=2)
    running(it, start(term=2, n=2))
    assert it.start(start(term=1, n=1), 0.0) == []
    it.stop(stop(start(job="b", term=5)), 0.0)
    assert it.start(start(job="b", term=4, n=9), 0.0) == []


def test_two_nonces_under_one_term_number_are_refused_visibly() -> None:
    it = roster(slots=2)
    running(it, start(term=3, n=1, nonce=7))
    assert it.start(start(term=3, n=2, nonce=8), 0.0) == [BeatNow()]
    assert "higher term" in exits(it)["a-w2"]
    assert forks(it.start(start(term=4, n=3), 0.0)) == [key_of(start(term=4, n=3))]


def test_other_jobs_are_not_touched_by_a_new_term() -> None:
    it = roster(slots=3)
    running(it, start(job="b", term=1), pid=1)
    running(it, start(job="a", term=1, n=1), pid=2)
    commands = it.start(start(job="a", term=2, n=2), 0.0)
    assert [c.key.worker for c in commands if isinstance(c, Terminate)] == ["a-w1"]


def test_a_stop_of_a_newer_term_ends_the_same_worker_of_an_older_term() -> None:
    it = roster()
    key = running(it, start(term=1))
    assert Terminate(key) in it.stop(stop(start(term=2)), 0.0)
    assert it.stop(stop(start(term=0)), 0.0) == [BeatNow()]


def test_more_starts_than_slots_are_refused_and_named_until_stopped() -> None:
    it = roster(slots=1)
    running(it, start(job="a"))
    assert it.start(start(job="b"), 0.0) == [BeatNow()]
    assert "all 1 slots of agent agent-1 are taken by a-w1" in exits(it)["b-w1"]
    it.stop(stop(start(job="b")), 0.0)
    assert shown(it) == {"a-w1": "running"}


def test_a_start_waits_for_the_slot_of_one_that_is_being_ended() -> None:
    it, first, second = roster(), start(job="a"), start(job="b")
    key = running(it, first)
    it.stop(stop(first), 0.0)
    assert it.start(second, 0.1) == [BeatNow()]
    assert shown(it)["b-w1"] == "starting"
    assert forks(it.exited(key, "x", 0.2)) == [key_of(second)]


def test_a_waiting_trainer_that_is_stopped_was_never_there() -> None:
    it, first, second = roster(), start(job="a"), start(job="b")
    key = running(it, first)
    it.stop(stop(first), 0.0)
    it.start(second, 0.1)
    assert it.stop(stop(second), 0.2) == [BeatNow()]
    assert forks(it.exited(key, "x", 0.3)) == []
    assert it.statuses() == []


def test_leaving_ends_everybody_keeps_their_exits_and_starts_nobody() -> None:
    it = roster(slots=2)
    key = running(it, start(job="a"))
    assert it.leave(0.0) == [Terminate(key), BeatNow()]
    assert it.leave(0.0) == []
    assert it.next_deadline() == 10.0
    it.start(start(job="b"), 0.0)
    assert "leaving" in exits(it)["b-w1"]
    it.exited(key, "exit code 0", 1.0)
    assert exits(it)["a-w1"] == "exit code 0"
    assert it.processes() == []


def test_a_stop_while_leaving_shortens_the_grace_and_forgets_the_exit() -> None:
    it, command = roster(), start()
    key = running(it, command)
    it.leave(0.0)
    it.stop(stop(command), 1.0)
    assert it.next_deadline() == 2.0
    it.exited(key, "x", 1.5)
    assert it.statuses() == []


def test_an_event_of_a_trainer_without_process_is_illegal_and_changes_nothing() -> None:
    it, command = roster(), start()
    key = key_of(command)

    def nothing_happens() -> None:
        before = it.statuses()
        with pytest.raises(IllegalEvent):
            it.forked(key, 1)
        with pytest.raises(IllegalEvent):
            it.began(key, 1)
        with pytest.raises(IllegalEvent):
            it.exited(key, "x", 0.0)
        assert it.statuses() == before

    nothing_happens()
    it.start(command, 0.0)
    it.exited(key, "could not be forked", 0.0)
    nothing_happens()


def test_exited_trainers_that_nobody_stops_are_bounded_and_not_started_again() -> None:
    it = roster()
    for n in range(MAX_EXITED + 5):
        it.start(start(n=n), 0.0)
        it.exited(key_of(start(n=n)), "exit code 1", 0.0)
    assert len(it.statuses()) == MAX_EXITED
    assert it.start(start(n=0), 0.0) == []


class RosterUnderLossAndRepeats(RuleBasedStateMachine):
    """Random commands, lost, doubled and reordered, against processes that live and die as they like."""

    def __init__(self) -> None:
        super().__init__()
        self.it = roster(slots=2)
        self.now = 0.0
        self.asked: list[TrainerKey] = []
        self.live: list[TrainerKey] = []
        self.killed: set[TrainerKey] = set()
        self.stopped_at: dict[TrainerKey, float] = {}
        self.pids = count(1)

    def do(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case Fork(key, _):
                    assert key not in self.asked + self.live
                    assert self.now - self.stopped_at.get(key, -1e9) >= REMEMBER_STOPPED_S
                    self.asked.append(key)
                case Kill(key) | Terminate(key):
                    assert key in self.asked + self.live, "a signal for nobody"
                    self.killed.add(key)

    @rule(
        job=st.sampled_from("ab"),
        term=st.integers(1, 3),
        n=st.integers(1, 3),
        nonce=st.sampled_from([7, 7, 7, 8]),
    )
    def start(self, job: str, term: int, n: int, nonce: int) -> None:
        self.do(self.it.start(start(job, term, n, nonce), self.now))

    @rule(job=st.sampled_from("ab"), term=st.integers(1, 3), n=st.integers(1, 3))
    def stop(self, job: str, term: int, n: int) -> None:
        command = start(job, term, n)
        self.do(self.it.stop(stop(command), self.now))
        self.stopped_at[key_of(command)] = self.now

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        key = self.asked.pop(data.draw(st.integers(0, len(self.asked) - 1)))
        if data.draw(st.booleans()):
            pid = next(self.pids)
            self.live.append(key)
            self.do(self.it.forked(key, pid))
            self.do(self.it.began(key, pid))
        else:
            self.do(self.it.exited(key, "could not be forked", self.now))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        key = self.live.pop(data.draw(st.integers(0, len(self.live) - 1)))
        self.do(self.it.exited(key, "exit code 1", self.now))

    @rule(passed=st.sampled_from([0.1, 1.0, 6.0, 130.0]))
    def wait(self, passed: float) -> None:
        self.now += passed
        self.do(self.it.tick(self.now))

    @rule(seldom=st.integers(0, 9))
    def leave(self, seldom: int) -> None:
        if seldom == 0:
            self.do(self.it.leave(self.now))

    @invariant()
    def holds(self) -> None:
        self.it.check_invariants()
        assert sorted(map(str, self.it.processes())) == sorted(map(str, self.asked + self.live))
        running = {(s.job, s.worker) for s in self.it.statuses() if s.state == "running"}
        assert running == {(k.job, k.worker) for k in self.live}


TestRosterUnderLossAndRepeats = RosterUnderLossAndRepeats.TestCase
TestRosterUnderLossAndRepeats.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None
)
