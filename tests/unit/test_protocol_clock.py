"""The leader's clock in single situations, each of which went wrong once or is easily got wrong."""

from __future__ import annotations

import pytest
from protocol_game import A, B, C, Game, S, V

from elps.contracts.ids import ShardId
from elps.psshard.core import commands as do
from elps.psshard.core.clock import Clock
from elps.psshard.core.commands import Timing
from elps.psshard.core.rules import Rules
from elps.stream.geometry import Geometry
from elps.stream.interval import Interval


# --- leases -----------------------------------------------------------------------------------------------------------
def test_who_will_go_ends_what_it_has_and_the_next_cut_leaves_it_out() -> None:
    game = Game(A, B, C)
    leases = [game.lease(w) for w in (A, B, C)]
    game("worker_retires", C)
    assert not game.said
    game.compute(C)
    assert not game.of(do.Lend)
    game.compute(A)
    assert game.lease(A).interval == Interval(4, 6)
    game("worker_left", C, "its agent ends it")
    assert [r.what for r in game.of(do.Remark)] == ["worker_left"]
    game.compute(B)
    game.held(1)
    assert game.lease(B).interval == Interval(6, 8)
    assert [lease.version for lease in leases] == [0, 0, 0]


def test_what_is_only_meant_for_one_who_will_go_is_cut_anew_or_free() -> None:
    game = Game(A, B, C)
    game.compute(A)
    assert game.lease(A).version == 1
    game("worker_retires", C)
    game.compute(C)
    game("worker_left", C, "its agent ends it")
    game.compute(B)
    game.held(1)
    game.compute(A)
    game.compute(B)
    lent = [c.interval for c in game.all if isinstance(c, do.Lend) and c.version == 1]
    assert sorted(lent) == [Interval(4, 6), Interval(6, 7), Interval(7, 8)]


def test_what_every_shard_has_of_a_worker_that_goes_is_not_lent_again() -> None:
    game = Game(A, B)
    game.compute(A)
    game("worker_left", A, "its agent ends it")
    freed = [r for r in game.of(do.Remark) if r.what == "released"]
    assert [r.iteration for r in freed] == [1]
    game.compute(B)
    assert game.lease(B).version == 1


def test_workers_get_equal_parts_of_an_iteration_and_then_of_the_next() -> None:
    g = Game(A, B)
    assert (g.lease(A).interval, g.lease(B).interval) == (Interval(0, 2), Interval(2, 4))
    g.compute(A)
    assert (g.lease(A).version, g.lease(A).interval) == (1, Interval(4, 6))


def test_a_lost_workers_lease_is_cut_for_those_left_and_those_ahead_are_called_back() -> None:
    g = Game(A, B, C, geometry=Geometry(samples=100, batch=6))
    g.compute(A)
    g.compute(B)
    g("worker_lost", C, "gone")
    assert g.of(do.CallBack) == [do.CallBack(A, 4), do.CallBack(B, 5)]
    g("asked", A)
    assert (g.lease(A).version, g.lease(A).interval) == (0, Interval(4, 5))
    g("asked", B)
    assert (g.lease(B).version, g.lease(B).interval) == (0, Interval(5, 6))
    g.compute(A)
    assert (g.lease(A).version, g.lease(A).interval) == (1, Interval(6, 8))


def test_a_call_back_is_said_again_when_a_link_comes_back_until_the_worker_asks() -> None:
    g = Game(A, B)
    g.compute(A)
    g("worker_lost", B, "gone")
    assert do.CallBack(A, 3) in g("link_restored", V)
    g("asked", A)
    g("link_restored", V)
    assert not g.of(do.CallBack)


def test_a_shard_without_partitions_is_not_waited_for() -> None:
    g = Game(A)
    assert not g("progressed", ShardId("s9"), 0)
    assert not g("freeze_answered", ShardId("s9"), Interval(0, 4), 1, True)


# --- versions, evaluations, checkpoints -------------------------------------------------------------------------------


def test_a_checkpoint_is_ordered_before_its_gate_is_announced() -> None:
    g = Game(A, checkpoint_every=1)
    g.compute(A)
    g.held(1)
    said = [c for c in g.said if isinstance(c, do.WriteCheckpoint | do.AnnounceGate)]
    assert said == [do.WriteCheckpoint(1), do.AnnounceGate(1)]


def test_a_part_of_an_evaluation_is_lent_again_after_its_iteration_is_over() -> None:
    g = Game(A, B, evaluate_every=1, test_samples=2)
    g.compute(A)
    g.compute(B)
    g.held(1)
    g.evaluate(A)
    g.compute(A)
    g("worker_lost", B, "gone")  # with its part of the evaluation of version 1 in hand
    g("asked", A)
    assert (g.lease(A).kind, g.lease(A).version) == ("evaluate", 1)
    g.evaluate(A)
    assert g.of(do.Evaluated) == [do.Evaluated(1, {"m": 1.0})]


def test_an_open_evaluation_holds_the_next_gate_back() -> None:
    g = Game(A, B, evaluate_every=1, test_samples=2)
    g.compute(A)
    g.compute(B)
    g.held(1)
    assert do.AnnounceGate(1) in g.said
    g.evaluate(A)
    g.compute(A)
    g.held(2)
    assert not g.of(do.AnnounceGate)
    g.evaluate(B)
    assert g.of(do.Evaluated)
    assert do.AnnounceGate(2) in g.said


def test_a_rest_lends_nothing_although_an_evaluation_is_due() -> None:
    g = Game(A, evaluate_every=1, test_samples=2)
    g("pause")
    g("computed", A, 0, Interval(0, 4), 1.0, Timing())
    g("pushed", A, 0, 0.1)
    g("worker_lost", A, "gone")
    g.held(1)
    g.now = 2.0  # nobody tells the loss any more
    g("checkpoint_written", 1)
    assert g.of(do.Rest) == [do.Rest(1)]
    g("worker_ready", B)
    g("asked", B)
    assert not g.of(do.Lend)
    g("resume")
    assert [(c.kind, c.version) for c in g.of(do.Lend)] == [("evaluate", 1)]


def test_a_pause_waits_for_an_evaluation_that_somebody_was_lent_early() -> None:
    g = Game(evaluate_every=1, test_samples=2, geometry=Geometry(samples=100, batch=1))
    g("expect", [A, B])
    g("worker_ready", A)
    g("worker_ready", B)
    g("asked", B)  # the only sample of iteration 0 is meant for A
    assert (g.lease(B).kind, g.lease(B).version) == ("evaluate", 1)
    g("pause")
    assert g.clock.boundary == 1
    g("asked", A)
    g.compute(A)
    g.held(1)
    g.evaluate(A)
    assert not g.of(do.WriteCheckpoint)
    g.evaluate(B)
    assert g.of(do.WriteCheckpoint) == [do.WriteCheckpoint(1, hurry=True)]
    assert g("checkpoint_written", 1)[-1] == do.Rest(1)


def test_where_the_job_rests_or_ends_the_gate_is_not_announced() -> None:
    g = Game(A, skips=[Interval(4, 8)])
    g("pause")
    assert g.clock.boundary == 1
    g.compute(A)
    g.held(1)
    assert not g.of(do.AnnounceGate)
    assert g("checkpoint_written", 1)[-1] == do.Rest(1)
    assert do.AnnounceGate(1) in g("resume")


def test_a_boundary_is_not_set_where_partitions_leave_of_themselves() -> None:
    g = Game(A, skips=[Interval(4, 8)])
    g.compute(A)
    g.held(1)  # announced: nothing of iteration 1 is left, so it is being left
    g("pause")
    assert g.clock.boundary == 3  # iteration 2 was lent early


def test_the_end_waits_for_its_checkpoint_and_its_evaluation() -> None:
    g = Game(A, iterations=1, evaluate_at_end=True, test_samples=2)
    g.compute(A)
    g.held(1)
    assert not g.of(do.Finish)
    g.evaluate(A)
    assert g.of(do.WriteCheckpoint) == [do.WriteCheckpoint(1, hurry=True)]
    assert g("checkpoint_written", 1)[-1] == do.Finish(1, "all iterations are done")


def test_a_target_that_is_reached_ends_the_job_at_the_first_boundary() -> None:
    g = Game(A, evaluate_every=1, test_samples=2, target_metric="m", target=1.0)
    g.compute(A)
    g.held(1)
    g.evaluate(A)
    assert g.clock.end == 1
    assert g("checkpoint_written", 1)[-1] == do.Finish(1, "m reached 1, target 1")


@pytest.mark.parametrize("end", [5, 10])
def test_a_job_that_comes_to_rest_on_its_newest_checkpoint_looks_whether_it_is_there(
    end: int,
) -> None:
    clock = Clock(Rules(Geometry(samples=100, batch=4), iterations=end), [S], 5, 0.0, checkpoint=5)
    last = do.Rest(5) if end > 5 else do.Finish(5, "all iterations are done")
    said = [*clock.pause(0.0), *clock.progressed(S, 5, 0.0)]
    assert said == [do.AnnounceGate(5), do.FindCheckpoint(5)]
    assert clock.waiting_for(0.0) == "checkpoint of version 5: waiting for the store"
    assert clock.tick(1.0) == []
    assert clock.checkpoint_found(5, False, 2.0) == [do.WriteCheckpoint(5, hurry=True)]
    assert clock.checkpoint_found(5, True, 2.0) == [], "a late answer"
    assert clock.checkpoint_abandoned(5, 3.0) == [do.WriteCheckpoint(5, hurry=True)]
    assert clock.checkpoint_written(5, 4.0) == [last]
    assert clock.tick(100.0) == []


def test_a_checkpoint_that_is_found_is_not_written_again() -> None:
    clock = Clock(Rules(Geometry(samples=100, batch=4), iterations=9), [S], 5, 0.0, checkpoint=5)
    said = [*clock.progressed(S, 5, 0.0), *clock.pause(0.0)]
    assert said == [do.AnnounceGate(5), do.FindCheckpoint(5)]
    assert clock.checkpoint_found(5, True, 1.0) == [do.Rest(5)]
    assert clock.tick(100.0) == []


def test_an_abandoned_checkpoint_is_made_up_for_at_the_next_boundary() -> None:
    g = Game(A, checkpoint_every=5, start=4)
    g.compute(A)
    g.held(5)
    assert do.WriteCheckpoint(5) in g.said
    g("checkpoint_abandoned", 5)
    g.compute(A)
    g.held(6)
    assert do.WriteCheckpoint(6) in g.said


# --- skips ------------------------------------------------------------------------------------------------------------


def test_a_skip_is_granted_when_every_shard_is_clean() -> None:
    g = Game(A, B)
    freeze = g.bad(A)
    assert not any(
        isinstance(c, do.Grant) for c in g("freeze_answered", S, freeze.interval, 1, True)
    )
    said = g("freeze_answered", V, freeze.interval, 1, True)
    assert said[0] == do.Grant(Interval(0, 2), "w1: nan")
    assert list(g.clock.skips) == [Interval(0, 2)]


def test_a_part_that_is_counted_already_is_computed_again_and_the_third_time_the_job_goes_back() -> (
    None
):
    g = Game(A)
    for _ in range(2):
        said = g.answer(g.bad(A), True, False)
        assert do.Thaw(Interval(0, 4)) in said
        assert not any(isinstance(c, do.Grant | do.RollBack) for c in said)
        g("asked", A)
        assert g.lease(A).interval == Interval(0, 4)
    said = g.answer(g.bad(A), False, True)
    assert [c.skip for c in said if isinstance(c, do.RollBack)] == [Interval(0, 4)]
    assert not g.clock.skips  # it counts from the next epoch on
    assert not g("asked", A)


def test_thaws_and_freezes_are_said_again_when_a_link_comes_back() -> None:
    g = Game(A, B)
    refused = g.bad(A)
    g.answer(refused, False, True)
    freeze = g.bad(B)
    g("link_restored", V)
    assert g.said[:3] == [do.Thaw(refused.interval), freeze, do.AnnounceGate(0)]
    g("progressed", S, 1)
    g("progressed", V, 1)
    g("link_restored", V)
    assert not g.of(do.Thaw)


def test_a_job_that_skips_iteration_after_iteration_fails() -> None:
    g = Game(A, max_skipping=2)
    for t in range(2):
        g.answer(g.bad(A), True, True)
        g("asked", A)
        g.held(t + 1)
    assert "2 iterations in a row had samples skipped" in g.of(do.Fail)[0].reason


# --- what people are told ---------------------------------------------------------------------------------------------


def test_it_says_who_is_waited_for() -> None:
    clock = Clock(Rules(Geometry(100, 4), 10), [S, V], 0, 0.0)
    assert clock.waiting_for(0.0) == "no worker is ready"
    clock.expect([A, B], 0.0)
    clock.worker_ready(A, 0.0)
    assert clock.waiting_for(0.0) == "waiting for w2 to be ready"
    clock.worker_ready(B, 0.0)
    clock.progressed(S, 0, 0.0)
    assert clock.waiting_for(0.0) == "version 0: waiting for s2"
    g = Game(A, B)
    g.compute(A)
    assert g.clock.waiting_for(3.0) == "[2, 4) lent to w2 for 3.0 s"
    g.compute(B)
    g("progressed", S, 1)
    assert g.clock.waiting_for(3.0) == "iteration 0 is computed: waiting for s2 to complete it"
    g("progressed", V, 1)
    g.bad(A)
    g("freeze_answered", S, Interval(4, 6), 1, True)
    assert g.clock.waiting_for(3.0) == "a skip is being decided: waiting for s2"
