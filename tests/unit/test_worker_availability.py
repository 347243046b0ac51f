"""What the kernel's counters say of a trainer's machine."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elps.worker.core.availability import (
    Available,
    Counted,
    available_bytes,
    idle_s,
    ran_and_waited,
)

seconds = st.floats(0, 1e6)


def test_the_counters_are_found_in_the_kernels_words() -> None:
    assert ran_and_waited(b"2500000000 500000000 17\n") == (2.5, 0.5)
    assert idle_s(b"cpu  4566273 14382 839801 2400 100 0 82913\ncpu0 1 2 3 4 5\n", 100) == 25.0
    assert available_bytes(b"MemTotal: 9 kB\nMemFree: 8 kB\nMemAvailable:   24092744 kB\n") == (
        24092744 * 1024
    )


@pytest.mark.parametrize("text", [b"", b"\n", b"cpu", b"1", b"MemAvailable:", b"cpu  1 2 3 x y"])
def test_what_is_not_there_is_not_known(text: bytes) -> None:
    assert ran_and_waited(text) == (None, None)
    assert idle_s(text, 100) is None
    assert available_bytes(text) is None


@given(st.none() | st.floats(0, 64), st.none() | st.floats(0, 1))
def test_one_that_waits_could_have_an_idle_core_and_never_more_than_one(
    host: float | None, before: float | None
) -> None:
    waiting = Available(before, host, 7).waiting()
    assert waiting == Available(None if host is None else min(host, 1.0), None, 7)


@given(seconds, seconds, st.floats(0.01, 100), st.floats(0, 100), st.floats(0, 100))
def test_a_share_is_of_the_time_that_was_wanted_and_idle_cores_of_the_time_that_passed(
    ran: float, waited: float, passed: float, more_ran: float, more_waited: float
) -> None:
    before = Counted(10.0, ran, waited, 1.0, 7)
    now = Counted(10.0 + passed, ran + more_ran, waited + more_waited, 1.0 + 3 * passed, 8)
    found = Available.between(before, now, Available(0.25, 9.0, 7))
    assert found.memory_bytes == 8
    assert found.cpu_host == pytest.approx(3.0)
    assert found.cpu_process is not None
    assert 0 <= found.cpu_process <= 1
    if more_ran > 0.1:  # else digits are lost beside large counters
        share = more_ran / (more_ran + more_waited)
        assert found.cpu_process == pytest.approx(share, rel=1e-6, abs=1e-6)


def test_one_that_wanted_no_processor_is_told_as_before_and_counters_that_fell_do_no_harm() -> None:
    known = Available(0.25, 1.5, 7)
    before, still = Counted(1.0, 2.0, 2.0, 5.0, 7), Counted(2.0, 2.0, 2.0, 4.0, None)
    assert Available.between(before, still, known) == Available(0.25, 0.0, None)
    unknown = Counted(2.0, None, None, None, None)
    assert Available.between(before, unknown, known) == Available(0.25, 1.5, None)
    assert Available.between(unknown, before, Available()) == Available(None, None, 7)


def test_a_machine_that_is_emulated_to_be_slower_has_less_to_give() -> None:
    available = Available(1.0, 2.0, 4096)
    assert available.told(1.0) == {"cpu_process": 1.0, "cpu_host": 2.0, "memory_bytes": 4096}
    assert available.told(4.0) == {"cpu_process": 0.25, "cpu_host": 0.5, "memory_bytes": 4096}
    assert Available().told(4.0) == {}
