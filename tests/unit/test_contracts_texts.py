"""Texts of bounded size."""

from __future__ import annotations

import pytest

from elps.contracts.texts import shortened


@pytest.mark.parametrize("length", [10, 11, 500])
def test_a_text_keeps_both_its_ends_and_its_bound(length: int) -> None:
    text = "abc" + "-" * 1000 + "xyz"
    cut = shortened(text, length)
    assert len(cut) <= length
    assert cut.startswith("abc")
    assert cut.endswith("xyz")
    assert " … " in cut


def test_a_text_that_fits_stays_as_it_is() -> None:
    assert shortened("abc", 3) == "abc"
