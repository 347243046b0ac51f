"""The link between a leader and another shard, cut and restored in every phase: the job goes on, exactly."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elps.contracts.job import Checkpoint
from elps.psshard import lead, link, serving
from elps.psshard.slab import Slab
from elps.wire.frames import Header, Kind

sys.path.insert(0, str(Path(__file__).parents[1]))

from data_plane import Proxy, eventually
from hosted import FakeTrainer, Stack, document
from leading import (
    WITHIN_S,
    comes_to,
    epoch_of,
    final,
    manifests,
    member_of,
    part_of,
    quick,
    stacks,
)

__all__ = ["quick", "stacks"]


class Linked:
    """Two shards; the leader reaches the other one through a proxy, the trainers reach it without."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        port = stack.hosts[1].listener.port
        self.proxy = Proxy(port)
        stack.link_ports[port] = self.proxy.port
        self.holding = threading.Event()

    def break_for(self, seconds: float) -> None:
        self.proxy.refusing = True
        self.proxy.cut()
        time.sleep(seconds)
        self.proxy.refusing = False

    def hold(self, from_iteration: int) -> Callable[[int, Any], bool]:
        """For a trainer: with this iteration in hand, what the leader says to the other shard goes nowhere.

        By then the other shard knows that it may leave the iteration.
        """

        def before_push(t: int, interval: Any) -> bool:
            if t == from_iteration and not self.holding.is_set():
                eventually(lambda: part_of(self.stack.hosts[1]).gate >= t)
                self.proxy.flowing_up.clear()
                self.holding.set()
            return False

        return before_push

    def restore_once(self, says: str) -> None:
        """Wait until the leader says what it waits for; then the link is cut, and it comes back."""
        assert self.holding.wait(WITHIN_S)
        eventually(lambda: says in self.stack.status().reason, 6, says)
        self.proxy.refusing = True
        self.proxy.cut()
        self.proxy.flowing_up.set()
        self.proxy.refusing = False


@pytest.fixture
def linked(stack_of: Callable[..., Stack]) -> Iterator[Linked]:
    linked = Linked(stack_of(2))
    yield linked
    linked.proxy.close()


def test_a_link_that_is_down_at_the_start_is_said_and_then_made(linked: Linked) -> None:
    linked.proxy.refusing = True
    message = linked.stack.host(document())
    linked.stack.trainer(message, 1)
    assert "cannot reach shard-2: " in comes_to(linked.stack, "waiting")
    linked.proxy.refusing = False
    comes_to(linked.stack, "finished")
    assert (final(linked.stack) == -30).all()


def test_values_brought_in_vain_while_a_link_was_down_are_brought_again(
    linked: Linked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other shard has no assignment, so it cannot take version 0: nobody may wait for it for ever."""
    monkeypatch.setattr(serving, "ASSIGN_WAIT_S", 0.2)
    linked.proxy.refusing = True
    message = linked.stack.host(document())
    trainer = linked.stack.trainer(message, 1)
    eventually(lambda: Kind.INITIALISE in trainer.seen)
    time.sleep(0.6)  # it has been told STALE by then
    linked.proxy.refusing = False
    comes_to(linked.stack, "finished")
    assert (final(linked.stack) == -30).all()


@pytest.mark.parametrize("at", [0, 1, 7, 29])
def test_a_link_cut_at_some_iteration_comes_back_and_the_job_goes_on(
    linked: Linked, at: int
) -> None:
    message = linked.stack.host(document(checkpoint=Checkpoint(every=5, every_s=0)))
    cut = threading.Event()

    def wait(trainer: FakeTrainer, header: Header) -> bool:
        if header.kind is Kind.TRAIN and header.iteration == at and not cut.is_set():
            linked.break_for(0.4)
            cut.set()
        return True

    linked.stack.trainer(message, 1, before=wait)
    linked.stack.trainer(message, 2)
    comes_to(linked.stack, "finished")
    assert cut.is_set()
    assert (final(linked.stack) == -30).all()


@pytest.mark.parametrize("seed", range(3))
def test_a_link_that_is_cut_again_and_again_costs_nothing_but_time(
    linked: Linked, seed: int
) -> None:
    rng = random.Random(seed)
    bad = {rng.randrange(60) for _ in range(4)}
    message = linked.stack.host(document(iterations=60, checkpoint=Checkpoint(every=4, every_s=0)))  # fmt: skip
    done = threading.Event()

    def cut() -> None:
        while not done.wait(rng.random() * 0.06):
            linked.proxy.cut()

    def is_bad(t: int, interval: Any) -> bool:
        return t in bad and interval.lo == t * 8

    cutter = threading.Thread(target=cut)
    cutter.start()
    try:
        linked.stack.trainer(message, 1, bad=is_bad)
        linked.stack.trainer(message, 2, bad=is_bad)
        comes_to(linked.stack, "finished", 40)
    finally:
        done.set()
        cutter.join()
    assert (final(linked.stack) == -60).all()
    skipped = manifests(linked.stack)[0].skips
    assert {lo // 8 for lo, _ in skipped} == bad


def test_a_link_that_comes_and_goes_is_said_to_be_down(linked: Linked) -> None:
    """Each outage is short, but the link is never there for long."""
    stack, hold, done = linked.stack, threading.Event(), threading.Event()
    message = stack.host(document())
    stack.trainer(message, 1, before=lambda *_: hold.wait(WITHIN_S))

    def cut() -> None:
        while not done.wait(0.05):
            linked.proxy.cut()

    cutter = threading.Thread(target=cut)
    cutter.start()
    try:
        reason = comes_to(stack, "waiting")
        connections = linked.proxy.connections
        eventually(lambda: linked.proxy.connections > connections + 5)
        assert stack.status().phase == "waiting"
    finally:
        done.set()
        cutter.join()
    assert "cannot reach shard-2: " in reason
    hold.set()
    comes_to(stack, "finished")
    assert (final(stack) == -30).all()


def test_a_fault_told_in_vain_while_a_link_was_down_is_told_again(
    linked: Linked, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = linked.stack
    message = stack.host(document())

    add, faults = Slab.add, [MemoryError("no room")]

    def fails_once(self: Slab, *args: Any) -> float:
        if linked.holding.is_set() and self is member_of(stack.hosts[1])._slab and faults:
            raise faults.pop()
        return add(self, *args)

    monkeypatch.setattr(Slab, "add", fails_once)

    def breaks(t: int, interval: Any) -> bool:
        if t == 5 and not linked.holding.is_set():
            linked.proxy.refusing = True
            linked.proxy.cut()
            eventually(lambda: member_of(stack.hosts[1])._hearers == ())
            linked.holding.set()
        return False

    stack.trainer(message, 1, bad=breaks)
    assert linked.holding.wait(WITHIN_S)
    eventually(lambda: member_of(stack.hosts[1])._trouble is not None)
    assert stack.status().phase != "failed"
    linked.proxy.refusing = False
    reason = comes_to(stack, "failed")
    assert reason.startswith("shard-2: samples [40, 48), partition ")
    assert reason.endswith("MemoryError: no room")


def test_a_freeze_lost_with_its_link_is_said_again(linked: Linked) -> None:
    stack = linked.stack
    message = stack.host(document())
    hold = linked.hold(5)

    def bad(t: int, interval: Any) -> bool:
        hold(t, interval)
        return (t, interval.lo) == (5, 40)

    stack.trainer(message, 1, bad=bad)
    linked.restore_once("a skip is being decided: waiting for shard-2")
    comes_to(stack, "finished")
    assert [tuple(s) for s in manifests(stack)[0].skips] == [(40, 48)]
    assert stack.status().progress.skipped_samples == 8  # type: ignore[union-attr]
    assert (final(stack) == -29).all()  # nothing of iteration 5 was counted, so no step was taken


def test_a_thaw_lost_with_its_link_is_said_again(linked: Linked) -> None:
    """A part is counted already on one shard, so the skip is not granted: the interval must be accepted again."""
    stack = linked.stack
    message = stack.host(document())
    tried: list[int] = []

    def bad(t: int, interval: Any) -> bool:
        if t != 5 or len(tried) == 2:
            return False
        tried.append(t)
        if len(tried) == 1:  # a zombie has pushed it to the first shard alone
            eventually(lambda: part_of(stack.hosts[0]).gate >= t)
            member = member_of(stack.hosts[0])
            for p in member.partitions:
                size = (member.partition_bytes(epoch_of(stack.hosts[0]), p) or 0) // 4
                one = np.full(size, 8, np.float32)
                member.push(epoch_of(stack.hosts[0]), t, interval, p, one)
        return True

    stack.trainer(message, 1, bad=bad)
    eventually(lambda: len(tried) == 1, WITHIN_S)
    linked.break_for(0.3)
    comes_to(stack, "finished")
    assert manifests(stack)[0].skips == []
    assert (final(stack) == -30).all()


def test_a_checkpoint_lost_with_its_link_is_said_again_or_given_up(linked: Linked) -> None:
    stack = linked.stack
    message = stack.host(document(checkpoint=Checkpoint(every=10, every_s=0)))
    stack.trainer(message, 1, bad=linked.hold(9))
    linked.restore_once("checkpoint of version 10 is not in the store")
    comes_to(stack, "finished")
    assert (final(stack) == -30).all()
    assert manifests(stack)[0].iteration == 30
    assert len(manifests(stack)) == 2


def test_a_gate_lost_with_its_link_is_said_again(linked: Linked) -> None:
    stack = linked.stack
    message = stack.host(document())
    stack.trainer(message, 1, bad=linked.hold(12))
    linked.restore_once("iteration 13 is computed: waiting for shard-2")
    comes_to(stack, "finished")
    assert (final(stack) == -30).all()


def test_a_call_back_lost_with_its_link_is_said_again(linked: Linked) -> None:
    """One trainer waits at the other shard for a version that cannot come before it takes a dead one's piece."""
    stack = linked.stack
    message = stack.host(document(), workers=2)
    waiting = threading.Event()

    def die(trainer: FakeTrainer, header: Header) -> bool:
        if header.kind is Kind.TRAIN and header.iteration == 12:
            assert waiting.wait(WITHIN_S)
            linked.proxy.flowing_up.clear()
            linked.holding.set()
            return False
        return True

    def wait(trainer: FakeTrainer, header: Header) -> bool:
        if header.kind is Kind.TRAIN and header.iteration == 13:
            waiting.set()
        return True

    stack.trainer(message, 1, before=die)
    stack.trainer(message, 2, before=wait)
    linked.restore_once("free")
    comes_to(stack, "finished")
    assert (final(stack) == -30).all()


def test_a_link_that_falls_silent_is_found_out_and_dialled_anew(
    linked: Linked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "SILENT_S", 0.5)
    monkeypatch.setattr(lead, "BEAT_S", 0.1)
    stack = linked.stack
    message = stack.host(document())
    stack.trainer(message, 1, bad=linked.hold(12))
    assert linked.holding.wait(WITHIN_S)
    assert "cannot reach shard-2" in comes_to(stack, "waiting")
    linked.proxy.flowing_up.set()
    comes_to(stack, "finished")
    assert (final(stack) == -30).all()
