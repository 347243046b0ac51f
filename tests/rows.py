"""Rows of finished iterations as tests need them: one that is like any other, but for what a test says of it."""

from __future__ import annotations

from typing import Any

from elps.contracts.ids import WorkerId
from elps.contracts.telemetry import IterationRow, WorkerTiming


def iteration_row(iteration: int, workers: int = 1, **fields: Any) -> IterationRow:
    """A row of workers ``j-w1`` and so on, with 16 samples each."""
    timings = [
        WorkerTiming(
            worker=WorkerId(f"j-w{i + 1}"),
            samples=16,
            compute_s=0.1,
            pull_s=0.02,
            wait_s=0.03,
            push_s=0.04,
            lease_s=0.05,
        )
        for i in range(workers)
    ]
    usual: dict[str, Any] = {
        "passes": 0.5,
        "samples": 32,
        "skipped": 0,
        "loss": 0.5,
        "duration_s": 0.5,
        "at": 1.0,
        "term": 1,
        "plan": 1,
        "lr": 0.1,
        "workers": timings,
    }
    return IterationRow(iteration=iteration, **(usual | fields))
