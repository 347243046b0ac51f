"""What `make status` shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import psutil

from elps.contracts.urls import masked
from elps.local import health, processes
from elps.local.paths import paths_in_force
from elps.local.processes import Handle, is_alive
from elps.local.record import StackRecord
from elps.local.services import kind_of

NOT_OURS = "not ours"
"""State of a broker or store that ELPS_AMQP_URL or ELPS_REDIS_URL names: only the monitor speaks of it."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One process of the stack."""

    name: str
    pid: int | None
    state: str
    """``ok``, ``dead``, or what the monitor says against it."""
    rss_bytes: int
    """Resident memory, children (trainers) included."""
    address: str
    log: str


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The whole stack."""

    status: str
    """``ok``, ``degraded`` or ``down``."""
    problems: list[str]
    monitor_url: str
    rows: list[Row]
    paths: dict[str, str] = {}
    """ELPS_TASK_PATH and ELPS_DATA_PATH as the agents have them."""


def report(
    home: Path, record: StackRecord | None, logs: Mapping[str, Path], token: str | None
) -> Report:
    """Look at every process on record and ask the monitor."""
    if record is None or not record.is_up:
        return Report(
            status="down",
            problems=[f"no stack runs from {home}: start it with 'make up'"],
            monitor_url="",
            rows=[],
        )
    said = health.ask(record.monitor_url, token)
    handles = record.services
    missing = said.missing({name: handle.pid for name, handle in handles.items()})
    wrong = dict(line.split(": ", 1) for line in missing)
    rows = []
    for name, handle, address in _parts(record):
        state = "ok" if handle is None or is_alive(handle) else "dead"
        if state == "ok" and name in wrong:
            state = wrong[name]
        log = str(logs[name]) if name in logs else "-"
        rows.append(_row(name, handle, state, address, log))
    dead = [f"{row.name} is dead: 'make up' starts it again" for row in rows if row.state == "dead"]
    problems = dead + [
        line for line in missing if line.partition(":")[0] not in {r.name for r in rows}
    ]
    well = not problems and all(row.state in ("ok", NOT_OURS) for row in rows)
    status = "ok" if well else "degraded"
    return Report(
        status=status,
        problems=problems,
        monitor_url=record.monitor_url,
        rows=rows,
        paths=paths_in_force(record, home),
    )


def _parts(record: StackRecord) -> list[tuple[str, Handle | None, str]]:
    parts: list[tuple[str, Handle | None, str]] = [
        ("rabbitmq", record.broker, masked(record.amqp_url)),
        ("redis", record.store, masked(record.redis_url)),
    ]
    for name, handle in record.services.items():
        parts.append((name, handle, record.monitor_url if kind_of(name) == "monitor" else "-"))
    return parts


def _row(name: str, handle: Handle | None, state: str, address: str, log: str) -> Row:
    if handle is None:
        return Row(name=name, pid=None, state=NOT_OURS, rss_bytes=0, address=address, log="-")
    rss = 0
    for each in (handle, *processes.descendants([handle])):
        try:
            rss += psutil.Process(each.pid).memory_info().rss if is_alive(each) else 0
        except psutil.Error:
            continue
    return Row(name=name, pid=handle.pid, state=state, rss_bytes=rss, address=address, log=log)


def as_table(report: Report) -> str:
    """The report for people."""
    lines: list[Sequence[str]] = [("PART", "PID", "STATE", "MEMORY", "ADDRESS", "LOG")]
    for row in report.rows:
        memory = f"{row.rss_bytes / 2**20:.0f} MiB" if row.rss_bytes else "-"
        lines.append((row.name, str(row.pid or "-"), row.state, memory, row.address, row.log))
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    told = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
        if report.rows
    ]
    told += [f"{variable}={path}" for variable, path in report.paths.items()]
    return "\n".join([*told, *report.problems, f"the stack is {report.status}"])
