"""Clusters of emulated machines, and how jobs may share out their batches on them."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from emulated import ALIBABA, data_folder

SHARE = 64
"""Samples of an equal batch."""
TRACE_S = 0.35
"""Of a recorded row: about an iteration, as when it was recorded."""
TRACE_ROWS = 300
TRACED = 8
"""Workers of a recorded job that are used; each has ten or so."""

MODES: dict[str, dict[str, Any]] = {
    "fixed": {"policy": "fixed"},
    "ssp-3": {"sync": "ssp", "staleness": 3},
    "asp": {"sync": "asp"},
    "last+proportional": {"policy": "last+proportional"},
    "auto": {"policy": "auto"},
    "lb-bsp": {"policy": "lb-bsp"},
}
"""What is compared by default: without balance, with; ``lb-bsp`` is ``auto`` and tail leases."""
MORE_MODES = {
    name: {"policy": name} for name in ("average", "median", "narx", "line", "leader-straggler")
}


@dataclass(frozen=True)
class Cluster:
    """How machines are slowed."""

    name: str
    workers: int
    slowdown: str
    sample_ms: float
    """On an unburdened machine; the oracle's iterations then take 250 ms and more."""
    seconds: float
    steady: bool = True
    """Between steps, after which some iterations are not counted: to foresee a step is not asked."""
    aim: str = "rate"
    """What 0.95 of the oracle's ``rate``, or 0.7 of its ``gain`` over equal batches, is aimed at."""

    @property
    def batch(self) -> int:
        """Samples of an iteration."""
        return SHARE * self.workers


def clusters(workers: int, seconds: float, *, whole_traces: bool) -> list[Cluster]:
    """Those that are tried, for jobs of so many seconds; recorded jobs where this machine has them."""
    n = range(1, workers + 1)
    mix = ";".join(f"agent-{i}=factor:{(1, 1, 1, 2, 2, 2, 4, 4)[(i - 1) % 8]}" for i in n)
    walk = ";".join(f"agent-{i}=walk:seed={i},step=0.15,most=3@1s" for i in n)
    wave = ";".join(f"agent-{i}=square:1:3@5s" for i in n[: workers // 4])
    step = f"agent-2=step:4@{seconds / 2}s"
    found = [
        Cluster("mix_1_2_4", workers, mix, 2.5, seconds),
        Cluster("one_straggler", workers, f"agent-{workers}=factor:4", 3.5, seconds),
        Cluster("step", workers, step, 3.5, seconds),
        Cluster("square_wave", workers, wave, 3.5, seconds, steady=False, aim="gain"),
        Cluster("random_walk", workers, walk, 2.5, seconds, steady=False, aim="gain"),
    ]
    if workers == TRACED and (folder := data_folder()) is not None:
        long_s = TRACE_ROWS * TRACE_S if whole_traces else seconds
        for job in (1, 2, 3):
            file = f"{folder / ALIBABA.format(job)}#batch_time_norm"
            slow = ";".join(f"agent-{i}=trace:{file}?worker={i}@{TRACE_S}s" for i in n)
            found.append(
                Cluster(f"alibaba{job}", workers, slow, 3.5, long_s, steady=False, aim="gain")
            )
    return found
