"""Train from a program of one's own: hand a job in, follow it, ask what became of it, and kill another.

    make up
    .venv/bin/python examples/client.py

Every wait of the client is bounded and raises `RetryLater`, which says who did not answer.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from elps.client import Client, connect
from elps.contracts.messages import JobEvent
from elps.contracts.telemetry import IterationRow
from elps.local.find import find_stack

DIGITS: dict[str, Any] = {
    "task": "mlp",
    "task_args": {"hidden": [64]},
    "data": {"source": "digits", "test_fraction": 0.2, "scale": "standard"},
    "optimizer": {"name": "adam", "lr": 0.01},
    "batch": {"global": 64},
    "evaluate": {"every": 50},
}
"""A job document; a job file has the same fields."""


async def main() -> None:
    """Find the stack that runs here, and use it."""
    stack = find_stack(Path.cwd(), os.environ)
    async with connect(stack.amqp_url) as client:
        health = await client.health()
        print(f"the stack is {health.status}: {health.parts['workers'].detail} to work for us")
        await train(client)
        await give_up(client)


async def train(client: Client) -> None:
    """Hand a job in, tell what happens to it, and look at it when it has ended."""
    reply = await client.submit({**DIGITS, "passes": 6})
    if not reply.ok or reply.job is None:
        raise SystemExit("\n".join([reply.reason, *reply.problems]))
    ended = asyncio.create_task(client.ended(reply.job))
    async with client.follow(reply.job) as stream:
        while not ended.done():
            match await stream.next(timeout_s=0.5):
                case JobEvent(what="evaluated", iteration=at, metrics=metrics):
                    print(f"  {reply.job} after {at} iterations: {metrics}")
                case JobEvent(what=what, reason=reason):
                    print(f"  {reply.job} {what}: {reason}")
                case IterationRow(iteration=at, loss=loss, workers=workers) if at % 40 == 0:
                    print(f"  iteration {at} by {len(workers)}: loss {loss:.4f}")
    job = await ended
    print(f"{job.id} has {job.state.value} with {job.metrics} after {job.training_s:.1f} s")
    page = await client.iterations(job.id, limit=3)
    for row in page.rows:
        times = ", ".join(f"{w.worker} {1e3 * w.compute_s:.1f} ms" for w in row.workers)
        print(f"  iteration {row.iteration}: {row.samples} samples, computed in {times}")


async def give_up(client: Client) -> None:
    """Kill a job that would train for long."""
    reply = await client.submit({**DIGITS, "passes": 100_000})
    assert reply.job is not None, reply
    await client.kill(reply.job, reason="the example is over")
    job = await client.ended(reply.job)
    print(f"{job.id} is {job.state.value}: {job.reason}")
    print("all jobs:", ", ".join(f"{job.id} {job.state.value}" for job in await client.jobs()))


if __name__ == "__main__":
    asyncio.run(main())
