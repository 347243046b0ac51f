"""The balancer for a loop of one's own."""

from __future__ import annotations

import doctest

import numpy as np
import pytest

from elps.balance import LoopBalancer, loop


def test_the_example_in_the_documentation_is_true() -> None:
    result = doctest.testmod(loop)
    assert result.attempted >= 5
    assert result.failed == 0


def test_weighted_means_of_batches_of_30_and_10_are_the_mean_over_40() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 5)), rng.normal(size=40)
    balancer = LoopBalancer(["a", "b"], batch=40)
    while balancer.sizes != {"a": 30, "b": 10}:
        balancer.report({"a": balancer.sizes["a"] / 30, "b": balancer.sizes["b"] / 10})
    w = np.zeros(5)

    def gradient(begin: int, end: int) -> np.ndarray:
        part = x[begin:end]
        return part.T @ (part @ w - y[begin:end]) / (end - begin)

    whole, start, means = np.zeros(5), np.zeros(5), []
    for _ in range(50):
        whole = gradient(0, 40)
        at, means = 0, []
        for name, size in balancer.sizes.items():
            means.append(balancer.weights[name] * gradient(at, at + size))
            at += size
        assert np.mean(means, axis=0) == pytest.approx(whole, rel=1e-12, abs=1e-12)
        w = w - 0.1 * whole
    assert not np.allclose(w, start)


def test_every_process_of_a_loop_comes_to_the_same_sizes_by_itself() -> None:
    rng = np.random.default_rng(0)
    one, two = (LoopBalancer(["a", "b", "c"], batch=96, granule=8) for _ in range(2))
    for _ in range(30):
        seconds = {n: size * rng.uniform(0.01, 0.02) for n, size in one.sizes.items()}
        assert one.report(seconds) == two.report(seconds)
        assert sum(one.sizes.values()) == 96
        assert all(size % 8 == 0 for size in one.sizes.values())


def test_a_loop_keeps_to_the_memory_of_its_workers() -> None:
    balancer = LoopBalancer(["a", "b"], batch=100, maximum=60)
    for _ in range(10):
        sizes = balancer.sizes
        balancer.report({"a": sizes["a"] * 0.001, "b": sizes["b"] * 0.1})
    assert balancer.sizes == {"a": 60, "b": 40}


def test_a_loop_without_workers_and_an_unknown_policy_are_refused() -> None:
    with pytest.raises(ValueError, match="no workers"):
        LoopBalancer([], batch=10)
    with pytest.raises(ValueError, match="batch policy"):
        LoopBalancer(["a"], batch=10, policy="magic")
