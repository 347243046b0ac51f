"""The class of a machine."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from elps.worker.agent.machine import own_kind
from elps.worker.core.kind import MOST_CHARACTERS, kind_of
from elps.worker.settings import read_settings

CPUINFO = """processor\t: 0
vendor_id\t: GenuineIntel
model name\t: Some(R)  CPU @ 2.50GHz
flags\t\t: fpu vme

processor\t: 1
model name\t: Some(R)  CPU @ 2.50GHz
"""


def test_machines_of_the_same_processors_are_of_one_class_unless_one_is_slowed() -> None:
    assert kind_of(CPUINFO, "x86_64", 2) == "2 x Some(R) CPU @ 2.50GHz"
    assert kind_of(CPUINFO, "x86_64", 4) != kind_of(CPUINFO, "x86_64", 2)
    assert (
        kind_of(CPUINFO, "x86_64", 2, "factor:4") == "2 x Some(R) CPU @ 2.50GHz, slowed: factor:4"
    )


def test_where_the_kernel_names_no_model_the_architecture_is_the_class() -> None:
    assert kind_of("processor\t: 0\nBogoMIPS\t: 50.00\n", "aarch64", 8) == "8 x aarch64"
    assert kind_of("", "", 1) == "1 x unknown"


@given(st.text(), st.text(), st.integers(1, 1024), st.text())
def test_there_is_always_a_class_of_bounded_length(
    cpuinfo: str, machine: str, cores: int, slowdown: str
) -> None:
    assert 0 < len(kind_of(cpuinfo, machine, cores, slowdown)) <= MOST_CHARACTERS


def test_an_operator_may_name_the_class_and_this_machine_has_one() -> None:
    assert read_settings({"ELPS_AGENT_KIND": "gpu-a"}).agent_kind == "gpu-a"
    assert own_kind() == own_kind() != own_kind("factor:2")
