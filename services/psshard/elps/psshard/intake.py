"""Orders from the network: decoded, and checked where their types say too little.

What a job or a shard is called becomes part of routing keys and of keys in the store, and who is first in the list
leads. Everything wrong raises `InvalidDocument`, so that the bus buries the order with the reason.
"""

from __future__ import annotations

from elps.contracts.codec import decode
from elps.contracts.errors import InvalidDocument
from elps.contracts.ids import id_problem, worker_id_problem
from elps.contracts.messages import DirectJob, HostJob, ShardCommand


def read_order(body: bytes) -> ShardCommand:
    """An order of a scheduler."""
    order: ShardCommand = decode(body, ShardCommand)  # type: ignore[arg-type]  # a union
    problems = [_named("job", id_problem(order.job))]
    if isinstance(order, HostJob | DirectJob):
        problems += [_named("shard", id_problem(address.shard)) for address in order.shards]
        problems += [_named("worker", worker_id_problem(worker)) for worker in order.workers]
    if isinstance(order, HostJob) and not order.shards:
        problems.append("shards: none, so that nobody leads")
    if found := [problem for problem in problems if problem]:
        raise InvalidDocument("order", found)
    return order


def _named(what: str, problem: str | None) -> str:
    return f"{what}: {problem}" if problem else ""
