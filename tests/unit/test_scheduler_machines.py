"""How fast agents are: measured by jobs that each know only what their own samples take."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_crowd import Crowd

from elps.contracts.ids import AgentId, JobId
from elps.contracts.state import Progress
from elps.contracts.telemetry import IterationTimings, WorkerMean
from elps.scheduler.core.explaining import explain
from elps.scheduler.core.facts import all_facts
from elps.scheduler.core.machines import FADES_S, STEP, Machines, power, stepped, worthwhile


def measured(
    machines: Machines, at: float, work_s: float, speeds: dict[str, float], kind: str = ""
) -> None:
    """A job whose sample takes a usual machine so long."""
    seconds = {AgentId(agent): work_s / speed for agent, speed in speeds.items()}
    machines.measured(at, seconds, dict.fromkeys(seconds, kind))


def speeds(machines: Machines, *agents: str) -> list[float]:
    return [machines.speed(AgentId(agent)) for agent in agents]


def test_machines_of_one_speed_are_usual_ones_whatever_the_jobs_on_them() -> None:
    machines = Machines()
    for at in range(60):
        measured(machines, float(at), 0.001, {"a": 1.0, "b": 1.1, "c": 0.95})
        measured(machines, float(at), 7.0, {"c": 1.05, "d": 1.0})
    assert machines.even
    assert speeds(machines, "a", "b", "c", "d", "never seen") == [1.0] * 5


def test_a_slow_machine_is_known_by_the_jobs_on_it_and_its_class_by_it() -> None:
    machines = Machines()
    for at in range(60):
        measured(machines, float(at), 0.01, {"a": 1.0, "b": 1.0, "c": 1.0})
        measured(machines, float(at), 5.0, {"b": 1.0, "slow": 0.25}, kind="old")
    assert machines.speed(AgentId("slow")) == pytest.approx(0.25, rel=0.2)
    assert speeds(machines, "a", "b", "c") == [1.0] * 3
    assert not machines.even
    for at in range(60, 120):
        measured(machines, float(at), 0.3, {"slow": 0.25, "other": 0.5})
    assert machines.speed(AgentId("other")) == pytest.approx(0.5, rel=0.2), "told by the slow one"


def test_who_was_never_measured_is_expected_to_be_as_its_class() -> None:
    machines = Machines()
    for at in range(60):
        now = float(at)
        seconds = {AgentId("a"): 1.0, AgentId("b"): 1.0, AgentId("c"): 1.0, AgentId("x"): 2.0}
        kinds = {AgentId("x"): "old"}
        machines.measured(now, seconds, kinds)
    assert machines.speed(AgentId("y"), "old") == pytest.approx(0.5, rel=0.1)
    assert machines.speed(AgentId("y"), "new") == machines.speed(AgentId("y")) == 1.0


def test_a_job_of_one_worker_says_nothing_of_its_machine() -> None:
    machines = Machines()
    measured(machines, 0.0, 100.0, {"a": 1.0})
    measured(machines, 1.0, 100.0, {"a": 1.0, "b": 0.2})
    assert machines.speed(AgentId("a")) > machines.speed(AgentId("b")) or machines.even


def test_what_was_slow_is_tried_again_in_the_end() -> None:
    machines = Machines()
    for at in range(60):
        measured(machines, float(at), 1.0, {"a": 1.0, "b": 1.0, "slow": 0.25})
    assert machines.speed(AgentId("slow")) < 0.4
    for at in range(60, int(FADES_S) + 180, 10):
        measured(machines, float(at), 1.0, {"a": 1.0, "b": 1.0})
    assert machines.speed(AgentId("slow")) == 1.0
    assert machines.even


def test_what_was_slow_is_tried_again_also_if_nobody_measures_any_more() -> None:
    machines = Machines()
    for at in range(60):
        measured(machines, float(at), 1.0, {"a": 1.0, "b": 1.0, "slow": 0.25})
    machines.look(60 + FADES_S / 2)
    assert machines.speed(AgentId("slow")) < 0.4
    machines.look(60 + FADES_S)
    assert machines.speed(AgentId("slow")) == 1.0
    assert machines.even


def test_slow_machines_stay_slow_ones_when_they_alone_are_measured() -> None:
    machines, slow = Machines(), dict.fromkeys(("s1", "s2", "s3"), 0.25)
    for at in range(60):
        measured(machines, float(at), 1.0, {"a": 1.0, "b": 1.0, "c": 1.0, "d": 1.0, **slow})
    for at in range(60, int(FADES_S) + 180, 10):
        measured(machines, float(at), 1.0, slow)
    assert speeds(machines, *slow) == pytest.approx([0.25] * 3, rel=0.2)


def test_noise_about_a_step_changes_nothing() -> None:
    machines, chance = Machines(), random.Random(1)
    told = set()
    for at in range(300):
        slow = math.exp(2.3 * -STEP + chance.gauss(0, 0.1))
        measured(machines, float(at), 1.0, {"a": 1.0, "b": 1.0, "c": 1.0, "slow": slow})
        if at > 50:
            told.add(machines.speed(AgentId("slow")))
    assert len(told) == 1


@pytest.mark.parametrize("held_up_s", [0.5, 1.0, 5.0])
def test_machines_that_are_held_up_now_and_then_do_not_all_become_slow(held_up_s: float) -> None:
    machines, seed = Machines(), random.Random(1)
    for at in range(1200):
        late = [held_up_s if seed.random() < 0.1 else 0.0 for _ in "abc"]
        found = {name: 1 / (1 + more) for name, more in zip("abc", late, strict=True)}
        measured(machines, float(at), 0.01, found)
        assert min(speeds(machines, *"abc")) >= 0.4, "relative to one that was never measured"
        assert max(speeds(machines, *"abc")) <= 1.5


def test_one_that_becomes_slow_leaves_the_others_usual_ones() -> None:
    machines = Machines()
    for at in range(200):
        measured(machines, float(at), 0.01, dict.fromkeys("abc", 1.0))
    for at in range(200, 500):
        measured(machines, float(at), 0.01, {"a": 1.0, "b": 1.0, "c": 0.25})
    assert speeds(machines, "a", "b") == [1.0, 1.0]
    assert machines.speed(AgentId("c")) == pytest.approx(0.25, rel=0.2)
    for at in range(500, 800):
        measured(machines, float(at), 0.01, dict.fromkeys("abc", 1.0))
    again = speeds(machines, *"abc")
    assert max(again) <= 1.2 * min(again), "they are alike"
    assert min(again) > 0.5, "and nearly as before"
    for at in range(800, 8000):  # it comes and goes
        slow = 0.25 if at % 600 < 300 else 1.0
        measured(machines, float(at), 0.01, {"a": 1.0, "b": 1.0, "c": slow})
    assert 0.5 < machines.speed(AgentId("a")) < 2


def train(crowd: Crowd, job: str, iteration: int, speeds: dict[str, float]) -> None:
    """An iteration's timings, by the speeds of agents."""
    timings = IterationTimings(
        job=JobId(job), term=crowd.term(job).number, iteration=iteration,
        workers=[
            WorkerMean(
                worker=worker, samples=16, compute_s=0.16 / speeds[agent], pull_s=0, push_s=0, wait_s=0
            )
            for worker, agent in crowd.workers(job).items()
        ],
    )  # fmt: skip
    crowd.core.timed(timings)
    crowd.go(1)


def test_a_running_job_measures_its_machines_and_gives_the_slowest_away() -> None:
    crowd = Crowd(4)
    crowd.submit("old", iterations=10**6, workers={"min": 1, "max": 4}, batch={"global": 64})
    crowd.go(2)
    crowd.done["old"] = Progress(iteration=50, metrics_iteration=40)
    for n in range(40):
        train(crowd, "old", n + 1, {"a0": 1.0, "a1": 0.25, "a2": 1.0, "a3": 1.0})
    assert crowd.core.book.machines.speed(AgentId("a1")) == pytest.approx(0.25, rel=0.2)
    (held,) = all_facts(crowd.core.book, crowd.now, held=True).held
    assert held.power(4) == pytest.approx(3.25, rel=0.05)
    assert "the slowest is 0.2" in "\n".join(
        explain(crowd.core.book, crowd.core.policy, JobId("old"), crowd.now)
    )
    crowd.submit("new")
    crowd.go(3)
    assert list(crowd.workers("new").values()) == ["a1"]
    assert len(crowd.workers("old")) == 3
    crowd.ask("kill", "old")
    crowd.go(2 * FADES_S)
    assert crowd.core.book.machines.even, "time alone has it forgotten"


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from("abcdef"), st.floats(allow_nan=True, allow_infinity=True), max_size=4
        ),
        max_size=20,
    )
)
@settings(max_examples=200, deadline=None)
def test_a_speed_is_a_bounded_number_whatever_is_measured(rounds: list[dict[str, float]]) -> None:
    machines = Machines()
    for at, seconds in enumerate(rounds):
        machines.measured(float(at), {AgentId(a): s for a, s in seconds.items()}, {})
    assert all(1 / 16 - 1e-9 <= speed <= 16 + 1e-9 for speed in speeds(machines, *"abcdef"))


@given(st.lists(st.floats(0.05, 8.0), min_size=1, max_size=8))
def test_power_is_what_all_do_or_what_the_slowest_allows(found: list[float]) -> None:
    assert power(found, held_up=False) == pytest.approx(sum(found))
    assert power(found, held_up=True) <= power(found, held_up=False) + 1e-9
    assert power([1.0] * len(found), held_up=True) == len(found)


@given(
    st.lists(st.sampled_from([0.25, 0.5, 1.0, 2.0]), max_size=8),
    st.integers(0, 4),
    st.sampled_from([0.25, 1.0]),
    st.integers(0, 3),
)
def test_what_is_worthwhile_is_the_best_there_is(
    offered: list[float], beside: int, slowest: float, least: int
) -> None:
    offered.sort(reverse=True)
    taken = worthwhile(offered, beside, slowest, least)
    there = [slowest] * beside

    def worth(count: int) -> float:
        return power([*there, *offered[:count]], held_up=True)

    assert taken >= min(least, len(offered))
    assert worth(taken) >= max(worth(n) for n in range(min(least, len(offered)), len(offered) + 1))


@given(st.floats(0.01, 100.0))
def test_steps_are_steps(speed: float) -> None:
    assert stepped(stepped(speed)) == pytest.approx(stepped(speed))
    assert stepped(1.05) == 1.0
