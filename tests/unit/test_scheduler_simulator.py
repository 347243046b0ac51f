"""Simulated clusters: nothing is lost or given twice, everything ends, and the figures are what they should be."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elps.balance.slowdown import Step
from elps.contracts.errors import InvalidDocument
from elps.contracts.ids import JobId
from elps.contracts.job import Pool as Size
from elps.scheduler.core.policies import POLICIES
from elps.scheduler.simulator import pollux, reading
from elps.scheduler.simulator.outcome import Outcome, figures, jain, quantile
from elps.scheduler.simulator.simulating import plot, simulate
from elps.scheduler.simulator.simulation import Simulation
from elps.scheduler.simulator.workload import Cluster, Costs, Job, Line, Measured, Workload

FREE = Costs(
    start_s=0.0, ready_s=0.0, change_iterations=0.0, change_most_s=0.0, move_s=0.0,
    free_s=0.0, stop_s=0.0,
)  # fmt: skip
"""Where changes cost nothing, times can be told beforehand."""


def job(name: str, at_s: float = 0.0, iterations: int = 100, **fields: Any) -> Job:
    more: dict[str, Any] = {
        "feedback": 10, "profile": Line(1.0), "workers": Size(min=1, max=4), **fields,
    }  # fmt: skip
    return Job(JobId(name), at_s, iterations, **more)


def run(policy: str, *jobs: Job, workers: int = 4, costs: Costs = FREE, **cluster: Any) -> Outcome:
    pool = Cluster(workers, cluster.pop("shards", 8), **cluster)
    return Simulation(Workload("w", jobs, pool, costs), POLICIES[policy]).run()


def test_a_job_alone_takes_as_long_as_its_profile_says() -> None:
    (alone,) = run("fifo", job("j")).jobs
    assert (alone.started_at, alone.fed_at, alone.ended_at) == (0.0, 2.5, 25.0)
    assert alone.held_s == 100.0
    (starting,) = run("fifo", job("j", at_s=7.0), costs=replace(FREE, start_s=2.0)).jobs
    assert (starting.fed_at, starting.ended_at) == (11.5, 34.0)


def test_first_come_first_served_has_the_second_wait_for_the_first() -> None:
    first, second = run("fifo", job("a"), job("b", at_s=1.0)).jobs
    assert (first.ended_at, second.started_at, second.ended_at) == (25.0, 25.0, 50.0)


def test_a_fixed_size_is_asked_for_only_where_sizes_do_not_change() -> None:
    fixed = job("a", fixed=2)
    assert run("fifo", fixed).jobs[0].ended_at == 50.0
    assert run("fair", fixed).jobs[0].ended_at == 25.0


def test_a_newcomer_is_given_way_to_and_the_other_grows_again() -> None:
    old = job("old", iterations=400, feedback=4)
    new = job("new", at_s=20.0, iterations=40)
    outcome = run("eps", old, new)
    by_id = {ended.job.id: ended for ended in outcome.jobs}
    assert by_id[JobId("new")].fed_at is not None
    assert by_id[JobId("new")].started_at < 21.0, "an iteration of the donor at the most"
    assert outcome.used_s == pytest.approx(440, rel=0.02), "no slot lay idle"
    assert figures(outcome)["feedback_p95_s"] < figures(run("fifo", old, new))["feedback_p95_s"] / 5


def test_a_restart_costs_what_it_is_said_to() -> None:
    old, new = job("old", iterations=400, feedback=4), job("new", at_s=20.0, iterations=40)
    costs = replace(FREE, restart=True, restart_s=5.0, restart_iterations=2.0)
    outcome = run("eps", old, new, costs=costs)
    lost = [ended.lost_s for ended in outcome.jobs]
    assert sum(lost) > 10.0
    assert sum(lost) == pytest.approx(sum(5.0 + 2.0 * (1 / n) for n in (2, 4)), abs=1.0), (
        "it shrinks once and grows once"
    )
    assert outcome.ended_at > run("eps", old, new).ended_at + 5.0


def test_a_slot_is_free_some_time_after_its_worker_has_ended() -> None:
    first, second = run("fifo", job("a"), job("b", at_s=1.0), costs=replace(FREE, free_s=3.0)).jobs
    assert (first.ended_at, second.started_at, second.ended_at) == (25.0, 28.0, 53.0)


def test_what_a_restart_gives_up_is_free_when_the_job_has_stopped() -> None:
    costs = replace(FREE, restart=True, restart_s=5.0, restart_iterations=0.0)

    def newcomer(**more: float) -> float:
        old, new = job("old", iterations=400, feedback=4), job("new", at_s=20.0, iterations=40)
        return run("eps", old, new, costs=replace(costs, **more)).jobs[1].started_at

    assert newcomer() == 20.0
    assert newcomer(stop_s=2.0, free_s=0.5) == 22.25, "with the first of two slots"


def test_who_is_ready_takes_part_from_the_next_iteration() -> None:
    """The newcomer has its first slot a moment before its second: its first iteration is one worker's alone."""
    old, new = job("old", iterations=400, feedback=4), job("new", at_s=20.0, iterations=40)
    ended = run("eps", old, new, costs=replace(FREE, free_s=0.4)).jobs[1]
    assert ended.fed_at is not None
    assert ended.fed_at - ended.started_at == pytest.approx(1.0 + 9 * 0.5)


def test_a_killed_job_ends_at_its_feedback() -> None:
    (ended,) = run("fifo", job("j", killed=10)).jobs
    assert (ended.fed_at, ended.ended_at, ended.done) == (2.5, 2.5, pytest.approx(10.0))


def test_slow_workers_hold_up_the_others_unless_batches_are_balanced() -> None:
    uneven = (Step(1.0, 1.0), Step(3.0, 3.0))
    assert run("fifo", job("j"), slowdowns=uneven).jobs[0].ended_at == pytest.approx(37.5)
    held_up = run("fifo", job("j"), slowdowns=uneven, balanced=False)
    assert held_up.jobs[0].ended_at == pytest.approx(75.0)
    later = (Step(1.0, 2.0, 10.0),)
    (slowed,) = run("fifo", job("j"), slowdowns=later, weather_s=1.0).jobs
    assert slowed.ended_at == pytest.approx(40.0)


def test_a_job_that_slow_workers_hold_up_does_without_them_and_others_take_them() -> None:
    uneven = (Step(1.0, 1.0), Step(4.0, 4.0))
    (without,) = run("eps", job("j"), slowdowns=uneven, balanced=False).jobs
    assert without.ended_at == pytest.approx(50.0), "two that are fast"
    (all_,) = run("eps", job("j"), slowdowns=uneven).jobs
    assert all_.ended_at == pytest.approx(40.0), "they do as much as two and a half"
    slows = (Step(1.0, 1.0), Step(1.0, 8.0, 10.0))
    (later,) = run("eps", job("j"), slowdowns=slows, balanced=False, weather_s=1.0).jobs
    (held_up,) = run("fifo", job("j"), slowdowns=slows, balanced=False, weather_s=1.0).jobs
    assert later.ended_at < held_up.ended_at / 2, "it gives them away when they become slow"


def test_jobs_whose_changes_cost_much_are_changed_less() -> None:
    def crowd(costs: Costs) -> Outcome:
        jobs = [
            job(f"j{n}", at_s=20.0 * n, iterations=300 + 40 * n, profile=Line(1.0, 0.02 * n))
            for n in range(6)
        ]
        return run("eps", *jobs, workers=8, costs=costs)

    cheap = crowd(Costs())
    dear = crowd(replace(Costs(), restart=True, restart_s=4.0))
    assert figures(dear)["resizes"] < 0.7 * figures(cheap)["resizes"]


@pytest.mark.parametrize("falls", [True, False])
def test_a_job_that_still_learns_is_done_sooner_than_one_that_has_flattened(falls: bool) -> None:
    def losses(of: float) -> tuple[tuple[int, float], ...]:
        return tuple((10 * k, 1 / (10 * k + of)) for k in range(1, 200)) if falls else ()

    wide = Size(min=1, max=16)
    jobs = [
        job(f"j{n}", iterations=2000, feedback=10, workers=wide, losses=losses(of))
        for n, of in enumerate([1.0, 1.0, 4000.0])
    ]
    ended = [one.ended_at for one in run("eps", *jobs, workers=15).jobs]
    assert (ended[2] < 0.8 * min(ended[:2])) == falls
    if not falls:
        assert ended[2] == pytest.approx(ended[0], rel=0.1)


def test_a_job_that_can_never_start_is_told_of() -> None:
    with pytest.raises(RuntimeError, match="never started: huge"):
        run("fair", job("huge", workers=Size(min=9, max=9)))


sizes = st.tuples(st.integers(1, 3), st.integers(0, 5)).map(lambda t: Size(min=t[0], max=sum(t)))
profiles = st.builds(
    Line,
    shared_s=st.floats(0.01, 30.0),
    fixed_s=st.sampled_from([0.0, 0.01, 1.0]),
    each_s=st.sampled_from([0.0, 0.1]),
    by_shards_s=st.sampled_from([0.0, 0.5]),
)
jobs = st.lists(
    st.fixed_dictionaries(
        {
            "at_s": st.floats(0.0, 200.0),
            "iterations": st.integers(1, 400),
            "feedback": st.integers(1, 50),
            "profile": profiles,
            "workers": sizes,
            "shards": st.sampled_from([Size(), Size(min=1, max=3), Size(min=2, max=2)]),
            "weight": st.sampled_from([0.5, 1.0, 4.0]),
            "killed": st.none() | st.integers(1, 60),
        }
    ),
    min_size=1,
    max_size=8,
)
clusters = st.builds(
    Cluster,
    workers=st.integers(3, 12),
    shards=st.integers(2, 6),
    shard_slots=st.integers(1, 3),
    slowdowns=st.sampled_from([(), (Step(1.0, 1.0), Step(2.0, 2.0)), (Step(1.0, 3.0, 20.0),)]),
    weather_s=st.just(5.0),
    balanced=st.booleans(),
)
costs = st.sampled_from(
    [
        FREE,
        Costs(),
        Costs(restart=True),
        Costs(start_s=10.0, ready_s=5.0),
        Costs(free_s=20.0),
        Costs(restart=True, stop_s=7.0, free_s=3.0),
    ]
)


@pytest.mark.parametrize("policy", list(POLICIES))
@given(found=jobs, cluster=clusters, cost=costs)
@settings(max_examples=40, deadline=None)
def test_work_is_conserved_nothing_is_given_twice_and_all_jobs_end(
    policy: str, found: list[dict[str, Any]], cluster: Cluster, cost: Costs
) -> None:
    made = []
    for n, fields in enumerate(sorted(found, key=lambda f: f["at_s"])):
        fields = {**fields, "feedback": min(fields["feedback"], fields["iterations"])}
        made.append(Job(JobId(f"j{n}"), **fields))
    workload = Workload("w", tuple(made), cluster, cost)
    simulation = Simulation(workload, POLICIES[policy])
    while len(simulation.ended) < len(made):
        assert simulation.step(), "nothing happens any more"
        held = [a for r in simulation.held.values() for a in (*r.agents, *r.leaving)]
        assert len(held) == len(set(held)), "a slot is held twice"
        nobodys = simulation.slots.free + simulation.slots.clearing
        assert nobodys + len(held) == cluster.workers, "a slot is lost"
        for one in simulation.held.values():
            lacks = one.size - len(one.agents)
            assert lacks >= 0
            assert one.job.workers.min <= one.size <= one.job.workers.max
            assert one.done <= one.iterations + 1e-6
    outcome = simulation.run()
    for ended in outcome.jobs:
        last = (
            ended.job.iterations
            if ended.job.killed is None
            else min(ended.job.killed, ended.job.iterations)
        )
        assert ended.done == pytest.approx(last, rel=1e-6)
        assert (ended.fed_at is None) == (last < ended.job.feedback)
        assert ended.job.at_s <= ended.started_at <= ended.ended_at
    assert outcome.used_s == pytest.approx(sum(ended.held_s for ended in outcome.jobs), abs=1e-3)
    assert 0 < figures(outcome)["utilisation"] <= 1 + 1e-9
    again = Simulation(workload, POLICIES[policy]).run()
    assert again == outcome, "the same again is not the same"


# --- reading ----------------------------------------------------------------------------------------------------------

DOCUMENT: dict[str, Any] = {
    "cluster": {"workers": 4, "shards": 2},
    "profiles": {"p": {"shared_s": 1.0}, "m": {"measured": {"1": 4.0, "4": 1.0}}},
    "jobs": [
        {"id": "one", "profile": "p", "iterations": 50, "feedback": 5},
        {
            "id": "many", "profile": "m", "iterations": 20, "feedback": 5, "at_s": 3.0, "count": 10,
            "every_s": 4.0, "random": True, "keep": 0.5, "workers": {"min": 1, "max": 4},
        },
    ],
}  # fmt: skip


def unread(path: str) -> str:
    raise AssertionError(f"{path} was read")


def test_a_document_says_what_arrives_and_the_seed_draws() -> None:
    jobs = reading.jobs_of(reading.document_of(DOCUMENT), 0)
    assert len(jobs) == 11
    assert [j.at_s for j in jobs] == sorted(j.at_s for j in jobs)
    assert {j.killed for j in jobs} == {None, 5}
    assert jobs == reading.jobs_of(reading.document_of(DOCUMENT), 0)
    assert jobs != reading.jobs_of(reading.document_of(DOCUMENT), 1)


def test_a_document_may_say_how_a_loss_falls() -> None:
    falls = {"id": "f", "profile": "p", "iterations": 1000, "halved": 50}
    document = {**DOCUMENT, "jobs": [falls, *DOCUMENT["jobs"]]}
    (found,) = [j for j in reading.jobs_of(reading.document_of(document), 0) if j.id == "f"]
    losses = dict(found.losses)
    assert losses[50] == pytest.approx(0.5)
    assert max(losses) == 1000
    assert list(losses.values()) == sorted(losses.values(), reverse=True)
    assert all(not j.losses for j in reading.jobs_of(reading.document_of(DOCUMENT), 0))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"jobs": []}, "there are none"),
        ({"jobs": [{"id": "x", "profile": "?", "iterations": 1}]}, "no profile '?'"),
        ({"jobs": [{"id": "x", "profile": "p", "iterations": 0}]}, ">= 1"),
        ({"profiles": {"p": {}, "m": {"shared_s": 1.0}}}, "takes no time"),
        ({"cluster": {"workers": 4, "slowdown": ["nothing:3"]}}, "is no pattern"),
        ({"cluster": {"workers": 4, "colour": "red"}}, "colour"),
        ({"jobs": [{"id": "x", "profile": "p", "iterations": 1, "workers": {"min": 9, "max": 9}}]}, "needs 9 workers"),
    ],
)  # fmt: skip
def test_a_wrong_document_is_refused_with_what_is_wrong(change: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidDocument) as refused:
        simulate("w", {**DOCUMENT, **change}, unread)
    assert told in str(refused.value)


def test_a_report_has_every_policy_and_can_be_drawn() -> None:
    asked: list[str] = []
    report = simulate("<w>", DOCUMENT, unread, asked.append, seed=3)
    assert asked == list(report["policies"]) == list(POLICIES)
    assert report == simulate("<w>", DOCUMENT, unread, seed=3)
    picture = plot(report)
    assert picture.startswith("<svg")
    assert picture.count("<polyline") == 2 * len(POLICIES)
    assert "<w>" not in picture
    with pytest.raises(InvalidDocument, match="not one of"):
        simulate("w", DOCUMENT, unread, policies=["best"])


def test_recorded_slow_downs_are_read_by_the_function_given() -> None:
    rows = "worker,s\n0,1.0\n1,2.0\n"
    report = simulate(
        "w",
        DOCUMENT,
        {"t.csv": rows}.__getitem__,
        policies=["fifo"],
        slowdown=["trace:t.csv#s?worker=1@1s"],
    )
    assert report["uneven"]


WORKLOAD = "name,time,application,num_replicas,batch_size\na-0,10,app,4,64\na-1,5,app,1,32\n"
FILES = {
    "app/placements.csv": "placement,local_bsz,step_time,sync_time\n"
    "1,16,1.0,0.0\n1,32,2.0,0.0\n11,16,1.4,0.4\n2,16,1.2,0.2\n",
    "app/scalability.csv": "num_nodes,num_replicas,local_bsz,step_time,sync_time\n4,4,16,1.5,0.5\n6,4,16,9.0,8.0\n",
    "app/validation-64.csv": "progress,iteration,metric\n1,20,0.1\n2,40,0.2\n",
    "app/validation-32.csv": "progress,iteration,metric\n1,30,0.1\n",
}


def test_a_pollux_workload_is_read_from_its_tables() -> None:
    assert pollux.is_workload(WORKLOAD)
    assert sorted(pollux.files_of(WORKLOAD)) == sorted(FILES)
    late, early = sorted(pollux.jobs_of(WORKLOAD, FILES), key=lambda j: -j.at_s)
    assert (early.iterations, early.feedback, early.workers.max) == (30, 30, 1)
    assert (late.iterations, late.feedback, late.workers, late.fixed) == (
        40,
        20,
        Size(min=1, max=4),
        4,
    )
    assert late.profile.parts_s(1, 1) == (0.0, 4.0), (
        "two steps of 32, which is all that was measured"
    )
    assert late.profile.parts_s(2, 1) == (0.2, 2.0), (
        "two steps of 16 on one node, synchronised once"
    )
    assert late.profile.parts_s(4, 1) == (0.5, 1.0), "on four nodes rather than on six"
    assert pollux.jobs_of(WORKLOAD, FILES, 2.0)[1].workers.max == 8
    report = simulate("p", WORKLOAD, FILES.__getitem__, policies=["fifo"])
    assert report["workers"] == 64
    with pytest.raises(InvalidDocument, match="missing beside"):
        pollux.jobs_of(WORKLOAD, {})


def test_times_between_those_measured_lie_between_them() -> None:
    measured = Measured(((2, 0.1, 4.0), (4, 0.3, 2.0)))
    assert measured.parts_s(3, 1) == (pytest.approx(0.2), pytest.approx(3.0))
    assert measured.parts_s(1, 1) == (0.1, 8.0)
    assert measured.parts_s(8, 1) == (pytest.approx(0.6), 2.0)


# --- figures ----------------------------------------------------------------------------------------------------------


@given(st.lists(st.floats(0.1, 100.0), min_size=1, max_size=20))
def test_fairness_is_one_when_all_are_slowed_alike_and_least_when_one_bears_it_all(
    values: list[float],
) -> None:
    assert 1 / len(values) - 1e-9 <= jain(values) <= 1 + 1e-9
    assert jain([values[0]] * 5) == pytest.approx(1.0)
    assert quantile(values, 1.0) == max(values)
    assert quantile(values, 0.0) == min(values)
    assert math.isnan(quantile([], 0.5))
