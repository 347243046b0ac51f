"""The end of a job, or of a trainer's part in it, as the trainers hear it: soon, and with the reason."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elps.contracts.ids import WorkerId
from elps.contracts.job import Evaluate, Stop
from elps.contracts.messages import DropJob
from elps.psshard import trainers as trainer_links
from elps.psshard.member import Member
from elps.psshard.slab import Slab
from elps.wire.connection import Connection
from elps.wire.frames import Header, Kind
from elps.wire.handshake import Hello

sys.path.insert(0, str(Path(__file__).parents[1]))

from data_plane import eventually, running, sockets
from hosted import JOB, FakeTrainer, Stack, document, identity
from leading import WITHIN_S, comes_to, final, quick, stacks

__all__ = ["quick", "stacks"]

SOON_S = 10.0
AT = 12
"""Iteration that one trainer keeps while another waits for the next."""


class Waiting:
    """Two trainers: the first keeps its part of an iteration in hand, the second waits in a pull of the next one."""

    def __init__(self, stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stack = stack
        self._pulls = threading.Semaphore(0)
        self.go_on = threading.Event()
        self.told: Callable[[FakeTrainer, Header], bool] = lambda trainer, header: True
        wait_for = Member.wait_for
        second = WorkerId("job-w2")

        def looks(self_: Member, *args: Any, **named: Any) -> Any:
            if args[2:4] == (AT + 1, second):
                self._pulls.release()
            return wait_for(self_, *args, **named)

        monkeypatch.setattr(Member, "wait_for", looks)

    def begin(self, test_samples: int = 0, **fields: Any) -> None:
        """Both train up to the iteration at which the second one waits, in a pull at every shard."""
        says = identity(test_samples=test_samples)
        self.message = self.stack.host(document(**fields), workers=2)
        self.first = self.stack.trainer(self.message, 1, before=self._keep, says=says)
        self.second = self.stack.trainer(self.message, 2, says=says)
        for _ in self.stack.hosts:
            assert self._pulls.acquire(timeout=WITHIN_S)

    def _keep(self, trainer: FakeTrainer, header: Header) -> bool:
        if header.kind is Kind.TRAIN and header.iteration == AT:
            assert self.go_on.wait(WITHIN_S)
        return self.told(trainer, header)


@pytest.fixture(params=[1, 2])
def waiting(
    request: pytest.FixtureRequest,
    stack_of: Callable[..., Stack],
    monkeypatch: pytest.MonkeyPatch,
) -> Waiting:
    return Waiting(stack_of(request.param), monkeypatch)


def test_who_waits_for_a_version_when_the_job_fails_ends_with_the_reason(waiting: Waiting) -> None:
    def fail(trainer: FakeTrainer, header: Header) -> bool:
        if header.kind is Kind.TRAIN and header.iteration == AT:
            assert trainer.leader is not None
            trainer.leader.send(Header(Kind.FAILED), {"what": "iteration 12: ZeroDivisionError"})
            return False
        return True

    waiting.told = fail
    waiting.begin()
    waiting.go_on.set()
    assert comes_to(waiting.stack, "failed", SOON_S) == "iteration 12: ZeroDivisionError"
    waiting.second.join(SOON_S)
    assert waiting.second.ended == "iteration 12: ZeroDivisionError"


def test_who_waits_for_a_version_when_the_job_is_killed_at_the_leader_ends_with_the_reason(
    waiting: Waiting,
) -> None:
    """The other shard has not heard of it, and may not for long."""
    waiting.begin()
    waiting.stack.leader.hosting.drop(DropJob(job=JOB, term=waiting.message.term))
    waiting.second.join(SOON_S)
    assert waiting.second.ended == "the job was taken from this shard"
    waiting.go_on.set()


def test_who_waits_for_a_version_when_a_target_is_reached_ends_with_the_reason(
    waiting: Waiting,
) -> None:
    """The evaluation that reaches it is of the version at which the first one holds the second one up."""
    waiting.begin(
        test_samples=10,
        iterations=1000,
        evaluate=Evaluate(every=AT + 1),
        stop=Stop(metric="loss", target=float(AT)),
    )
    waiting.go_on.set()
    reason = comes_to(waiting.stack, "finished")
    assert "loss" in reason
    for trainer in (waiting.first, waiting.second):
        trainer.join(SOON_S)
        assert trainer.ended == reason


def test_a_trainer_that_shook_hands_before_the_end_and_comes_after_it_is_told_so(
    stack_of: Callable[..., Stack],
) -> None:
    stack = stack_of()
    message = stack.host(document())
    hosting = stack.leader.hosting
    hello = Hello(job=JOB, purpose="lease", sender="job-w1", term=message.term.number)
    hosting.check(hello)  # the handshake is over
    lead = hosting._jobs[JOB].lead
    assert lead is not None
    lead.fail("the disk is full")
    near, far = sockets()
    trainer = Connection(near, "leader")
    with running(lambda: hosting.serve(Connection(far, "job-w1"), hello)):
        header = trainer.receive(idle_s=SOON_S)
        assert header.kind is Kind.STOP
        assert trainer.meta(header) == {"reason": "the job has ended here: the disk is full"}
    trainer.close()
    assert stack.status().ready == []


def test_a_trainer_that_is_replaced_while_it_is_out_of_its_agents_reach_is_stopped(
    stack_of: Callable[..., Stack],
) -> None:
    stack = stack_of(2)
    message = stack.host(document(iterations=300))
    first = stack.trainer(message, 1)
    eventually(lambda: len(first.leases) > 3)
    stack._named.discard(first.worker)
    stack.trainer(message, 2)
    stack.direct(message, exits={first.worker: "agent-1 is not heard"})
    first.join(SOON_S)
    assert first.ended == "not in the plan any more: agent-1 is not heard"
    comes_to(stack, "finished")
    assert (final(stack) == -300).all()
    assert stack.status().dismissed == {}


def test_a_trainer_that_the_plan_does_not_name_for_long_is_stopped_and_a_late_word_stops_nobody(
    stack_of: Callable[..., Stack], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scheduler that was restarted does not remember how trainers ended."""
    monkeypatch.setattr(trainer_links, "MISSED_S", 0.5)
    stack = stack_of()
    hold = threading.Event()
    message = stack.host(document(), workers=2)
    lead = stack.leader.hosting._jobs[JOB].lead
    assert lead is not None
    first, second = [
        stack.trainer(message, n, before=lambda *_: hold.wait(WITHIN_S)) for n in (1, 2)
    ]
    eventually(lambda: len(lead.trainers.all()) == 2)
    stack.direct(message, workers=[second.worker])  # of before: the first was not named yet
    eventually(lambda: lead.trainers.allowed == {second.worker})
    stack.direct(message)
    eventually(lambda: len(lead.trainers.allowed) == 2)
    threading.Event().wait(0.6)
    stack.direct(message, workers=[second.worker])
    eventually(lambda: lead.trainers.allowed == {second.worker})
    assert len(lead.trainers.all()) == 2
    eventually(
        lambda: (
            bool(stack.direct(message, workers=[second.worker])) or len(lead.trainers.all()) == 1
        )
    )
    hold.set()
    first.join(SOON_S)
    assert first.ended == "not in the plan any more"
    comes_to(stack, "finished")
    assert (final(stack) == -30).all()


@pytest.mark.parametrize("at", ["add", "write"])
@pytest.mark.parametrize("shards", [1, 2])
def test_a_fault_while_a_gradient_is_added_fails_the_job_with_it_and_is_not_waited_for(
    stack_of: Callable[..., Stack], monkeypatch: pytest.MonkeyPatch, at: str, shards: int
) -> None:
    stack = stack_of(shards)
    failing = stack.hosts[-1]
    call = getattr(Slab, at)

    def fails(self: Slab, *args: Any) -> Any:
        member = failing.hosting._jobs[JOB].member
        if self is member._slab and member.low_version() == 5:
            raise MemoryError("no room")
        return call(self, *args)

    monkeypatch.setattr(Slab, at, fails)
    message = stack.host(document())
    trainer = stack.trainer(message, 1)
    reason = comes_to(stack, "failed", WITHIN_S)
    assert "MemoryError: no room" in reason
    assert failing.me in reason
    assert at == "write" or "partition" in reason
    trainer.join(SOON_S)
    assert "MemoryError: no room" in trainer.ended
