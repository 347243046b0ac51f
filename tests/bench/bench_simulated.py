"""The workloads of Pollux under every policy, simulated: a line for each, where this machine has the traces.

The first four are the published ones, on 64 workers; jobs grow up to what their users asked for, which is also what
they get under `fifo`, a static parameter server. Then the same with changes of size made by a stop and a new start,
and a made-up crowd of 10,000 jobs on 1,000 workers (with `--full` under every policy), to tell how long a simulation
takes.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from measuring import arguments, emit, say

from elps.scheduler.core.policies import POLICIES
from elps.scheduler.simulator.simulating import simulate

WORKLOADS = 4
CROWD: dict[str, Any] = {
    "cluster": {"workers": 1000, "shards": 250},
    "profiles": {
        "small": {"shared_s": 2.0, "fixed_s": 0.1},
        "large": {"shared_s": 20.0, "fixed_s": 0.5},
    },
    "jobs": [
        {
            "id": "small", "profile": "small", "iterations": 500, "feedback": 20, "count": 8000,
            "every_s": 2.5, "random": True, "keep": 0.3, "workers": {"min": 1, "max": 16},
        },
        {
            "id": "large", "profile": "large", "iterations": 500, "feedback": 20, "count": 2000,
            "every_s": 10.0, "random": True, "keep": 0.3, "workers": {"min": 2, "max": 64},
        },
    ],
}  # fmt: skip
"""About two thirds of the cluster are asked for all the time."""


def traces() -> Path | None:
    """The folder with the workloads, if this machine has it."""
    for folder in Path(__file__).resolve().parents:
        if (found := folder / "shared" / "data" / "traces" / "pollux").is_dir():
            return found
    return None


def tell(name: str, content: Any, read: Any, policies: list[str], **wishes: Any) -> None:
    """A line for each policy; ratios are to `fifo`."""
    base: dict[str, Any] | None = None
    for policy in policies:
        say(f"simulated: {name}, {policy}")
        began = time.perf_counter()
        report = simulate(name, content, read, policies=[policy], **wishes)
        took_s = time.perf_counter() - began
        told = report["policies"][policy]
        base = told if policy == "fifo" else base
        emit(
            f"simulated.{name}.{policy}",
            told["completion_mean_s"],
            "s",
            ratio=base["completion_mean_s"] / told["completion_mean_s"] if base else None,
            to="how many times as long the mean job takes from its arrival to its end under fifo",
            feedback_ratio=base["feedback_mean_s"] / told["feedback_mean_s"] if base else None,
            **{key: value for key, value in told.items() if not isinstance(value, list)},
            jobs=report["jobs"],
            workers=report["workers"],
            simulated_in_s=took_s,
        )


def main() -> None:
    """Run all."""
    full = arguments(__doc__ or "").full
    every = list(POLICIES)
    if (folder := traces()) is None:
        say("simulated: the workloads of Pollux are not on this machine")
    else:
        texts = {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*.csv")}
        for n in range(1, WORKLOADS + 1):
            tell(f"pollux-{n}", texts[f"workload-{n}.csv"], texts.__getitem__, every)
        elastic = [name for name in every if POLICIES[name].resizes]
        tell("pollux-1-restarts", texts["workload-1.csv"], texts.__getitem__, elastic, restart=True)
    tell("crowd", CROWD, lambda path: path, every if full else ["fifo", "eps"])


if __name__ == "__main__":
    main()
