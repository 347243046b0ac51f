"""Who takes too long is given up, and what kills its workers fails the job."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from protocol_game import A, B, C, Game

from elps.contracts.ids import WorkerId
from elps.psshard.core import commands as do
from elps.psshard.core.awake import LATE_S, Awake
from elps.psshard.core.deadlines import nothing_seen
from elps.psshard.core.deaths import SPARED
from elps.psshard.core.rules import MAX_DEATHS
from elps.stream.geometry import Geometry
from elps.stream.interval import Interval


def test_one_who_will_go_and_does_not_is_given_up() -> None:
    game = Game(A, B)
    game("worker_retires", B)
    game.compute(B)
    game.compute(A)
    game.now = 21.0
    game("tick")
    assert [d.worker for d in game.of(do.Dismiss)] == [B]


def test_who_never_asks_is_given_up_although_it_was_lent_nothing() -> None:
    g = Game(A)
    g("expect", [A, B])
    g("worker_ready", B)
    g.now = 21.0
    g("tick")
    assert [c.worker for c in g.of(do.Dismiss)] == [A, B]
    assert "nothing asked for" in g.of(do.Dismiss)[1].reason


def test_who_was_told_the_map_and_never_asks_is_given_up_although_it_is_no_worker_yet() -> None:
    g = Game()
    g("greeted", A)
    g("greeted", B)
    g("asked", B)
    g.now = 49.0
    assert not g("tick")
    g("greeted", A)  # again: its time has begun
    g.now = 51.0
    g("tick")
    assert [c.worker for c in g.of(do.Dismiss)] == [A]
    assert "nothing asked for for 51.0 s, limit 50.0 s" in g.of(do.Dismiss)[0].reason
    assert not g("tick")


def test_an_opening_does_not_forget_how_long_leases_take() -> None:
    seen = nothing_seen()
    before = Game(A, seen=seen, first_lease_s=600.0)
    before.now = 0.05
    before.compute(A)
    g = Game(A, start=1, seen=seen, first_lease_s=600.0)
    g.now = 5.1
    g("tick")
    assert [c.worker for c in g.of(do.Dismiss)] == [A]
    assert "limit 5.0 s" in g.of(do.Dismiss)[0].reason


def test_who_is_gone_before_it_asked_is_not_waited_for() -> None:
    g = Game()
    g("greeted", A)
    g("brings", A)
    g("worker_lost", A, "its connection ended")
    g.now = 1_000.0
    assert not g("tick")


def test_who_may_be_in_an_evaluation_has_the_time_of_one_to_ask() -> None:
    g = Game(test_samples=8, evaluate_every=1, first_lease_s=600.0)
    g("greeted", A)
    g.now = 600.0
    assert not g("tick")
    g.now = 631.0
    g("tick")
    assert [c.worker for c in g.of(do.Dismiss)] == [A]


def test_who_is_to_bring_the_first_values_and_does_not_is_given_up() -> None:
    g = Game()
    for w in (A, B):
        g("greeted", w)
        g("asked", w)
    g("brings", A)
    g.now = 20.0
    assert not g("tick")
    g.now = 21.0
    g("tick")
    assert [c.worker for c in g.of(do.Dismiss)] == [A]
    assert "the first values are not there for 21.0 s" in g.of(do.Dismiss)[0].reason
    g("brings", B)
    g("worker_ready", B)
    g("asked", B)
    g.now = 42.0
    g("tick")
    assert "the first values" not in g.of(do.Dismiss)[0].reason, "they are there"


def test_where_the_machine_stood_still_nobody_is_given_up_for_it() -> None:
    g, awake = Game(A), Awake(0.0)

    def tick(at: float) -> list[WorkerId]:
        g.now = awake.at(at)
        g("tick")
        return [c.worker for c in g.of(do.Dismiss)]

    assert not tick(0.1)
    assert not tick(60.1)
    assert not tick(120.1), "the limit is 20 s, of which 2.1 have passed"
    for tenth in range(178):
        assert not tick(120.2 + tenth / 10)
    assert tick(138.3) == [A], "it hangs, and is found"


@given(gaps=st.lists(st.floats(0, 1e4), min_size=1, max_size=50))
def test_waking_time_goes_on_with_each_look_and_by_a_second_at_most(gaps: list[float]) -> None:
    awake, at, before = Awake(5.0), 5.0, 5.0
    for gap in gaps:
        at += gap
        now = awake.at(at)
        assert now - before == pytest.approx(min(gap, LATE_S), abs=1e-6)
        before = now


def test_who_is_called_back_and_does_not_come_is_given_up() -> None:
    g = Game(A, B)
    g.now = 1.0
    g.compute(A)
    g("worker_lost", B, "gone")
    g.now = 30.0
    g("tick")
    assert [c.worker for c in g.of(do.Dismiss)] == [A]
    assert "called back from samples [4, 6) of iteration 1" in g.of(do.Dismiss)[0].reason


def test_who_waits_for_a_version_that_others_compute_is_not_given_up() -> None:
    g = Game(A, B)
    g.now = 1.0
    g.compute(A)
    g.now = 10.0  # ten times as long as A took may B take
    assert not g("tick")
    g.compute(B)
    g.held(1)
    g.now = 99.0  # and from now on either ten times as long as B did
    assert not g("tick")


def test_what_is_computed_but_never_complete_is_lent_again() -> None:
    g = Game(A)
    g.compute(A)
    g("tick")
    g.now = 6.0
    g("tick")
    assert [r.what for r in g.of(do.Remark)] == ["released"]
    assert g.of(do.CallBack) == [do.CallBack(A, 2)]
    g("asked", A)
    assert (g.lease(A).version, g.lease(A).interval) == (0, Interval(0, 4))


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_the_third_death_on_the_same_samples_fails_the_job_with_the_last_exit(kind: str) -> None:
    evaluates = {"evaluate_every": 1, "test_samples": 1} if kind == "evaluate" else {}
    g = Game(A, geometry=Geometry(samples=100, batch=1), **evaluates)
    if kind == "evaluate":
        g.compute(A)
        g.held(1)
    g("worker_lost", A, "gone")
    for w in (B, C):
        g("worker_ready", w)
        g("asked", w)
        assert g.lease(w).kind == kind
        assert not g.of(do.Fail)
        g("worker_lost", w, "gone")
    g("exit_seen", C, "signal 11 (SIGSEGV)")
    (failed,) = g.of(do.Fail)
    what = "iteration 0" if kind == "train" else "the evaluation of version 1"
    assert failed.reason == (
        f"3 workers died on samples [0, 1) of {what}; the last was w3: signal 11 (SIGSEGV)"
    )


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_who_was_let_down_by_the_network_has_not_died_of_the_samples(kind: str) -> None:
    evaluates = {"evaluate_every": 1, "test_samples": 1} if kind == "evaluate" else {}
    g = Game(A, geometry=Geometry(samples=100, batch=1), **evaluates)
    if kind == "evaluate":
        g.compute(A)
        g.held(1)
    g("worker_lost", A, "gone")
    for w in ("w2", "w3", "w4"):
        g("worker_ready", WorkerId(w))
        g("asked", WorkerId(w))
        g("worker_lost", WorkerId(w), "gone")
        g("exit_seen", WorkerId(w), "exit code 3", spared=True)
    assert not g.of(do.Fail)
    for w in ("w5", "w6"):
        g("worker_ready", WorkerId(w))
        g("asked", WorkerId(w))
        assert not g.of(do.Fail)
        g("worker_lost", WorkerId(w), "gone")
    g("exit_seen", WorkerId("w6"), "signal 9 (SIGKILL)")
    assert "3 workers died" in g.of(do.Fail)[0].reason


def test_whoever_is_let_down_again_and_again_counts_in_the_end() -> None:
    g = Game(A, geometry=Geometry(samples=100, batch=1))
    g("worker_lost", A, "gone")
    g("exit_seen", A, "exit code 3", spared=True)
    for n in range(2, 30):
        worker = WorkerId(f"w{n}")
        g("worker_ready", worker)
        g("asked", worker)
        g("worker_lost", worker, "gone")
        g("exit_seen", worker, "exit code 3", spared=True)
        if g.of(do.Fail):
            break
    assert n == SPARED + MAX_DEATHS


def test_a_death_taken_back_lifts_the_doom_whoever_it_was() -> None:
    g = Game(A, geometry=Geometry(samples=100, batch=1))
    g("worker_lost", A, "gone")
    for w in (B, C):
        g("worker_ready", w)
        g("asked", w)
        g("worker_lost", w, "gone")
    g("exit_seen", A, "exit code 3", spared=True)
    g("exit_seen", C, "exit code 1")
    assert not g.of(do.Fail)
    g.now += 60.0
    g("tick")
    assert not g.of(do.Fail)


def test_without_word_of_the_last_exit_the_job_fails_soon_with_what_is_known() -> None:
    g = Game(A, max_deaths=1)
    g("worker_lost", A, "its connection ended")
    assert not g.of(do.Fail)
    g.now = 3.0
    assert g("tick")[-1].reason.endswith("the last was w1: its connection ended")
