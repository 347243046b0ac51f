"""What a trainer notices of the machine that it really runs on."""

from __future__ import annotations

import math
import os
import sys

import pytest

from elps.worker.trainer.noticing import LOOK_S, Noticing


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
def test_a_trainer_is_told_what_its_machine_has_left_and_looks_only_so_often() -> None:
    clock = [0.0]
    noticing = Noticing(lambda: clock[0])
    assert noticing.now(1.0) == {}
    clock[0] += LOOK_S * 0.9
    assert noticing.now(1.0) == {}
    math.factorial(20_000)  # wants a processor
    clock[0] += LOOK_S
    found = noticing.now(1.0)
    assert 0 <= found["cpu_process"] <= 1
    assert found["cpu_host"] >= 0
    assert (
        1 << 20 < found["memory_bytes"] <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    )
    clock[0] += LOOK_S / 2
    assert noticing.now(1.0) == found
    assert noticing.now(2.0)["cpu_process"] == pytest.approx(found["cpu_process"] / 2, abs=1e-3)
    waiting = noticing.waiting(2.0)
    assert waiting.keys() == {"cpu_process", "memory_bytes"}
    assert waiting["cpu_process"] == pytest.approx(min(1.0, found["cpu_host"]) / 2, abs=1e-3)
    noticing.close()
