"""What checkpoints of 64 MB cost a running job: iterations while one is written beside those before the first.

The job fills this machine by itself, so that what a checkpoint takes is taken from it, all in all as much however it is
spread. Told are the rate while one is being written (aim: 0.95), the rate between them, when the store tidies up what
it has appended, and the iterations that one costs in all.
"""

from __future__ import annotations

import statistics
from functools import partial
from typing import Any

from measuring import arguments, emit, median, say
from private_stack import Told, idle_job, in_stack, private_stack, run_job

from elps.client.control import Client

SIZE_BYTES = 64_000_000
EVERY = 160
"""Iterations, of some 80 ms here: time enough to write one at leisure."""
WARM_UP = 10


async def measure(client: Client, checkpoints: int) -> None:
    """Run one job that writes so many checkpoints."""
    job: dict[str, Any] = idle_job("checkpointed", SIZE_BYTES // 4, EVERY * checkpoints + 20, 1)
    job["checkpoint"] = {"every": EVERY, "every_s": 0}
    report(await run_job(client, job))


def report(told: Told) -> None:
    """Tell the iterations that overlap the writing of a checkpoint from the others."""
    done_at = {row.iteration + 1: row.at for row in told.rows}  # version to when it was complete
    last = told.rows[-1].iteration + 1
    spans = [
        (done_at[e.iteration], e.at)
        for e in told.events
        if e.what == "checkpointed" and e.iteration in done_at and e.iteration != last
    ]
    before: list[float] = []
    inside: list[float] = []
    between: list[float] = []
    for row in told.rows:
        if row.iteration < WARM_UP:
            continue
        if any(row.at > lo and row.at - row.duration_s < hi for lo, hi in spans):
            inside.append(row.duration_s)
        else:
            (before if row.at <= spans[0][0] else between).append(row.duration_s)
    about: dict[str, Any] = {"megabytes": 64, "workers": 1, "shards": 1, "checkpoints": len(spans)}
    to = "iterations before the first checkpoint"
    usual_s = statistics.fmean(before)
    emit("checkpoint.iteration_before", usual_s * 1e3, "ms", iterations=len(before), **about)
    for name, found in (("during", inside), ("between", between)):
        rate = 1 / statistics.fmean(found)
        aim: dict[str, Any] = {"aim": 0.95} if name == "during" else {}
        emit(
            f"checkpoint.rate_{name}",
            rate,
            "1/s",
            ratio=rate * usual_s,
            to=to,
            iterations=len(found),
            **about,
            **aim,
        )
    lost = (sum(inside) + sum(between)) / usual_s - len(inside) - len(between)
    emit("checkpoint.iterations_lost", lost / len(spans), "a checkpoint", **about)
    emit(
        "checkpoint.longest_iteration_during",
        max(inside) * 1e3,
        "ms",
        ratio=max(inside) / usual_s,
        to=to,
        **about,
    )
    seconds = median([hi - lo for lo, hi in spans])
    speed = SIZE_BYTES / 1e9 / seconds
    emit("checkpoint.written_in", seconds, "s", gb_per_s=speed, **about)


def main() -> None:
    """Run all."""
    options = arguments(__doc__ or "")
    with private_stack(workers=1, shards=1) as record:
        say("checkpoint: 64 MB")
        in_stack(record, partial(measure, checkpoints=15 if options.full else 5))


if __name__ == "__main__":
    main()
