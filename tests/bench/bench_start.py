"""From a published job message to word of the first finished iteration, on a stack that is up, and where it goes."""

from __future__ import annotations

from functools import partial
from typing import Any

from measuring import arguments, emit, median, p90, say
from private_stack import Told, in_stack, private_stack, run_job

from elps.client.control import Client

AIM_S = 1.0
ITERATIONS = 5
STEPS = ("queued", "starting", "worker_joined", "running")
"""Events on the way, in the order in which they come; the job's shard and trainers start between the middle two."""

JOBS: dict[str, dict[str, Any]] = {
    "mlp": {
        "task": "mlp",
        "task_args": {"hidden": [64]},
        "data": {"source": "digits", "test_fraction": 0.2, "scale": "standard"},
    },
    "softmax": {"task": "softmax", "data": {"source": "digits", "scale": "standard"}},
    "logistic": {"task": "logistic", "data": {"source": "breast_cancer", "scale": "standard"}},
    "linear": {"task": "linear", "data": {"source": "diabetes", "scale": "standard"}},
}
"""The built-in tasks."""


async def measure(client: Client, repeats: int) -> None:
    """Run the jobs one after the other, each task in turn."""
    told: dict[str, list[Told]] = {name: [] for name in JOBS}
    for turn in range(repeats + 1):
        for name, fields in JOBS.items():
            document = {
                "id": f"start-{name}-{turn}",
                "iterations": ITERATIONS,
                "batch": {"global": 64},
                "workers": {"min": 2, "max": 2},
                **fields,
            }
            one = await run_job(client, document)
            if turn:  # the first time warms the stack up
                told[name].append(one)
    for name, some in told.items():
        report(name, some)


def report(name: str, told: list[Told]) -> None:
    """Print the time to the first iteration and to each event on the way."""
    about: dict[str, Any] = {"task": name, "workers": 2, "shards": 1, "starts": len(told)}
    first = [one.first_row_at - one.submitted_at for one in told]
    emit(
        f"start.{name}",
        median(first),
        "s",
        ratio=median(first) / AIM_S,
        to="the aim of 1 s",
        **about,
    )
    emit(f"start.{name}_p90", p90(first), "s", **about)
    steps = {
        what: [e.at - one.submitted_at for one in told if (e := one.event(what)) is not None]
        for what in STEPS
    }
    steps["iteration_done"] = [one.rows[0].at - one.submitted_at for one in told]
    for what, times in steps.items():
        if times:
            share = median(times) / median(first)
            emit(
                f"start.{name}_until_{what}",
                median(times),
                "s",
                ratio=share,
                to="the whole",
                **about,
            )


def main() -> None:
    """Run all."""
    options = arguments(__doc__ or "")
    repeats = 30 if options.full else 10
    with private_stack(workers=2, shards=1) as record:
        say("start: from message to first iteration")
        in_stack(record, partial(measure, repeats=repeats))


if __name__ == "__main__":
    main()
