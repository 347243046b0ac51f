"""Emulated machines: what a text says of their speed, and that a computation is drawn out by just that."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elps.balance.slowdown import MOST, Recording, Slowdown, Trace, read, text_for
from elps.contracts.errors import SetupError
from elps.contracts.ids import AgentId
from elps.runtime.emulating import SCHEDULED, Machine, opened, queued_s
from elps.worker.settings import read_settings

times = st.floats(0, 1e4)
factors = st.floats(1, MOST).map(lambda x: round(x, 3))
spans = st.floats(0.5, 1000).map(lambda x: round(x, 3))


def pattern(text: str) -> Slowdown:
    found = read(text)
    assert not isinstance(found, Recording)
    return found


@given(factors, times)
def test_a_constant_factor_is_always_the_same(factor: float, at: float) -> None:
    assert pattern(f"factor:{factor}").factor(at) == factor


@given(factors, factors, spans, times)
def test_a_step_has_one_factor_before_its_moment_and_the_other_from_then_on(
    before: float, after: float, moment: float, at: float
) -> None:
    step = pattern(f"step:{before}:{after}@{moment}s")
    assert step.factor(at) == (after if at >= moment else before)
    assert pattern(f"step:{after}@{moment}s").factor(0) == 1


@given(factors, factors, spans, times)
def test_a_square_wave_comes_again_after_both_halves_and_has_the_other_factor_between(
    first: float, second: float, each: float, at: float
) -> None:
    wave = pattern(f"square:{first}:{second}@{each}s")
    turn = int(at / each)
    middle = (turn + 0.5) * each  # away from the edges, which rounding moves
    assert wave.factor(middle) == (second if turn % 2 else first)
    assert wave.factor(middle + 2 * each) == wave.factor(middle)
    assert {wave.factor(middle), wave.factor(middle + each)} == {first, second}


@settings(max_examples=50)
@given(
    st.integers(0, 10**18 - 1),
    st.floats(0.01, 3).map(lambda x: round(x, 3)),
    st.floats(1.1, 50).map(lambda x: round(x, 3)),
    st.lists(st.floats(0, 300), min_size=1, max_size=20),
)
def test_a_walk_keeps_its_bounds_and_is_fixed_by_its_seed_in_whatever_order_it_is_asked(
    seed: int, step: float, most: float, asked: list[float]
) -> None:
    text = f"walk:seed={seed},step={step},most={most}@1s"
    one, other = pattern(text), pattern(text)
    found = [one.factor(at) for at in asked]
    assert all(1 <= factor <= most * (1 + 1e-9) for factor in found)
    assert found == [other.factor(at) for at in reversed(asked)][::-1]
    assert one.factor(0) == 1


def test_walks_of_other_seeds_go_other_ways() -> None:
    one, other = pattern("walk:seed=1"), pattern("walk:seed=2@1s")
    assert [one.factor(t) for t in range(20)] != [other.factor(t) for t in range(20)]


@given(st.lists(st.floats(0.5, 400), min_size=1, max_size=20), spans, times)
def test_a_trace_gives_its_rows_in_turn_over_the_least_and_begins_anew(
    values: list[float], each: float, at: float
) -> None:
    recording = read(f"trace:a file.csv#ms@{each}s")
    assert isinstance(recording, Recording)
    trace = recording.trace([{"ms": repr(value)} for value in values])
    assert trace.factors == tuple(value / min(values) for value in values)
    row = int(at / each)
    assert trace.factor((row + 0.5) * each) == trace.factors[row % len(values)]


def test_rows_of_one_machine_are_over_the_least_of_all_machines(tmp_path: Path) -> None:
    file = tmp_path / "job.csv"
    with file.open("w", newline="") as out:
        csv.writer(out).writerows([["worker", "ms"], [0, 50], [1, 100], [0, 25], [1, 75]])
    assert opened(f"trace:{file}#ms?worker=1@300ms") == Trace((4.0, 3.0), 0.3)
    assert opened(f"trace:{file}#ms@1min") == Trace((2.0, 4.0, 1.0, 3.0), 60.0)


@pytest.mark.parametrize(
    "text",
    [
        "slow", "factor", "factor:", "factor:x", "factor:nan", "factor:0.5", "factor:1e9", "step:4", "step:4@",
        "step:4@10", "step:1:2:3@1s", "square:1:3@0s", "square:3@s", "walk:seed", "walk:seed=-1", "walk:seed=x",
        "walk:speed=1", "walk:most=1", "walk:step=0", "walk:@0s", "trace:", "trace:f.csv@1s", "trace:f.csv#@1s",
        "trace:#c@1s", "trace:f.csv#c", "trace:f.csv#c?worker@1s", "trace:f.csv#c@0s", "agent 1=factor:2", "=factor:2",
    ],
)  # fmt: skip
def test_a_wrong_text_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected factor:4 .*step:4@10s .*trace:FILE") as caught:
        text_for(AgentId("agent-1"), f"factor:2; {text}")
    assert text in str(caught.value)


def test_an_agent_goes_by_what_names_it_and_else_by_what_names_nobody() -> None:
    text = " agent-2=step:4@10s;factor:2; agent-3=walk:seed=3 "
    assert text_for(AgentId("agent-1"), text) == "factor:2"
    assert text_for(AgentId("agent-2"), text) == "step:4@10s"
    assert text_for(AgentId("agent-3"), text) == "walk:seed=3"
    assert text_for(AgentId("agent-1"), "agent-2=factor:3") == ""


def test_the_setting_is_read_for_the_agent_and_a_wrong_one_keeps_it_from_starting(
    tmp_path: Path,
) -> None:
    env = {"ELPS_AGENT_ID": "agent-2", "ELPS_WORKER_SLOWDOWN": "agent-2=factor:3;agent-1=factor:4"}
    assert read_settings(env).worker_slowdown == "factor:3"
    for text, told in (
        ("agent-9=fast:4", "ELPS_WORKER_SLOWDOWN: 'fast' is no pattern"),
        (f"trace:{tmp_path}/none.csv#ms@1s", "none.csv cannot be read: No such file"),
    ):
        with pytest.raises(SetupError, match=told):
            read_settings({"ELPS_WORKER_SLOWDOWN": text})


@pytest.mark.parametrize(
    ("column", "lines", "told"),
    [
        ("ms", "s\n1\n", "has no column 'ms', but 's'"),
        ("ms", "", "has no column 'ms', but no rows"),
        ("ms?worker=1", "ms\n1\n", "has no column 'worker'"),
        ("ms?worker=1", "ms,worker\n1,2\n", "no row has '1' as 'worker'"),
        ("ms", "ms\n1\nslow\n", "line 3: 'ms' is 'slow', expected a number above 0"),
        ("ms", "ms\n1\n0\n", "line 3: 'ms' is '0'"),
        ("ms", "ms\n1\n5000\n", "ratio is above 1000"),
        ("b", "a,b\n1\n", "line 2: 'b' is ''"),
    ],
)
def test_a_trace_that_does_not_fit_is_refused_with_the_reason(
    tmp_path: Path, column: str, lines: str, told: str
) -> None:
    (tmp_path / "t.csv").write_text(lines)
    with pytest.raises(SetupError) as caught:
        opened(f"trace:{tmp_path}/t.csv#{column}@1s")
    assert told in str(caught.value)


class Clock:
    """Time that passes by computing and by sleeping only."""

    def __init__(self) -> None:
        self.now, self.slept = 1000.0, 0.0

    def sleep(self, seconds: float) -> None:
        self.slept += seconds
        self.now += seconds


@given(factors, st.lists(st.floats(0, 10), min_size=1, max_size=5))
def test_a_computation_takes_as_many_times_as_long_as_the_factor_says(
    factor: float, takes: list[float]
) -> None:
    clock = Clock()
    machine = Machine(pattern(f"factor:{factor}"), lambda: clock.now, clock.sleep, lambda: 0.0)
    for seconds in takes:
        began = clock.now
        with machine.computing():
            clock.now += seconds
        assert clock.now - began == pytest.approx(factor * seconds, abs=1e-6)


@given(factors, st.floats(0, 10), st.floats(0, 10))
def test_a_wait_for_a_processor_is_not_multiplied(
    factor: float, computes: float, waits: float
) -> None:
    clock, waited = Clock(), 0.0
    machine = Machine(pattern(f"factor:{factor}"), lambda: clock.now, clock.sleep, lambda: waited)
    with machine.computing():
        clock.now += computes + waits
        waited += waits
    assert clock.now - 1000 == pytest.approx(max(factor * computes, computes + waits), abs=1e-6)


def test_the_kernel_tells_how_long_a_thread_waited_for_a_processor() -> None:
    if not SCHEDULED.exists():
        pytest.skip("this kernel does not tell")
    waited = []

    def beside_another() -> None:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # of this thread alone
        burner = subprocess.Popen([sys.executable, "-c", "while True: pass"])  # inherits it
        try:
            before, until = queued_s(), time.monotonic() + 20
            while time.monotonic() < until and queued_s() - before < 0.05:
                pass
            waited.append(queued_s() - before)
        finally:
            burner.kill()
            burner.wait()

    thread = threading.Thread(target=beside_another)
    thread.start()
    thread.join()
    assert waited[0] >= 0.05


def test_time_counts_from_the_first_computation_and_a_factor_from_where_one_begins() -> None:
    clock = Clock()
    machine = Machine(pattern("step:3@10s"), lambda: clock.now, clock.sleep, lambda: 0.0)
    assert machine.factor == 1
    clock.now += 50
    assert machine.factor == 1
    took = []
    for _ in range(3):
        began = clock.now
        with machine.computing():
            clock.now += 8
        took.append(clock.now - began)
    assert took == [8, 8, 24]
    assert machine.factor == 3


def test_a_real_machine_never_sleeps_and_a_computation_that_fails_is_not_drawn_out() -> None:
    clock = Clock()
    with Machine(sleep=clock.sleep).computing():
        pass
    machine = Machine(pattern("factor:5"), lambda: clock.now, clock.sleep, lambda: 0.0)
    with pytest.raises(ZeroDivisionError), machine.computing():
        raise ZeroDivisionError
    assert clock.slept == 0
