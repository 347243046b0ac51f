"""Update kernels: both ways give the same bits, and both are the textbook's."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elps.contracts.errors import SetupError
from elps.contracts.job import Optimizer
from elps.optim import add_into, all_finite, apply, copy_into, state_names, warm_up
from elps.optim.kernels import chosen_kernels, kernels

NAMES = ("sgd", "momentum", "nesterov", "adagrad", "rmsprop", "adam", "adamw", "ftrl")
DTYPES = ("float32", "float64")


@pytest.fixture(params=("numba", "numpy"))
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    chosen_kernels.cache_clear()
    monkeypatch.setenv("ELPS_KERNELS", request.param)
    yield request.param
    chosen_kernels.cache_clear()


def spec_of(name: str, **more: float) -> Optimizer:
    given = {"weight_decay": 0.01, **({"l1": 0.05, "l2": 0.1} if name == "ftrl" else {}), **more}
    return Optimizer(name=name, **given)  # type: ignore[arg-type]


def arrays_for(
    spec: Optimizer, size: int, dtype: str, seed: int = 0
) -> tuple[Any, Any, Any, dict[str, Any]]:
    rng = np.random.default_rng([seed, size])
    acc = (rng.standard_normal(size) * 10.0 ** rng.integers(-6, 6, size)).astype(dtype)
    values = rng.standard_normal(size).astype(dtype)
    state = {s: rng.standard_normal(size).astype(dtype) ** 2 for s in state_names(spec)}
    return acc, values, np.empty_like(values), state


def textbook(
    spec: Optimizer, g: Any, value: Any, state: dict[str, Any], lr: float, step: int
) -> tuple[Any, Any]:
    """In float64, written from the papers and torch's documentation."""
    if spec.name != "adamw":
        g = g + spec.weight_decay * value
    if spec.name == "sgd":
        return value - lr * g, {}
    if spec.name == "momentum":
        velocity = spec.momentum * state["momentum"] + g
        return value - lr * velocity, {"momentum": velocity}
    if spec.name == "nesterov":
        velocity = spec.momentum * state["momentum"] + g
        return value - lr * (g + spec.momentum * velocity), {"momentum": velocity}
    if spec.name == "adagrad":
        squares = state["squares"] + g**2
        return value - lr * g / (np.sqrt(squares) + spec.eps), {"squares": squares}
    if spec.name == "rmsprop":
        v = spec.alpha * state["v"] + (1 - spec.alpha) * g**2
        return value - lr * g / (np.sqrt(v) + spec.eps), {"v": v}
    if spec.name == "ftrl":
        squares = state["squares"] + g**2
        z = state["pull"] - value * (spec.beta + np.sqrt(state["squares"])) / lr
        new, z = proximal(spec, g, value, z, state["squares"], lr)
        return new, {"pull": z + new * (spec.beta + np.sqrt(squares)) / lr, "squares": squares}
    m = spec.beta1 * state["m"] + (1 - spec.beta1) * g
    v = spec.beta2 * state["v"] + (1 - spec.beta2) * g**2
    m_hat, v_hat = m / (1 - spec.beta1**step), v / (1 - spec.beta2**step)
    if spec.name == "adamw":
        value = value - lr * spec.weight_decay * value
    return value - lr * m_hat / (np.sqrt(v_hat) + spec.eps), {"m": m, "v": v}


def proximal(spec: Optimizer, g: Any, w: Any, z: Any, squares: Any, lr: float) -> tuple[Any, Any]:
    """McMahan et al. 2013, algorithm 1, with its own words: new weights and new z."""
    sigma = (np.sqrt(squares + g**2) - np.sqrt(squares)) / lr
    z = z + g - sigma * w
    shrunk = -(z - np.sign(z) * spec.l1) / ((spec.beta + np.sqrt(squares + g**2)) / lr + spec.l2)
    return np.where(np.abs(z) <= spec.l1, 0.0, shrunk), z


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [0, 1, 7, 20_001])
def test_numba_and_numpy_give_the_same_bits(
    name: str, dtype: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Every operation is rounded correctly in either way, none is fused or reordered: there is nothing to tolerate.
    results = []
    for way in ("numba", "numpy"):
        chosen_kernels.cache_clear()
        monkeypatch.setenv("ELPS_KERNELS", way)
        spec = spec_of(name)
        acc, values, out, state = arrays_for(spec, size, dtype)
        for step in (1, 2, 3):
            apply(spec, acc, 1 / 37, values, out, state, 0.01 / step, step)
            values, out = out.copy(), values
        results.append([values, *state.values()])
    chosen_kernels.cache_clear()
    for compiled, plain in zip(*results, strict=True):
        assert compiled.dtype == dtype
        np.testing.assert_array_equal(compiled, plain)


@given(
    name=st.sampled_from(NAMES),
    dtype=st.sampled_from(DTYPES),
    elements=st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), max_size=40),
    scale=st.one_of(st.integers(1, 10_000).map(lambda n: 1 / n), st.floats(1e-6, 2.0)),
    decay=st.sampled_from([0.0, 0.1]),
)
@settings(max_examples=150, deadline=None)
def test_the_two_ways_agree_on_any_input(
    name: str, dtype: str, elements: list[float], scale: float, decay: float
) -> None:
    spec = spec_of(name, weight_decay=decay)
    acc = np.array(elements, dtype)
    results = []
    for way in ("numba", "numpy"):
        chosen = kernels(dtype, way)
        _, values, out, state = arrays_for(spec, acc.size, dtype)
        real = acc.dtype.type
        common = (acc, real(scale), real(3), real(decay), values, out)
        scalars = {
            "sgd": [0.1],
            "momentum": [0.1, 0.9],
            "nesterov": [0.1, 0.9],
            "adagrad": [0.1, 1e-8],
            "rmsprop": [0.1, 0.99, 0.01, 1e-8],
            "ftrl": [0.1, 1.0, 0.5, -0.5, 0.2],
        }.get(name, [0.999, 0.01, 0.9, 0.1, 0.99, 0.01, 1.2, 1e-8])
        step = getattr(chosen, "adam" if name == "adamw" else name)
        step(*common, *map(real, scalars), *state.values())
        results.append([out, *state.values()])
        assert chosen.all_finite(acc) == bool(np.isfinite(acc).all())
    for compiled, plain in zip(*results, strict=True):
        np.testing.assert_array_equal(compiled, plain)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_fifty_steps_follow_the_textbook(name: str, dtype: str, way: str) -> None:
    spec = spec_of(name)
    rng = np.random.default_rng(5)
    values = rng.standard_normal(300).astype(dtype)
    out = np.empty_like(values)
    state = {s: np.zeros_like(values) for s in state_names(spec)}
    expected = values.astype(np.float64)
    expected_state = {s: np.zeros(300) for s in state}
    for step in range(1, 51):
        acc = rng.standard_normal(300).astype(dtype)
        apply(spec, acc, 1 / 8, values, out, state, 0.01, step)
        values, out = out, values
        new, changed = textbook(
            spec, acc.astype(np.float64) / 8, expected, expected_state, 0.01, step
        )
        expected, expected_state = new, changed
    tolerance = 1e-12 if dtype == "float64" else 5e-6
    np.testing.assert_allclose(values, expected, rtol=tolerance, atol=tolerance)
    for s, array in state.items():
        np.testing.assert_allclose(array, expected_state[s], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("start", [0.0, 1.0])
def test_ftrl_is_the_papers_and_begins_where_the_parameters_are(start: float, way: str) -> None:
    spec = Optimizer(name="ftrl", l1=0.3, l2=0.5, beta=0.7)
    rng = np.random.default_rng(6)
    values = start * rng.standard_normal(200)
    state = {s: np.zeros_like(values) for s in state_names(spec)}
    expected, squares = values.copy(), np.zeros(200)
    z = -expected * spec.beta / 0.1  # where nothing pulls, this is the start's own equation
    for step in range(1, 41):
        g = rng.standard_normal(200) * (rng.random(200) < 0.3)
        apply(spec, g, 1.0, values, values, state, 0.1, step)
        expected, z = proximal(spec, g, expected, z, squares, 0.1)
        squares += g**2
        np.testing.assert_allclose(values, expected, rtol=1e-12, atol=1e-12)
    assert 0 < (values == 0).sum() < 200  # l1 makes zeros, not only small numbers


def test_a_lower_rate_makes_ftrls_steps_smaller_and_leaves_the_values(way: str) -> None:
    # The paper's z / (√n / lr) would take them to a tenth of what they are.
    spec = Optimizer(name="ftrl")
    values = np.array([0.0, 0.0])
    state = {s: np.zeros_like(values) for s in state_names(spec)}
    for step in range(1, 11):
        apply(spec, np.array([1.0, -2.0]), 1.0, values, values, state, 1.0, step)
    before = values.copy()
    apply(spec, np.array([1e-6, 1e-6]), 1.0, values, values, state, 0.1, 11)
    np.testing.assert_allclose(values, before, atol=1e-6)
    assert np.abs(before).min() > 1


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_ftrl_leaves_all_as_it_is_where_there_is_no_rate(dtype: str, way: str) -> None:
    spec = Optimizer(name="ftrl")
    values = np.array([0.0, 1.0, -2.0], dtype)
    state = {s: np.zeros_like(values) for s in state_names(spec)}
    apply(spec, np.ones(3, dtype), 1.0, values, values, state, 0.5, 1)
    before = values.copy(), {s: array.copy() for s, array in state.items()}
    for step, rate in enumerate((0.0, 1e-310, 1e-44), 2):
        apply(spec, np.ones(3, dtype), 1.0, values, values, state, rate, step)
        if rate == 0.0:
            assert (values == before[0]).all()
            assert all((state[s] == before[1][s]).all() for s in state)
        assert np.isfinite(values).all()
        assert all(np.isfinite(array).all() for array in state.values())
    apply(spec, np.ones(3, dtype), 1.0, values, values, state, 0.5, 5)
    assert (values < before[0]).all(), "and learns again"


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not a dependency")
@pytest.mark.parametrize("name", [name for name in NAMES if name != "ftrl"])
def test_twenty_steps_follow_torch(name: str, way: str) -> None:
    torch: Any = pytest.importorskip("torch")
    spec = spec_of(name)
    rng = np.random.default_rng(1)
    values = rng.standard_normal(100)
    parameter = torch.nn.Parameter(torch.tensor(values.copy()))
    both = {"lr": 0.01, "weight_decay": 0.01}
    optimizer = {
        "sgd": lambda: torch.optim.SGD([parameter], **both),
        "momentum": lambda: torch.optim.SGD([parameter], momentum=0.9, **both),
        "nesterov": lambda: torch.optim.SGD([parameter], momentum=0.9, nesterov=True, **both),
        "adagrad": lambda: torch.optim.Adagrad([parameter], eps=1e-8, **both),
        "rmsprop": lambda: torch.optim.RMSprop([parameter], **both),
        "adam": lambda: torch.optim.Adam([parameter], **both),
        "adamw": lambda: torch.optim.AdamW([parameter], **both),
    }[name]()
    state = {s: np.zeros_like(values) for s in state_names(spec)}
    for step in range(1, 21):
        g = rng.standard_normal(100)
        parameter.grad = torch.tensor(g)
        optimizer.step()
        apply(spec, g, 1.0, values, values, state, 0.01, step)
    np.testing.assert_allclose(values, parameter.detach().numpy(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [1, 3, 49, 103, 16_384, 1_000_003])
def test_the_mean_of_equal_gradients_is_that_gradient(dtype: str, count: int, way: str) -> None:
    # 49 * (1 / 49) is below 1 in both dtypes; four workers' thousand steps of 1 must still end at 4,000.
    values = np.zeros(5, dtype)
    apply(Optimizer(name="sgd"), np.full(5, count, dtype), 1 / count, values, values, {}, 1.0, 1)
    assert values.tolist() == [-1.0] * 5


def test_a_scale_that_is_no_reciprocal_multiplies(way: str) -> None:
    values = np.zeros(1)
    apply(Optimizer(name="sgd"), np.ones(1), 0.3, values, values, {}, 1.0, 1)
    assert values.tolist() == [-0.3]


@pytest.mark.parametrize("name", ["adagrad", "rmsprop", "adam", "adamw"])
def test_a_parameter_without_gradient_stays_put_with_the_smallest_eps(name: str, way: str) -> None:
    values = np.ones(3, np.float32)
    spec = Optimizer(name=name, eps=1e-60)  # type: ignore[arg-type]
    state = {s: np.zeros_like(values) for s in state_names(spec)}
    apply(spec, np.zeros_like(values), 1.0, values, values, state, 0.1, 1)
    assert values.tolist() == [1.0, 1.0, 1.0]


def test_new_values_may_take_the_place_of_the_old(way: str) -> None:
    for name in NAMES:
        spec = spec_of(name)
        acc, values, out, state = arrays_for(spec, 33, "float32")
        in_place, same_state = values.copy(), {s: a.copy() for s, a in state.items()}
        apply(spec, acc, 0.5, values, out, state, 0.1, 4)
        apply(spec, acc, 0.5, in_place, in_place, same_state, 0.1, 4)
        np.testing.assert_array_equal(out, in_place)


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_are_added_and_overwritten(dtype: str, way: str) -> None:
    acc, g = np.arange(5, dtype=dtype), np.full(5, 2, dtype)
    g.flags.writeable = False
    add_into(acc, g)
    assert acc.tolist() == [2, 3, 4, 5, 6]
    copy_into(acc, g)
    assert acc.tolist() == [2] * 5


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 4095, 4096, 9999])
def test_one_bad_element_anywhere_is_found(dtype: str, bad: float, at: int, way: str) -> None:
    x = np.full(10_000, np.finfo(dtype).max, dtype)
    x[::2] = np.finfo(dtype).smallest_subnormal
    assert all_finite(x)
    x[at] = bad
    assert not all_finite(x)
    assert all_finite(x[:0])


def test_arrays_that_do_not_fit_are_refused(way: str) -> None:
    one = np.ones(4, np.float32)
    for other in (
        np.ones(5, np.float32),
        np.ones(4),
        np.ones((2, 2), np.float32),
        np.ones(8, np.float32)[::2],
    ):
        with pytest.raises(ValueError, match="do not fit"):
            add_into(one, other)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="float32 and float64"):
        all_finite(np.ones(2, np.float16))
    with pytest.raises(ValueError, match="count from 1"):
        apply(Optimizer(), one, 1.0, one, one, {}, 0.1, 0)


def test_an_unknown_way_is_refused_with_what_is_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen_kernels.cache_clear()
    monkeypatch.setenv("ELPS_KERNELS", "fortran")
    with pytest.raises(SetupError, match="expected numba or numpy"):
        add_into(np.ones(1), np.ones(1))
    chosen_kernels.cache_clear()


def test_warming_up_loads_every_kernel(way: str) -> None:
    for dtype in DTYPES:
        warm_up(dtype)


def test_kernels_compile_where_no_cache_can_be_written(tmp_path: Path) -> None:
    """As in an installation that belongs to another user, with a home that cannot be written: numba finds no place."""
    script = (
        "import numba.core.caching as caching\n"
        "caching.CacheImpl._locator_classes = []\n"
        "import numpy as np, elps.optim as optim\n"
        "a = np.ones(3, np.float32)\n"
        "from elps.optim.kernels import _jit\n"
        "from elps.optim import loops\n"
        "import numba.types as t\n"
        "k = _jit(loops.add_into, t.void(t.float32[::1], t.Array(t.float32, 1, 'C', readonly=True)))\n"
        "k(a, a.copy())\n"
        "assert a.tolist() == [2.0] * 3\n"
    )
    environment = {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
