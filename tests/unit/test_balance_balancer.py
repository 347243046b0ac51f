"""The balancer of a job: from timings to plans."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from emulated import oracle, pattern, staff, train
from hypothesis import given, settings
from hypothesis import strategies as st

from elps.balance import (
    Balancer,
    Decision,
    Limits,
    LinearTimes,
    Member,
    Observation,
    Policy,
    equal_finish,
)
from elps.contracts.ids import WorkerId

STEADY = Policy(may_tail=False)
PLAIN = ["last", "average", "median", "narx", "line", "auto"]


def played(
    balancer: Balancer,
    cost: dict[str, float],
    iterations: int,
    begin: int = 0,
    noise: float = 0.0,
) -> list[Decision]:
    """Compute iterations with these seconds per sample, and what was decided after each."""
    rng, decisions = np.random.default_rng(begin), []
    for t in range(begin, begin + iterations):
        told = [
            Observation(w, n, n * cost[w] * rng.uniform(1 - noise, 1 + noise) if n else None)
            for w, n in balancer.decision.sizes.items()
        ]
        decisions.append(balancer.observe(t, told))
    return decisions


def named(*names: str) -> list[Member]:
    return [Member(WorkerId(name)) for name in names]


@pytest.mark.parametrize("predictor", PLAIN)
@pytest.mark.parametrize("sizer", ["equal-finish", "proportional"])
def test_batches_follow_constant_speeds_after_three_iterations(predictor: str, sizer: str) -> None:
    policy = Policy(predictor=predictor, sizer=sizer, may_tail=False)
    balancer = Balancer(700, named("a", "b", "c"), policy=policy)
    assert list(balancer.decision.sizes.values()) == [234, 233, 233]
    decisions = played(balancer, {"a": 0.01, "b": 0.02, "c": 0.04}, 4)
    assert list(decisions[-1].sizes.values()) == pytest.approx([400, 200, 100], abs=2)
    assert decisions[-1].expected_s == pytest.approx(4.0, rel=0.02)


def test_with_the_fixed_policy_batches_never_change() -> None:
    balancer = Balancer(90, named("a", "b"), policy=Policy.named("fixed"))
    decisions = played(balancer, {"a": 0.01, "b": 0.09}, 20)
    assert not any(d.changed for d in decisions)
    assert decisions[-1].sizes == {"a": 45, "b": 45}


def test_a_worker_behind_a_slow_link_gets_less() -> None:
    balancer = Balancer(100, named("a", "b"), policy=STEADY)
    for t in range(6):
        told = [
            Observation(w, n, n * 0.01, 0.05, 0.45 if w == "b" else 0.05)
            for w, n in balancer.decision.sizes.items()
        ]
        balancer.observe(t, told)
    assert balancer.decision.sizes == {"a": 70, "b": 30}


@pytest.mark.parametrize("predictor", ["average", "median", "narx", "line", "auto"])
@pytest.mark.parametrize("name", ["even", "mix 1:2:4"])
def test_noise_of_five_percent_changes_next_to_nothing(name: str, predictor: str) -> None:
    cost = pattern(name, 8, 200, noise=0.05, seed=7)
    run = train(cost, 8 * 64, replace(STEADY, predictor=predictor))
    late = [t for t in run.changes if t >= 20]
    assert len(late) <= (8 if name == "even" else 18)
    rate = oracle(cost, 8 * 64).seconds[20:].sum() / run.seconds[20:].sum()
    assert rate > 0.93


def test_following_noise_gains_nothing_so_even_the_last_value_stays() -> None:
    cost = pattern("even", 16, 200, noise=0.05, seed=1)
    run = train(cost, 16 * 64, replace(STEADY, predictor="last"))
    fixed = train(cost, 16 * 64, Policy.named("fixed"))
    assert run.seconds.sum() <= fixed.seconds.sum() * 1.002


@pytest.mark.parametrize("workers", [8, 16])
@pytest.mark.parametrize("name", ["mix 1:2:4", "one straggler", "step"])
def test_steady_and_stepwise_machines_reach_95_percent_of_the_best_rate(
    name: str, workers: int
) -> None:
    cost = pattern(name, workers, 120, noise=0.02)
    run, best = train(cost, 64 * workers, STEADY), oracle(cost, 64 * workers)
    settled = np.ones(120, dtype=np.bool_)
    settled[:6] = False
    if name == "step":
        settled[60:65] = False
    assert best.seconds[settled].sum() / run.seconds[settled].sum() > 0.95


def test_a_plan_that_comes_an_iteration_late_is_good_enough() -> None:
    cost = pattern("step", 8, 120, noise=0.02)
    late, best = train(cost, 512, STEADY, lag=1), oracle(cost, 512)
    assert best.seconds[70:].sum() / late.seconds[70:].sum() > 0.95


def test_bad_timings_change_nothing_and_the_sum_holds() -> None:
    bad = [0.0, -1.0, math.nan, 1e9, None, math.inf]
    balancer = Balancer(100, named("a", "b"), policy=STEADY)
    played(balancer, {"a": 0.01, "b": 0.01}, 5)
    for t, value in enumerate(bad, 5):
        decision = balancer.observe(
            t, [Observation(WorkerId("a"), 50, value), Observation(WorkerId("b"), 50, 0.5)]
        )
        assert decision.sizes == {"a": 50, "b": 50}


def test_a_first_iteration_fifty_times_longer_does_no_harm() -> None:
    balancer = Balancer(100, named("a", "b"), policy=STEADY)
    first = balancer.observe(
        0, [Observation(WorkerId("a"), 50, 25.0), Observation(WorkerId("b"), 50, 0.5)]
    )
    assert first.sizes == {"a": 50, "b": 50}
    assert played(balancer, {"a": 0.01, "b": 0.01}, 5, begin=1)[-1].sizes == {"a": 50, "b": 50}


def best_with(times: LinearTimes, total: int) -> float:
    """The least that an iteration takes, whoever sits out."""
    workers = len(times.knee)
    found = []
    for who in itertools.product([False, True], repeat=workers):
        if not all(who):
            limits = Limits.of(workers).without(np.array(who))
            sizes = equal_finish(times, total, limits).samples
            found.append(float(times.time_s(sizes.astype(np.float64)).max()))
    return min(found)


def test_batches_settle_near_the_best_also_where_times_are_flat_up_to_a_knee() -> None:
    """No predictor tells a knee; that the sizes follow what was measured at the newest ones is enough."""
    ratios = []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        workers = int(rng.integers(2, 5))
        total = int(rng.integers(20, 200)) * workers
        knee = rng.choice([0, 0.3, 1, 2], workers) * total / workers
        per_sample_s = rng.choice([0.5, 1, 2, 4], workers) * 1e-3
        times = LinearTimes(np.zeros(workers), per_sample_s, knee)
        balancer, took_s = Balancer(total, staff(workers)), []
        for t in range(100):
            sizes = balancer.decision.sizes
            each_s = times.time_s(np.array([*sizes.values()], dtype=np.float64))
            took_s.append(each_s.max())
            told = each_s * rng.uniform(0.98, 1.02, workers)
            seen = zip(sizes.items(), told.tolist(), strict=True)
            balancer.observe(t, [Observation(w, n, s if n else None) for (w, n), s in seen])
        ratios.append(float(np.mean(took_s[50:])) / best_with(times, total))
    assert np.median(ratios) <= 1.05
    assert max(ratios) <= 1.2


def test_an_iteration_that_was_seen_is_passed_over_unless_the_job_went_back() -> None:
    balancer = Balancer(100, named("a", "b"), policy=STEADY)
    played(balancer, {"a": 0.01, "b": 0.01}, 5)
    again = [Observation(WorkerId("a"), 50, 0.1), Observation(WorkerId("b"), 50, 1.5)]
    assert "nothing new" in balancer.observe(4, again).reason
    balancer.rewind(3)
    assert "nothing new" not in balancer.observe(3, again).reason


@given(st.dictionaries(st.sampled_from("abcd"), st.integers(0, 10_000)), st.integers(1, 40))
def test_batches_of_another_are_taken_over_if_they_are_of_these_workers(
    sizes: dict[str, int], granule: int
) -> None:
    balancer = Balancer(120, named("a", "b", "c"), granule=granule, policy=STEADY)
    before = balancer.decision
    balancer.resume({WorkerId(w): n for w, n in sizes.items()})
    now = balancer.decision.sizes
    assert sum(now.values()) == 120
    if {*"abc"} <= sizes.keys() and any(sizes[w] for w in "abc"):
        assert all(not now[WorkerId(w)] for w in "abc" if not sizes[w])
    else:
        assert balancer.decision is before


def test_the_same_timings_give_the_same_plans() -> None:
    cost = pattern("random walk", 8, 60, noise=0.1, seed=2)
    first, second = (train(cost, 512, Policy()) for _ in range(2))
    assert first.changes == second.changes
    assert first.seconds.tolist() == second.seconds.tolist()
    assert len(first.changes) > 5


def test_an_unknown_newcomer_begins_with_a_little_and_then_takes_its_share() -> None:
    members = named("a", "b")
    balancer = Balancer(120, members, policy=STEADY)
    played(balancer, {"a": 0.01, "b": 0.01}, 6)
    came = balancer.staff([*members, *named("c")])
    assert came.changed
    assert came.sizes["c"] == 10  # a quarter of an equal share
    assert sum(came.sizes.values()) == 120
    after = played(balancer, dict.fromkeys("abc", 0.01), 6, begin=6)[-1]
    assert list(after.sizes.values()) == pytest.approx([40, 40, 40], abs=2)


def test_a_newcomer_on_a_known_class_of_machine_begins_with_what_that_can_do() -> None:
    members = [Member(WorkerId("a"), "h1", "fast"), Member(WorkerId("b"), "h2", "slow")]
    balancer = Balancer(300, members, policy=STEADY)
    played(balancer, {"a": 0.01, "b": 0.02}, 6)
    assert balancer.decision.sizes == {"a": 200, "b": 100}
    came = balancer.staff([*members, Member(WorkerId("c"), "h3", "slow")])
    assert came.sizes == {"a": 150, "b": 75, "c": 75}
    faster = balancer.staff([*members, Member(WorkerId("d"), "h4", "fast")])
    assert faster.sizes["d"] <= 100  # an equal share at first, whatever is known


def test_a_replacement_on_the_same_host_begins_with_the_hosts_speed() -> None:
    members = [Member(WorkerId("a"), "h1"), Member(WorkerId("b"), "h2")]
    balancer = Balancer(300, members, policy=STEADY)
    played(balancer, {"a": 0.01, "b": 0.02}, 6)
    came = balancer.staff([members[0], Member(WorkerId("b2"), "h2")])
    assert came.sizes == {"a": 200, "b2": 100}


def test_a_slow_machine_that_joins_leaves_the_job_no_slower_and_its_idleness_is_said() -> None:
    members = named("a", "b", "c")
    balancer = Balancer(60, members, policy=STEADY)
    before = played(balancer, dict.fromkeys("abc", 0.01), 6)[-1]
    balancer.staff([*members, *named("snail")])
    costs = {"a": 0.01, "b": 0.01, "c": 0.01, "snail": 5.0}
    after = played(balancer, costs, 8, begin=6)[-1]
    assert after.idle == ("snail",)
    assert after.sizes["snail"] == 0
    assert after.expected_s <= before.expected_s * 1.01
    said = [d.reason for d in played(balancer, costs, 1, begin=14)]
    assert said
    assert any("snail" in reason for reason in _reasons(members, costs))


def _reasons(members: list[Member], costs: dict[str, float]) -> list[str]:
    balancer = Balancer(60, [*members, *named("snail")], policy=STEADY)
    return [d.reason for d in played(balancer, costs, 10)]


def test_an_idle_machine_is_tried_again_when_enough_time_has_passed_and_then_used() -> None:
    members = named("a", "b", "snail")
    balancer = Balancer(200, members, policy=STEADY)
    costs = {"a": 0.01, "b": 0.01, "snail": 3.0}
    assert played(balancer, costs, 10)[-1].idle == ("snail",)
    costs["snail"] = 0.01
    decisions = played(balancer, costs, 300, begin=10)
    assert any("tried again" in d.reason for d in decisions)
    assert decisions[-1].sizes["snail"] == pytest.approx(67, abs=3)


def test_trials_of_a_machine_that_stays_slow_cost_next_to_nothing() -> None:
    balancer = Balancer(200, named("a", "b", "snail"), policy=STEADY)
    costs = {"a": 0.01, "b": 0.01, "snail": 3.0}
    played(balancer, costs, 10)
    took = 0.0
    for t in range(10, 1010):
        took += max(n * costs[w] for w, n in balancer.decision.sizes.items())
        played(balancer, costs, 1, begin=t)
    assert took < 1000 * 1.0 * 1.05


def test_an_idle_machine_whose_processor_became_free_is_tried_at_once() -> None:
    balancer = Balancer(200, named("a", "snail"), policy=STEADY)

    def play(t: int, cost: float, cpu: float) -> Decision:
        sizes = balancer.decision.sizes
        told = []
        for w, n in sizes.items():
            each = cost if w == "snail" else 0.01
            free = cpu if w == "snail" else 1.0
            told.append(Observation(w, n, n * each if n else None, cpu_host=free))
        return balancer.observe(t, told)

    for t in range(8):
        play(t, 9.0, 0.1)
    assert balancer.decision.idle == ("snail",)
    assert "tried again" in play(8, 0.01, 0.9).reason


def test_more_workers_than_samples_leaves_some_idle_and_says_so() -> None:
    balancer = Balancer(2, named("a", "b", "c"), policy=STEADY)
    assert sum(balancer.decision.sizes.values()) == 2
    assert len(balancer.decision.idle) == 1


def test_workers_leave_and_their_share_goes_to_the_others() -> None:
    members = named("a", "b", "c")
    balancer = Balancer(120, members, policy=STEADY)
    played(balancer, {"a": 0.01, "b": 0.01, "c": 0.02}, 6)
    left = balancer.staff([members[0], members[2]])
    assert left.sizes == {"a": 80, "c": 40}
    assert balancer.staff([]).sizes == {}
    assert balancer.observe(99, []).sizes == {}


def test_a_batch_never_grows_beyond_twice_what_was_tried() -> None:
    balancer = Balancer(1600, staff(16), policy=STEADY)
    cost = {f"w{i}": 1.0 if i else 0.001 for i in range(16)}
    before = 100
    for t in range(8):
        after = played(balancer, cost, 1, begin=t)[-1].sizes[WorkerId("w0")]
        assert after <= 2 * before
        before = after
    assert before > 1500


def test_memory_limits_hold() -> None:
    members = [Member(WorkerId("a"), maximum=60), Member(WorkerId("b"))]
    balancer = Balancer(100, members, policy=STEADY)
    decisions = played(balancer, {"a": 0.001, "b": 0.1}, 10)
    assert decisions[-1].sizes == {"a": 60, "b": 40}


def test_leader_and_straggler_find_the_balance_of_machines_whose_time_is_flat_at_first() -> None:
    policy = Policy.named("leader-straggler")
    balancer = Balancer(300, named("big", "small"), policy=policy)
    for t in range(80):
        told = [
            Observation(w, n, 0.2 + 0.002 * max(n, 64) if w == "big" else 0.01 * max(n, 16))
            for w, n in balancer.decision.sizes.items()
        ]
        balancer.observe(t, told)
    big, small = balancer.decision.sizes.values()
    assert 0.2 + 0.002 * big == pytest.approx(0.01 * small, rel=0.06)


@pytest.mark.parametrize(
    ("name", "predictor", "sizer"),
    [
        ("lb-bsp", "auto", "equal-finish"),
        ("narx", "narx", "equal-finish"),
        ("last+proportional", "last", "proportional"),
        ("leader-straggler", "auto", "leader-straggler"),
    ],
)
def test_policies_have_names(name: str, predictor: str, sizer: str) -> None:
    policy = Policy.named(name)
    assert (policy.predictor, policy.sizer) == (predictor, sizer)
    assert Policy.named("fixed").fixed


@pytest.mark.parametrize(
    "name", ["", "nonsense", "narx+nonsense", "proportional+narx", "fixed+last"]
)
def test_an_unknown_policy_is_refused_with_the_names_there_are(name: str) -> None:
    with pytest.raises(ValueError, match="expected one of fixed, lb-bsp"):
        Policy.named(name)


def test_a_worker_named_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="named twice"):
        Balancer(10, named("a", "a"))


number = st.one_of(
    st.none(),
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from([0.0, -1.0, math.nan, 1e9]),
    st.floats(0.001, 10.0),
)
told = st.lists(st.tuples(st.integers(0, 5), number, number, number, number, number), max_size=6)
crews = st.lists(st.integers(0, 5), unique=True, max_size=5)
policies = st.sampled_from(["fixed", "lb-bsp", "narx+proportional", "line", "leader-straggler"])


@settings(deadline=None, max_examples=40)
@given(
    st.integers(1, 5_000),
    st.integers(1, 40),
    policies,
    st.lists(st.one_of(told, crews), max_size=15),
)
def test_whatever_comes_and_goes_and_is_reported_sizes_are_whole_and_sum_to_the_batch(
    total: int, granule: int, policy: str, events: list[list]
) -> None:
    balancer = Balancer(total, granule=granule, policy=Policy.named(policy))
    balancer.staff(named("w0", "w1", "w2"))
    for t, event in enumerate(events):
        if event and isinstance(event[0], tuple):
            decision = balancer.observe(
                t, [Observation(WorkerId(f"w{i}"), *rest) for i, *rest in event]
            )
        else:
            decision = balancer.staff(
                [
                    Member(WorkerId(f"w{i}"), f"h{i % 2}", minimum=i, maximum=i * 100 or None)
                    for i in event
                ]
            )
        sizes = list(decision.sizes.values())
        assert list(decision.sizes) == [m.worker for m in balancer.members]
        assert all(isinstance(size, int) and size >= 0 for size in sizes)
        assert sum(sizes) == (total if sizes else 0)
        assert 0 <= decision.tail < 1
        assert list(decision.idle) == [w for w, size in decision.sizes.items() if not size]
