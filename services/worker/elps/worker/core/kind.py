"""The class of a machine, by which it is expected to be as fast as another: what its processors are."""

from __future__ import annotations

MOST_CHARACTERS = 200


def kind_of(cpuinfo: str, machine: str, cores: int, slowdown: str = "") -> str:
    """Model and number of processors. `cpuinfo` is the text of /proc/cpuinfo, which may be empty and has no model on
    some architectures: there it is `machine`, such as ``aarch64``. What is slowed on purpose is a class of its own.
    """
    models = [value for name, value in map(_pair, cpuinfo.splitlines()) if name == "model name"]
    model = " ".join((models[0] if models else machine).split())
    kind = f"{cores} x {model or 'unknown'}" + (f", slowed: {slowdown}" if slowdown else "")
    return kind[:MOST_CHARACTERS]


def _pair(line: str) -> tuple[str, str]:
    name, _, value = line.partition(":")
    return name.strip(), value.strip()
