from __future__ import annotations

import pytest

from elps.cli import figures


@pytest.mark.parametrize(
    ("s", "text"),
    [
        (0, "0 µs"),
        (0.000_35, "350 µs"),
        (0.001, "1 ms"),
        (0.0123, "12.3 ms"),
        (0.9999, "1.0 s"),
        (4.52, "4.5 s"),
        (59.96, "1:00"),
        (125, "2:05"),
        (3723, "1:02:03"),
        (300_000, "3 d 11 h"),
        (None, "–"),
        (float("inf"), "–"),
    ],
)
def test_durations_have_the_unit_that_fits(s: float | None, text: str) -> None:
    assert figures.seconds(s) == text


@pytest.mark.parametrize(
    ("n", "text"),
    [(0, "0"), (999, "999"), (9999, "9999"), (12_345, "12.3k"), (999_999, "1M"), (4.5e6, "4.5M")],
)
def test_counts_are_short(n: float, text: str) -> None:
    assert figures.count(n) == text


@pytest.mark.parametrize(
    ("n", "text"), [(10, "10 B"), (1536, "1.5 KiB"), (64 * 2**20, "64 MiB"), (3 * 2**40, "3 TiB")]
)
def test_sizes_are_in_binary_units(n: int, text: str) -> None:
    assert figures.size(n) == text


@pytest.mark.parametrize(
    ("x", "text"),
    [
        (None, "–"),
        (0.0, "0"),
        (0.123456, "0.1235"),
        (1.5e-7, "1.5e-07"),
        (123456.0, "1.23e+05"),
        (float("nan"), "not finite"),
        (float("-inf"), "not finite"),
    ],
)
def test_losses_have_four_digits(x: float | None, text: str) -> None:
    assert figures.value(x) == text


def test_a_clock_that_is_behind_gives_just_now() -> None:
    assert figures.ago(100.0, 90.0) == "just now"
    assert figures.ago(100.0, 165.0) == "1:05 ago"
