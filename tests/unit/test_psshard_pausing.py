"""How a leader's clock comes to rest when its workers are gone."""

from __future__ import annotations

from elps.contracts.ids import ShardId, WorkerId
from elps.psshard.core import commands as do
from elps.psshard.core.clock import Clock
from elps.psshard.core.commands import Command, Timing
from elps.psshard.core.rules import Rules
from elps.stream.geometry import Geometry

S, W = ShardId("s1"), WorkerId("j-w1")


def clock_at(iterations_done: int) -> Clock:
    """A clock with one shard and one worker that has computed so many iterations and asks for the next."""
    clock = Clock(Rules(geometry=Geometry(samples=64, batch=8), iterations=100), [S], 0, 0.0)
    clock.expect([W], 0.0)
    clock.progressed(S, 0, 0.0)
    clock.worker_ready(W, 0.0)
    out: list[Command] = []
    for t in range(iterations_done):
        out += clock.asked(W, 0.0)
        lend = next(c for c in reversed(out) if isinstance(c, do.Lend))
        assert lend.version == t
        clock.computed(W, t, lend.interval, 1.0, Timing(), 0.0)
        out += clock.pushed(W, t, 0.0)
        out += clock.progressed(S, t + 1, 0.0)
    return clock


def test_with_nothing_lent_it_checkpoints_and_rests_without_any_worker() -> None:
    clock = clock_at(3)
    clock.worker_lost(W, "killed", 1.0)
    assert do.WriteCheckpoint(3) in clock.pause(2.0)
    assert not clock.needs_workers
    assert clock.waiting_for(2.0) == "checkpoint of version 3: waiting for the store"
    assert clock.checkpoint_written(3, 3.0)[-1] == do.Rest(3)


def test_with_an_iteration_lent_it_waits_for_a_worker_and_says_so() -> None:
    clock = clock_at(3)
    clock.asked(W, 1.0)
    clock.worker_lost(W, "killed", 1.0)
    assert not any(isinstance(c, do.WriteCheckpoint | do.Rest) for c in clock.pause(2.0))
    assert clock.needs_workers
    assert clock.boundary == 4
    assert clock.waiting_for(2.0) == "no worker is ready"
