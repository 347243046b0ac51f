"""Which of Redis' refusals heal by themselves, as the library words them."""

from __future__ import annotations

import pytest

from elps.storage.server import _TEMPORARY_TEXT

FULL = "MISCONF Errors writing to the AOF file: No space left on device"


@pytest.mark.parametrize(
    "text",
    [
        FULL,
        f"Command # 1 (SET k v) of pipeline caused error: {FULL}",
        f"Command # 1 (SET k <memory at 0x7f>) of pipeline caused error: ('{FULL}',)",
        "BUSY Redis is busy running a script",
    ],
)
def test_a_full_disk_heals_alone_and_within_a_pipeline(text: str) -> None:
    assert _TEMPORARY_TEXT.search(text)


def test_a_key_that_speaks_of_it_is_no_such_refusal() -> None:
    assert not _TEMPORARY_TEXT.search("WRONGTYPE of key MISCONF")
