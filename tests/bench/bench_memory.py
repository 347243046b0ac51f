"""Memory of each process of a stack at rest: resident, and the proportional share of what processes share."""

from __future__ import annotations

import time
from typing import Any

import psutil
from measuring import MIB, arguments, emit, memory_bytes, say
from private_stack import digits_job, in_stack, private_stack, run_job

from elps.client.control import Client
from elps.local import processes
from elps.local.record import StackRecord

SETTLE_S = 3.0


def report(record: StackRecord, when: str) -> None:
    """One line for each process, or for several of one name in one service, and their sum."""
    found: dict[str, list[tuple[int, int]]] = {}
    known = {"rabbitmq": record.broker, "redis": record.store, **record.services}
    for name, handle in known.items():
        for part in [handle, *processes.descendants([handle])] if handle is not None else []:
            kind = psutil.Process(part.pid).name().replace(" ", "_")
            shown = name if part is handle else f"{name}.{kind}"
            found.setdefault(shown, []).append(memory_bytes(part.pid))
    for shown, sizes in found.items():
        rss, pss = (sum(size) for size in zip(*sizes, strict=True))
        about: dict[str, Any] = {"pss_mib": pss / MIB, "processes": len(sizes)}
        to = "PSS over RSS"
        emit(f"memory.{when}.{shown}", rss / MIB, "MiB", ratio=pss / rss, to=to, **about)
    total = sum(pss for sizes in found.values() for _, pss in sizes)
    emit(f"memory.{when}.all", total / MIB, "MiB", of="PSS of all processes of the stack")


async def use(client: Client) -> None:
    """Run a job through, so that everything has been loaded once."""
    await run_job(client, digits_job("memory", iterations=50, workers=2))


def main() -> None:
    """Run all."""
    arguments(__doc__ or "")
    with private_stack(workers=2, shards=1) as record:
        time.sleep(SETTLE_S)
        say("memory: a stack at rest, then after a job")
        report(record, "fresh")
        in_stack(record, use)
        time.sleep(SETTLE_S)
        report(record, "used")


if __name__ == "__main__":
    main()
