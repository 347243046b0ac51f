"""All findings, from all readings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from elps.doctor.core import broker, store
from elps.doctor.core.finding import Finding, ok, problem, size, warning
from elps.doctor.core.readings import FolderReading, MachineReading, MonitorReading, Readings

FILES = 1024
"""A shard has a connection to each trainer and to each other shard of a job, and a service some dozen besides."""
LITTLE_BYTES, TOO_LITTLE_BYTES = 2 * 2**30, 256 * 2**20
LITTLE_PART = 0.05
"""The store's file may double while it is rewritten, and RabbitMQ stops taking messages at 50 MB."""
CLOCK_S, CLOCK_TOO_S = 2.0, 60.0
"""Times are shown and compared across hosts: from 2 s on they contradict each other; when jobs are due goes by them."""
BY_ONE = "by one time service (chrony, systemd-timesyncd)"


def judge(readings: Readings) -> list[Finding]:
    """What is found, and what to do."""
    found: list[Finding] = [_stack(readings)]
    if readings.broker is not None:
        found += broker.judge(readings.broker)
    if readings.store is not None:
        found += store.judge(readings.store)
    if readings.monitor is not None:
        found += _monitor(readings.monitor, readings)
    found += _clocks(readings)
    found += _machine(readings.machine)
    return found


def _stack(readings: Readings) -> Finding:
    if readings.found:
        return ok("stack", readings.stack)
    todo = "start one with 'make up', or name one by ELPS_AMQP_URL, ELPS_REDIS_URL and ELPS_MONITOR_URL"
    return problem("stack", readings.stack, todo)


def _monitor(monitor: MonitorReading, readings: Readings) -> Iterator[Finding]:
    if not monitor.url:
        todo = "set ELPS_MONITOR_URL: without it nobody says which services there are, and of which version"
        yield warning("monitor", "its address is not known", todo)
        return
    if monitor.error:
        todo = "start it (elps-monitor, or 'make up'), or correct ELPS_MONITOR_URL; training goes on without it"
        yield problem("monitor", f"{monitor.url}: {monitor.error}", todo)
        return
    yield ok("monitor", f"{monitor.url} answers")
    if not monitor.parts:
        todo = "set ELPS_TOKEN to the token that the monitor was started with"
        yield warning("services", "the monitor does not tell without its token", todo)
        return
    for name, command in (
        ("scheduler", "elps-scheduler"),
        ("shards", "elps-shard"),
        ("workers", "elps-worker"),
    ):
        yield _service(name, command, monitor)
    yield _versions(monitor, readings.machine.version)


def _service(name: str, command: str, monitor: MonitorReading) -> Finding:
    part = monitor.parts.get(name, {})
    detail = str(part.get("detail", "the monitor does not tell"))
    if part.get("status") == "ok":
        return ok(name, detail)
    todo = f"start {command} where it is missing ('make up' for a local stack), or see in its log why it is silent"
    # some are there: what is missing is told of for a while, though nothing may be wrong any more
    return (warning if part.get("count") else problem)(name, detail, todo)


def _versions(monitor: MonitorReading, own: str) -> Finding:
    check, part = "versions", monitor.parts.get("versions", {})
    todo = "install one version everywhere and restart what is older; jobs go on meanwhile"
    if part.get("status") != "ok":
        return warning(check, str(part.get("detail", "the monitor does not tell")), todo)
    if monitor.version != own:
        return warning(check, f"services {monitor.version}, this command {own}", todo)
    return ok(check, f"{own} everywhere")


def _clocks(readings: Readings) -> Iterator[Finding]:
    for whose, reading in (("store", readings.store), ("monitor", readings.monitor)):
        if reading is None or reading.clock_off_s is None:
            continue
        check = f"clock of the {whose}'s host"
        off_s = max(0.0, abs(reading.clock_off_s) - reading.clock_within_s)
        if off_s < CLOCK_S:
            yield ok(check, "the same as here")
            continue
        way = "ahead of" if reading.clock_off_s > 0 else "behind"
        todo = f"have both hosts' clocks set {BY_ONE}"
        kind = problem if off_s >= CLOCK_TOO_S else warning
        yield kind(check, f"{abs(reading.clock_off_s):.1f} s {way} the clock here", todo)
    if readings.monitor is not None and (part := readings.monitor.parts.get("clocks")):
        yield _clocks_of_members(part)


def _clocks_of_members(part: Mapping[str, Any]) -> Finding:
    """Schedulers, shards and agents, as the monitor compares them with its own; older monitors do not."""
    check, detail = (
        "clocks of the services' hosts",
        str(part.get("detail", "the monitor does not tell")),
    )
    if part.get("status") == "ok":
        return ok(check, detail)
    todo = (
        f"have the clocks of these hosts and of the monitor's set {BY_ONE}; a host that is heard late by seconds, and "
        "no other, is overloaded or far from the broker"
    )
    return warning(check, detail, todo)


def _machine(machine: MachineReading) -> Iterator[Finding]:
    files = machine.open_files
    if files is not None and files < FILES:
        todo = f"ulimit -n 65536, or LimitNOFILE= of the supervisor; at least {FILES}"
        yield warning("open files", f"{files} for each process", todo)
    elif files is not None:
        yield ok("open files", f"{files} for each process")
    for folder in machine.folders:
        yield _folder(folder)


def _folder(folder: FolderReading) -> Finding:
    check = f"{'disk' if folder.written else 'folder'} {folder.path}"
    if not folder.there:
        return problem(check, f"it is not there ({folder.what})", "make it, or correct the setting")
    if not folder.usable:
        may = "read and write" if folder.written else "read"
        todo = f"let this user {may} it (chown, chmod), or run as the user whose it is"
        return problem(check, f"not allowed to {may} it ({folder.what})", todo)
    if folder.open_to_others:
        return warning(
            check,
            f"others may read its addresses with their passwords ({folder.what})",
            "chmod 600 the file",
        )
    free, total = folder.free_bytes, folder.total_bytes
    if free is None or not total or not folder.written:
        return ok(check, folder.what)
    found = f"{size(free)} free of {size(total)} ({folder.what})"
    todo = "free some: logs and the store's files are under it"
    if free < TOO_LITTLE_BYTES:
        return problem(check, found, todo)
    if free < LITTLE_BYTES and free < LITTLE_PART * total:
        return warning(check, found, todo)
    return ok(check, found)
