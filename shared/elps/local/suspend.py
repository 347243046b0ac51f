"""Asking the scheduler to checkpoint every running job before the stack goes down."""

from __future__ import annotations

import asyncio

from elps.contracts import topology
from elps.contracts.codec import decode, encode
from elps.contracts.errors import ElpsError
from elps.contracts.requests import Reply, SuspendCommand
from elps.messaging.amqp import AmqpBus

CONNECT_S = 5.0


def suspend_jobs(amqp_url: str, timeout_s: float) -> str:
    """Have all jobs checkpointed and queued, and return what the scheduler says.

    Raises an `ElpsError` when it refuses, or has not answered after `timeout_s`.
    """
    return asyncio.run(_suspend(amqp_url, timeout_s))


async def _suspend(amqp_url: str, timeout_s: float) -> str:
    bus = await AmqpBus.connect(amqp_url, name="elps down", timeout_s=CONNECT_S)
    try:
        body = encode(SuspendCommand())
        answer = await bus.request(topology.JOBS, topology.SUSPEND, body, timeout_s=timeout_s)
    finally:
        await bus.close()
    reply = decode(answer, Reply)
    if not reply.ok:
        raise ElpsError(f"the scheduler refused to suspend the jobs: {reply.reason}")
    return reply.reason or "every job is checkpointed"
