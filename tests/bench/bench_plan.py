"""How long it takes from the row of a finished iteration to the plan of the coming batches, and where the time goes.

The same messages that the services get are listened to: rows from the leader, timings from the monitor, plans from the
scheduler. A plan is counted from the newest row whose timings came before it.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

from measuring import arguments, emit, median, p90, say
from private_stack import private_stack, run_job

from elps.client.control import Client
from elps.contracts import topology
from elps.contracts.codec import decode
from elps.contracts.messages import IterationRows, IterationTimings
from elps.local.record import StackRecord
from elps.messaging.amqp import AmqpBus
from elps.messaging.port import Delivery, Queue

WORKERS, WARM_UP = 2, 5
ITERATIONS_MS = (250, 20, 5)
SLOWDOWN = "agent-1=square:1:3@0.7s; agent-2=square:3:1@0.9s"
"""Machines that jump about, so that plans change all the time."""


@dataclass
class Heard:
    """What was heard of one job, by Unix times."""

    told_at: dict[int, float] = field(
        default_factory=dict
    )  #: iteration to when its leader made the row
    rows_at: dict[int, float] = field(default_factory=dict)  #: newest row of a message
    timings_at: dict[int, float] = field(default_factory=dict)
    plans: list[tuple[int, float]] = field(
        default_factory=list
    )  #: newest iteration timed, when it came
    taken_s: list[float] = field(default_factory=list)  #: iterations

    async def on_rows(self, delivery: Delivery) -> None:
        message = decode(delivery.body, IterationRows)
        self.told_at |= {row.iteration: row.at for row in message.rows}
        self.taken_s += [row.duration_s for row in message.rows if row.iteration >= WARM_UP]
        self.rows_at[message.rows[-1].iteration] = time.time()

    async def on_timings(self, delivery: Delivery) -> None:
        self.timings_at[decode(delivery.body, IterationTimings).iteration] = time.time()

    async def on_command(self, delivery: Delivery) -> None:
        if b'"batch_plan"' in delivery.body and self.timings_at:
            self.plans.append((max(self.timings_at), time.time()))

    def stages_ms(self) -> dict[str, list[float]]:
        """Of each plan once its job is warm; a plan that is said again is not counted."""
        out: dict[str, list[float]] = {"row": [], "timings": [], "plan": [], "whole": []}
        seen: set[int] = set()
        for t, at in self.plans:
            if t < WARM_UP or t in seen or t not in self.told_at or t not in self.rows_at:
                continue
            seen.add(t)
            told, rows, timings = self.told_at[t], self.rows_at[t], self.timings_at[t]
            stages = (rows - told, timings - rows, at - timings, at - told)
            for name, took in zip(out, stages, strict=True):
                out[name].append(took * 1e3)
        return out


def job(name: str, iteration_ms: int, iterations: int) -> dict[str, Any]:
    """Iterations of about this length."""
    batch = 64
    return {
        "id": name,
        "task": "sleeping:Sleeping",
        "task_args": {"sample_ms": iteration_ms * WORKERS / batch},
        "iterations": iterations + WARM_UP,
        "batch": {"global": batch, "policy": "last"},
        "optimizer": {"name": "sgd", "lr": 0.01},
        "workers": {"min": WORKERS, "max": WORKERS},
        "checkpoint": {"every_s": 0},
    }


async def measure(record: StackRecord, repeats: int, seconds: float) -> None:
    """Jobs of all lengths in turns."""
    found: dict[int, list[Heard]] = {each: [] for each in ITERATIONS_MS}
    bus = await AmqpBus.connect(record.amqp_url, name="bench", timeout_s=20.0)
    try:
        for turn in range(repeats):
            for each in ITERATIONS_MS:
                heard, name = Heard(), f"bench-{each}-{turn}"
                queues = (
                    ("rows", (topology.TELEMETRY, topology.telemetry_key(name)), heard.on_rows),
                    ("timings", (topology.TELEMETRY, topology.timings_key(name)), heard.on_timings),
                    ("plans", (topology.COMMANDS, "shard-1"), heard.on_command),
                )
                held = [
                    await bus.subscribe(Queue(f"{name}.{what}", (binding,)), handler)
                    for what, binding, handler in queues
                ]
                await run_job(
                    Client(bus, timeout_s=20.0), job(name, each, round(seconds * 1e3 / each))
                )
                for subscription in held:
                    await subscription.cancel()
                found[each].append(heard)
    finally:
        await bus.close()
    for each, all_heard in found.items():
        taken_ms = median([s for heard in all_heard for s in heard.taken_s]) * 1e3
        stages: dict[str, list[float]] = {}
        for heard in all_heard:
            for name, took in heard.stages_ms().items():
                stages.setdefault(name, []).extend(took)
        about = {"iteration_ms": taken_ms, "plans": len(stages["whole"]), "workers": WORKERS}
        for name, took in stages.items() if stages["whole"] else ():
            more = about | {"p90": p90(took)}
            emit(
                f"plan.{each}ms.{name}",
                median(took),
                "ms",
                ratio=median(took) / taken_ms,
                to="the iteration",
                **more,
            )


def main() -> None:
    """Run all."""
    full = arguments(__doc__ or "").full
    with private_stack(WORKERS, 1, ELPS_WORKER_SLOWDOWN=SLOWDOWN) as record:
        say("plan: from the row of an iteration to the plan of the coming batches")
        asyncio.run(measure(record, 6 if full else 2, 10.0 if full else 5.0))


if __name__ == "__main__":
    main()
