"""What clipping by the global norm costs: jobs train with and without, in turns, and their iterations are compared.

Each iteration then has one more round trip between the shards, and one more pass over what was summed.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from measuring import arguments, emit, median, say
from private_stack import in_stack, private_stack, run_job

from elps.client.control import Client

BATCH, WARM_UP = 64, 5
SIZES = {1: 0.02, 64: 0.3}
"""Megabytes of parameters to seconds of computing in an iteration."""


def job(name: str, megabytes: int, iterations: int, *, clips: bool) -> dict[str, Any]:
    """A job on two shards whose two workers sleep over their samples."""
    return {
        "id": name,
        "task": "idle:Idle",
        "task_args": {"size": megabytes * 250_000, "sample_s": SIZES[megabytes] * 2 / BATCH},
        "iterations": iterations,
        "batch": {"global": BATCH, "policy": "fixed"},
        "optimizer": {"name": "sgd", "lr": 0.01} | ({"clip_norm": 1.0} if clips else {}),
        "workers": {"min": 2, "max": 2},
        "shards": {"min": 2, "max": 2},
        "checkpoint": {"every_s": 0},
    }


async def measure(client: Client, pairs: int) -> None:
    """Every size, with and without in turns."""
    for megabytes, computing_s in SIZES.items():
        found: dict[bool, list[float]] = {False: [], True: []}
        for pair in range(pairs):
            for clips in (False, True):
                say(
                    f"clipping: {megabytes} MB, {'with' if clips else 'without'}, {pair + 1} of {pairs}"
                )
                iterations = WARM_UP + round(8 / computing_s)
                document = job(
                    f"clip-{megabytes}-{pair}-{clips:d}", megabytes, iterations, clips=clips
                )
                rows = (await run_job(client, document)).rows
                found[clips] += [row.duration_s for row in rows if row.iteration >= WARM_UP]
        without, having = median(found[False]), median(found[True])
        emit(
            "clipping.iteration",
            having * 1e3,
            "ms",
            ratio=having / without,
            to="the iteration without clipping",
            without_ms=without * 1e3,
            megabytes=megabytes,
        )


def main() -> None:
    """Run all."""
    options = arguments(__doc__ or "")
    with private_stack(workers=2, shards=2) as record:
        in_stack(record, partial(measure, pairs=4 if options.full else 2))


if __name__ == "__main__":
    main()
