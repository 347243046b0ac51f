"""How a leader's clock comes to rest when its workers are gone."""

from __future__ import annotations

from elps.contracts.ids import PartitionId, ShardId, WorkerId
from elps.psshard.core import commands as do
from elps.psshard.core.clock import Clock
from elps.psshard.core.commands import Command, Timing
from elps.psshard.core.moving import Moving
from elps.psshard.core.rules import Rules
from elps.stream.geometry import Geometry

S, V, W = ShardId("s1"), ShardId("s2"), WorkerId("j-w1")
P = PartitionId(0)


def clock_at(iterations_done: int, checkpoint_every: int = 0) -> Clock:
    """A clock with one shard and one worker that has computed so many iterations and asks for the next."""
    geometry = Geometry(samples=64, batch=8)
    rules = Rules(geometry=geometry, iterations=100, checkpoint_every=checkpoint_every)
    clock = Clock(rules, [S], 0, 0.0, moving=Moving({P: 1}, {P: S}))
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
    assert do.WriteCheckpoint(3, hurry=True) in clock.pause(2.0)
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


def test_a_pause_hurries_the_checkpoint_that_is_being_written_and_a_repeat_says_nothing() -> None:
    clock = clock_at(3, checkpoint_every=3)
    hurry = do.WriteCheckpoint(3, hurry=True)
    clock.worker_lost(W, "killed", 1.0)
    assert hurry in clock.pause(2.0)
    assert hurry not in [*clock.pause(2.0), *clock.tick(3.0)]
    assert hurry in clock.link_restored(S, 3.0)
    assert clock.checkpoint_written(3, 4.0)[-1] == do.Rest(3)


def test_an_exchange_of_the_map_hurries_the_checkpoint_that_it_has_to_wait_for() -> None:
    clock = clock_at(3, checkpoint_every=3)
    (follow,) = [c for c in [*clock.want([V], 1.0), *clock.tick(1.0)] if isinstance(c, do.Follow)]
    assert do.WriteCheckpoint(3, hurry=True) in clock.followed(V, follow.wave, 1, 3, 2.0)
    assert do.WriteCheckpoint(3, hurry=True) not in clock.tick(3.0)
