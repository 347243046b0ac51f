"""Memory of each process of a stack at rest: resident, and the proportional share of what processes share."""

from __future__ import annotations

import time
from functools import partial

from measuring import MIB, arguments, emit, memory_bytes, say
from private_stack import digits_job, in_stack, private_stack, run_job

from elps.client.control import Client
from elps.local import processes
from elps.local.record import StackRecord

SETTLE_S = 3.0


def report(record: StackRecord, when: str) -> None:
    """One line for each process, children included, and their sum."""
    total = 0
    known = {"rabbitmq": record.broker, "redis": record.store, **record.services}
    for name, handle in known.items():
        if handle is None:
            continue
        for part in [handle, *processes.descendants([handle])]:
            rss, pss = memory_bytes(part.pid)
            total += pss
            shown = name if part is handle else f"{name}.{_kind(part.pid)}"
            emit(
                f"memory.{when}.{shown}",
                rss / MIB,
                "MiB",
                ratio=pss / rss,
                to="PSS over RSS",
                pss_mib=pss / MIB,
            )
    emit(f"memory.{when}.all", total / MIB, "MiB", of="PSS of all processes of the stack")


def _kind(pid: int) -> str:
    import psutil

    return psutil.Process(pid).name().replace(" ", "_")


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
        in_stack(record, partial(use))
        time.sleep(SETTLE_S)
        report(record, "used")


if __name__ == "__main__":
    main()
